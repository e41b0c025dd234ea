//! An answer keeps its form, however it is computed. It is the model's choice among the allowed tokens.

use std::sync::Arc;

use proptest::prelude::*;

use super::{Constraint, ConstraintError, ConstraintFactory, TokenMask};
use crate::sampler::{Sampler, SamplerOptions};
use crate::speculate::{Draft, Lookup, Source, Speculate};
use crate::{
    Cancel, Engine, EngineOptions, Error, Finish, GenerateOptions, Generation, LoadOptions, Model,
    Session, SessionOptions, Threads, generate,
};

const CONTEXT: usize = 96;
const PROMPT: [u32; 6] = [3, 14, 15, 9, 26, 3];

fn model() -> Arc<Model> {
    let path = format!(
        "{}/../../tests/golden/families/llama.gguf",
        env!("CARGO_MANIFEST_DIR")
    );
    Arc::new(
        Model::load(
            path.as_ref(),
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap(),
    )
}

/// A form in which the number of tokens so far and the latest one determine what may follow.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// The larger it is, the fewer tokens may follow.
    modulus: u32,
    /// The first `.1` of every `.0` tokens are forced.
    forced: (usize, usize),
    /// The number of tokens of an answer.
    length: usize,
    /// Whether the answer may end before that.
    ends: bool,
    vocab: u32,
}

/// The model's end token.
const END: u32 = 2;

impl Steps {
    /// Returns the tokens that may follow; one if it is forced.
    fn may_follow(&self, so_far: &[u32]) -> Vec<u32> {
        let (place, latest) = (so_far.len(), so_far.last().copied().unwrap_or(0));
        let (every, count) = self.forced;
        if place % every < count {
            return vec![3 + place as u32 * 5 % (self.vocab - 3)];
        }
        let few = (0..self.vocab)
            .filter(|token| (token + place as u32 + latest).is_multiple_of(self.modulus));
        let end = (self.ends && place % 3 == 2).then_some(END);
        few.filter(|token| *token != END).chain(end).collect()
    }

    fn is_forced(&self, place: usize) -> bool {
        place % self.forced.0 < self.forced.1
    }
}

impl ConstraintFactory for Steps {
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
        Ok(Box::new(Running {
            form: *self,
            so_far: Vec::new(),
        }))
    }
}

struct Running {
    form: Steps,
    so_far: Vec<u32>,
}

impl Constraint for Running {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.is_complete() && self.form.may_follow(&self.so_far).contains(&token) {
            self.so_far.push(token);
            return Ok(());
        }
        Err(format!("{token} after {:?}", self.so_far).into())
    }

    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        let left = self
            .so_far
            .len()
            .checked_sub(count)
            .ok_or("nothing to take back")?;
        self.so_far.truncate(left);
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.so_far.len() == self.form.length || self.so_far.last() == Some(&END)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        let (mut so_far, mut forced) = (self.so_far.clone(), Vec::new());
        while so_far.len() < self.form.length && self.form.is_forced(so_far.len()) {
            let next = self.form.may_follow(&so_far)[0];
            so_far.push(next);
            forced.push(next);
        }
        Ok(forced)
    }

    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError> {
        let before = self.so_far.len();
        let count = tokens
            .iter()
            .take_while(|token| self.accept(**token).is_ok())
            .count();
        self.so_far.truncate(before);
        Ok(count)
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        Ok(self.form.may_follow(&self.so_far).into_iter().collect())
    }
}

fn session(model: &Arc<Model>) -> Session {
    let options = SessionOptions {
        context: CONTEXT,
        chunk: 16,
        ..SessionOptions::default()
    };
    Session::new(model, &options).unwrap()
}

fn options(form: Steps, sampler: &SamplerOptions) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(60),
        sampler: sampler.clone(),
        constraint: Some(Arc::new(form)),
        ..GenerateOptions::default()
    }
}

fn answer(session: &mut Session, options: &GenerateOptions) -> Generation {
    generate(session, &PROMPT, options, &Cancel::new(), &mut |_| {}).unwrap()
}

/// Samples token by token from the model's logits, restricted to the allowed tokens.
fn reference(model: &Arc<Model>, form: &Steps, sampler: &SamplerOptions) -> Vec<u32> {
    let (mut session, mut sampler) = (session(model), Sampler::new(sampler).unwrap());
    session.prefill(&PROMPT, &Cancel::new(), |_| {}).unwrap();
    let mut tokens = Vec::new();
    while tokens.len() < form.length && tokens.last() != Some(&END) {
        let may_follow = form.may_follow(&tokens);
        let next = if form.is_forced(tokens.len()) {
            may_follow[0]
        } else {
            let mut logits = session.logits().to_vec();
            let seen = session.tokens();
            for (token, logit) in (0..).zip(&mut logits) {
                *logit = if may_follow.contains(&token) {
                    *logit
                } else {
                    f32::NEG_INFINITY
                };
            }
            sampler.sample(&logits, seen)
        };
        tokens.push(next);
        session.decode(next, &Cancel::new()).unwrap();
    }
    tokens
}

fn speculations(model: &Arc<Model>) -> [Option<Speculate>; 4] {
    let fixed = |source, most| {
        Some(Speculate {
            source,
            most,
            is_fixed: true,
        })
    };
    let draft = Draft::new(session(model), model).unwrap();
    [
        None,
        fixed(
            Source::Lookup(Lookup {
                shortest: 1,
                longest: 3,
            }),
            5,
        ),
        fixed(Source::Draft(draft), 4),
        Some(Speculate::lookup()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn an_answer_is_what_the_sampler_chooses_among_what_is_allowed_with_proposals_or_without(
        modulus in 1u32..30, every in 2usize..12, count in 0usize..8, length in 1usize..40, ends: bool,
        temperature in prop_oneof![Just(0.0f32), Just(1.5f32)], seed: u64,
    ) {
        let model = model();
        let vocab = model.description().vocab as u32;
        prop_assert_eq!(model.tokenizer().unwrap().end_tokens(), [END]);
        let form = Steps { modulus, forced: (every, count), length, ends, vocab };
        let sampler = SamplerOptions { temperature, seed, ..SamplerOptions::default() };
        let expected = reference(&model, &form, &sampler);
        for speculate in speculations(&model) {
            let options = GenerateOptions { speculate, ..options(form, &sampler) };
            let (mut first, mut again) = (session(&model), session(&model));
            let found = answer(&mut first, &options);
            prop_assert_eq!(&found.tokens, &expected, "{:?}", &options.speculate);
            prop_assert_eq!(found.finish, Finish::EndToken);
            prop_assert_eq!(&answer(&mut again, &options).text, &found.text);
            // The session holds the tokens that it ran, and the next prompt continues after them.
            let held = first.tokens().len() - PROMPT.len();
            prop_assert_eq!(&first.tokens()[PROMPT.len()..], &expected[..held]);
        }
    }
}

#[test]
fn answers_of_several_sessions_at_once_have_each_its_own_form() {
    let model = model();
    let vocab = model.description().vocab as u32;
    let session_options = SessionOptions {
        context: CONTEXT,
        chunk: 16,
        ..SessionOptions::default()
    };
    let engine = Engine::new(
        &model,
        &EngineOptions {
            session: session_options,
            ..EngineOptions::default()
        },
    )
    .unwrap();
    let sampler = SamplerOptions::default();
    let form = |index: usize| Steps {
        modulus: index as u32 + 2,
        forced: (5, index),
        length: 30,
        ends: false,
        vocab,
    };
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (model, engine, sampler) = (&model, &engine, &sampler);
            scope.spawn(move || {
                let found = answer(&mut engine.session(), &options(form(index), sampler));
                assert_eq!(
                    found.tokens,
                    reference(model, &form(index), sampler),
                    "{index}"
                );
            });
        }
    });
}

#[test]
fn tokens_that_must_follow_run_together_and_are_counted() {
    let model = model();
    let vocab = model.description().vocab as u32;
    let form = Steps {
        modulus: 3,
        forced: (10, 8),
        length: 40,
        ends: false,
        vocab,
    };
    let lookup = Some(Speculate::lookup());
    let options = GenerateOptions {
        speculate: lookup,
        ..options(form, &SamplerOptions::default())
    };
    let found = answer(&mut session(&model), &options);
    let (constraint, speculation) = (found.constraint.unwrap(), found.speculation.unwrap());
    assert_eq!(constraint.forced_tokens, 32);
    assert!(constraint.masks >= 8, "{constraint:?}");
    // Eight forced tokens run together and two are sampled: at most three steps for each ten tokens.
    assert!(speculation.steps <= 12, "{speculation:?}");
}

#[test]
fn an_answer_that_is_too_long_ends_within_its_form() {
    let model = model();
    let vocab = model.description().vocab as u32;
    for forced in [(6, 0), (6, 5)] {
        let form = Steps {
            modulus: 4,
            forced,
            length: 50,
            ends: false,
            vocab,
        };
        let whole = answer(
            &mut session(&model),
            &options(form, &SamplerOptions::default()),
        )
        .tokens;
        for most in [0, 1, 2, 7, 11, 12, 13, 49] {
            for speculate in [None, Some(Speculate::lookup())] {
                let options = GenerateOptions {
                    max_tokens: Some(most),
                    speculate,
                    ..options(form, &SamplerOptions::default())
                };
                let found = answer(&mut session(&model), &options);
                assert_eq!(
                    (&found.tokens[..], found.finish),
                    (&whole[..most], Finish::Length)
                );
            }
        }
    }
}

#[test]
fn a_form_of_nothing_has_an_empty_answer() {
    let model = model();
    let vocab = model.description().vocab as u32;
    let form = Steps {
        modulus: 4,
        forced: (6, 0),
        length: 0,
        ends: false,
        vocab,
    };
    let found = answer(
        &mut session(&model),
        &options(form, &SamplerOptions::default()),
    );
    assert_eq!(
        (found.text.as_str(), found.tokens.len(), found.finish),
        ("", 0, Finish::EndToken)
    );
}

#[test]
fn a_form_that_allows_no_token_of_the_model_is_an_error() {
    let model = model();
    let vocab = model.description().vocab as u32;
    // After two tokens, all that may follow is outside the vocabulary.
    #[derive(Debug)]
    struct Outside(u32);
    struct Run(u32, usize);
    impl ConstraintFactory for Outside {
        fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
            Ok(Box::new(Run(self.0, 0)))
        }
    }
    impl Constraint for Run {
        fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
            self.1 += 1;
            Ok(())
        }
        fn take_back(&mut self, count: usize) -> Result<(), ConstraintError> {
            self.1 -= count;
            Ok(())
        }
        fn is_complete(&mut self) -> bool {
            false
        }
        fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
            Ok(Vec::new())
        }
        fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError> {
            Ok(tokens.len().min(2_usize.saturating_sub(self.1)))
        }
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            assert!(self.1 < 3, "a token that is not allowed was chosen");
            Ok([if self.1 < 2 { 1 } else { self.0 }].into_iter().collect())
        }
    }
    let options = GenerateOptions {
        constraint: Some(Arc::new(Outside(vocab))),
        ..GenerateOptions::default()
    };
    let mut session = session(&model);
    let error = generate(&mut session, &PROMPT, &options, &Cancel::new(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Constraint(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "the answer cannot be kept in its form: no token of the model may come next"
    );
    // The session can continue.
    answer(
        &mut session,
        &GenerateOptions {
            max_tokens: Some(3),
            ..GenerateOptions::default()
        },
    );
}

#[test]
fn a_constraint_that_panics_is_an_error() {
    #[derive(Debug)]
    struct Panics;
    struct Run;
    impl ConstraintFactory for Panics {
        fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
            Ok(Box::new(Run))
        }
    }
    impl Constraint for Run {
        fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
            Ok(())
        }
        fn take_back(&mut self, _: usize) -> Result<(), ConstraintError> {
            Ok(())
        }
        fn is_complete(&mut self) -> bool {
            false
        }
        fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
            Ok(Vec::new())
        }
        fn allowed(&mut self, _: &[u32]) -> Result<usize, ConstraintError> {
            Ok(0)
        }
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            panic!("as planned")
        }
    }
    let options = GenerateOptions {
        constraint: Some(Arc::new(Panics)),
        ..GenerateOptions::default()
    };
    let error = generate(
        &mut session(&model()),
        &PROMPT,
        &options,
        &Cancel::new(),
        &mut |_| {},
    )
    .unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

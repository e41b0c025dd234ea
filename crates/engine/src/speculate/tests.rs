//! The answer does not depend on proposals: it is that of one token per step.

use std::sync::Arc;

use proptest::prelude::*;
use triad_model::gguf::Value;
use triad_model::testing::tiny_llama;

use super::lengths::Lengths;
use super::lookup::LookupProposer;
use super::{Draft, Lookup, Proposal, Propose, Source, Speculate, Speculator};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::generate::generate_with;
use crate::quantization::DecodeWeights;
use crate::sampler::{Distribution, Sampler, SamplerOptions};
use crate::{
    Event, Finish, GenerateOptions, Generation, LoadOptions, Model, PrefixSalt, Session,
    SessionOptions, Threads, generate, testing,
};

const FAMILIES: [&str; 5] = ["llama", "qwen2", "gemma3", "phi2", "lfm2"];
const CONTEXT: usize = 64;
const PROMPT: [u32; 5] = [3, 14, 15, 9, 26];

fn model(family: &str) -> Arc<Model> {
    let path = format!(
        "{}/../../tests/golden/families/{family}.gguf",
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

fn int8(model: &Arc<Model>) -> Arc<Model> {
    let tokens: Vec<u32> = (0..40)
        .map(|index| index * 7 % model.description().vocab as u32)
        .collect();
    Arc::new(testing::quantize(model, &tokens, 0.5, DecodeWeights::Int8))
}

fn session(model: &Arc<Model>) -> Session {
    let options = SessionOptions {
        context: CONTEXT,
        chunk: 16,
        ..SessionOptions::default()
    };
    Session::new(model, &options).unwrap()
}

/// Generates the answer with `proposer` and `most` proposals per step; also returns the session.
fn answer(
    model: &Arc<Model>,
    options: &GenerateOptions,
    proposer: Option<Box<dyn Propose>>,
    most: usize,
) -> (Generation, Session) {
    let mut session = session(model);
    let speculator = Speculator::with(proposer, Lengths::fixed(most));
    let generation = generate_with(
        &mut session,
        &PROMPT,
        options,
        speculator,
        &Cancel::new(),
        &mut |_| {},
    )
    .unwrap();
    (generation, session)
}

fn plain(model: &Arc<Model>, options: &GenerateOptions) -> (Generation, Session) {
    answer(model, options, None, 0)
}

/// Checks that both have the same text, tokens and end, and that both sessions continue alike.
fn assert_same(mut one: (Generation, Session), mut other: (Generation, Session), what: &str) {
    assert_eq!(one.0.tokens, other.0.tokens, "{what}");
    assert_eq!(
        (&one.0.text, one.0.finish),
        (&other.0.text, other.0.finish),
        "{what}"
    );
    assert_eq!(
        one.0.timing.decode_tokens, other.0.timing.decode_tokens,
        "{what}"
    );
    assert_eq!(one.1.tokens(), other.1.tokens(), "{what}");
    assert!(one.1.logits() == other.1.logits(), "{what}: logits");
    if one.1.tokens().len() < CONTEXT {
        let next = |session: &mut Session| session.decode(7, &Cancel::new()).unwrap().to_vec();
        assert!(
            next(&mut one.1) == next(&mut other.1),
            "{what}: the next token's logits"
        );
    }
}

/// Proposes a given answer, with other tokens in some places.
struct Scripted {
    answer: Vec<u32>,
    /// Whether a proposal is right, by its position in the answer; repeated.
    right: Vec<bool>,
    vocab: u32,
}

impl Propose for Scripted {
    fn find(&mut self, _: &[u32]) -> Option<usize> {
        Some(0)
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        _: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        let next = tokens.len() - PROMPT.len();
        for position in next..next + count {
            let token = self.answer.get(position).copied().unwrap_or(0);
            let wrong = u32::from(!self.right[position % self.right.len()]);
            proposals.push(Proposal {
                token: (token + wrong) % self.vocab,
                drawn_from: None,
            });
        }
        Ok(())
    }
}

fn scripted(model: &Model, answer: &Generation, right: &[bool]) -> Option<Box<dyn Propose>> {
    let vocab = model.description().vocab as u32;
    Some(Box::new(Scripted {
        answer: answer.tokens.clone(),
        right: right.to_vec(),
        vocab,
    }))
}

fn most_tokens(count: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(count),
        ..GenerateOptions::default()
    }
}

fn sampled(temperature: f32, seed: u64) -> SamplerOptions {
    SamplerOptions {
        temperature,
        seed,
        ..SamplerOptions::default()
    }
}

#[test]
fn proposals_that_are_right_are_accepted_and_others_are_not() {
    let mut counted = 0;
    for family in FAMILIES {
        for model in [model(family), int8(&model(family))] {
            for options in [
                most_tokens(33),
                GenerateOptions {
                    sampler: sampled(1.5, 1),
                    ..most_tokens(33)
                },
            ] {
                let expected = plain(&model, &options);
                assert_eq!(expected.0.speculation, None, "{family}");
                // Kernels of other processors round differently: an answer may end by itself there.
                let is_whole = expected.0.tokens.len() == 33;
                counted += usize::from(is_whole);
                for (right, steps, accepted) in [(true, 8, 24), (false, 32, 0)] {
                    let found =
                        answer(&model, &options, scripted(&model, &expected.0, &[right]), 3);
                    let speculation = found.0.speculation.unwrap();
                    let counts = (speculation.steps, speculation.accepted);
                    assert!(
                        !is_whole || counts == (steps, accepted),
                        "{family}: {counts:?}"
                    );
                    assert_same(found, plain(&model, &options), family);
                }
            }
        }
    }
    assert!(counted > 0, "every answer ended by itself");
}

#[test]
fn a_context_that_is_full_ends_an_answer_at_the_same_token() {
    let model = model("llama");
    let options = GenerateOptions::default();
    let expected = plain(&model, &options).0;
    assert_eq!(
        (expected.finish, expected.tokens.len()),
        (Finish::ContextFull, CONTEXT - PROMPT.len() + 1)
    );
    for most in 1..9 {
        let found = answer(&model, &options, scripted(&model, &expected, &[true]), most);
        assert_same(found, plain(&model, &options), &most.to_string());
    }
}

#[test]
fn a_stop_string_ends_an_answer_in_the_middle_of_what_was_accepted() {
    let model = model("llama");
    let options = GenerateOptions {
        sampler: sampled(2.0, 3),
        ..most_tokens(40)
    };
    let whole = plain(&model, &options).0;
    for start in whole
        .text
        .char_indices()
        .map(|(index, _)| index)
        .skip(2)
        .take(20)
    {
        let stop: String = whole.text[start..].chars().take(3).collect();
        let options = GenerateOptions {
            stop: vec![stop.clone()],
            ..options.clone()
        };
        let expected = plain(&model, &options);
        assert_eq!(expected.0.finish, Finish::StopString);
        assert_same(
            answer(&model, &options, scripted(&model, &whole, &[true]), 11),
            expected,
            &stop,
        );
    }
}

#[test]
fn an_end_token_of_the_options_ends_an_answer_unless_end_tokens_are_ignored() {
    let model = model("llama");
    let options = GenerateOptions {
        sampler: sampled(2.0, 3),
        ..most_tokens(40)
    };
    let whole = plain(&model, &options).0;
    let token = whole.tokens[5];
    let place = whole.tokens.iter().position(|it| *it == token).unwrap();
    let options = GenerateOptions {
        end_tokens: vec![token],
        ..options
    };
    let expected = plain(&model, &options);
    assert_eq!(expected.0.finish, Finish::EndToken);
    assert_eq!(expected.0.tokens, whole.tokens[..=place]);
    let found = answer(&model, &options, scripted(&model, &whole, &[true]), 11);
    assert_same(found, expected, "with proposals");
    let ignoring = GenerateOptions {
        ignores_end_tokens: true,
        ..options
    };
    assert_eq!(plain(&model, &ignoring).0.tokens.len(), 40);
}

#[test]
fn an_end_token_ends_an_answer_in_the_middle_of_what_was_accepted() {
    let model = model("llama");
    let ended = (0..2000).find_map(|seed| {
        let options = GenerateOptions {
            sampler: sampled(8.0, seed),
            ..most_tokens(12)
        };
        let (answer, _) = plain(&model, &options);
        (answer.finish == Finish::EndToken && answer.tokens.len() > 3).then_some((options, answer))
    });
    let (options, expected) = ended.expect("an answer with an end token");
    for most in 1..10 {
        let found = answer(&model, &options, scripted(&model, &expected, &[true]), most);
        assert!(found.0.speculation.unwrap().accepted < expected.tokens.len());
        assert_same(found, plain(&model, &options), &most.to_string());
    }
}

#[test]
fn a_cancelled_answer_ends_at_the_same_token() {
    let model = model("llama");
    let options = GenerateOptions {
        sampler: sampled(2.0, 3),
        ..most_tokens(40)
    };
    let whole = plain(&model, &options).0;
    let cancelled = |proposer, most| {
        let (mut session, cancel, mut texts) = (session(&model), Cancel::new(), 0);
        let speculator = Speculator::with(proposer, Lengths::fixed(most));
        let answer = generate_with(
            &mut session,
            &PROMPT,
            &options,
            speculator,
            &cancel,
            &mut |event| {
                texts += u32::from(matches!(event, Event::Text(_)));
                if texts == 7 {
                    cancel.cancel();
                }
            },
        );
        (answer.unwrap(), session)
    };
    let expected = cancelled(None, 0);
    assert_eq!(expected.0.finish, Finish::Cancelled);
    assert_same(
        cancelled(scripted(&model, &whole, &[true]), 6),
        expected,
        "cancelled",
    );
}

#[test]
fn a_lookup_gives_the_answer_of_one_token_a_step_in_fewer_steps() {
    for family in FAMILIES {
        let model = model(family);
        let options = most_tokens(50);
        let expected = plain(&model, &options);
        let found = answer(
            &model,
            &options,
            Some(Box::new(LookupProposer::new(Lookup::default()))),
            8,
        );
        let speculation = found.0.speculation.unwrap();
        assert_eq!(speculation.steps + speculation.accepted, 49, "{family}");
        assert_same(found, expected, family);
        for is_fixed in [false, true] {
            let speculate = Some(Speculate {
                is_fixed,
                ..Speculate::lookup()
            });
            let options = GenerateOptions {
                speculate,
                ..options.clone()
            };
            let mut session = session(&model);
            let found =
                generate(&mut session, &PROMPT, &options, &Cancel::new(), &mut |_| {}).unwrap();
            assert_same((found, session), plain(&model, &options), family);
        }
    }
}

#[test]
fn a_draft_model_gives_the_answer_of_one_token_a_step() {
    for family in FAMILIES {
        let model = model(family);
        let draft = Draft::new(session(&int8(&model)), &model).unwrap();
        let speculate = Speculate {
            most: 4,
            is_fixed: true,
            ..Speculate::draft(draft)
        };
        for sampler in [SamplerOptions::default(), sampled(0.5, 5)] {
            let sampler = SamplerOptions {
                repetition_penalty: 1.3,
                ..sampler
            };
            let options = GenerateOptions {
                speculate: Some(speculate.clone()),
                sampler,
                ..most_tokens(41)
            };
            let mut session = session(&model);
            let found =
                generate(&mut session, &PROMPT, &options, &Cancel::new(), &mut |_| {}).unwrap();
            assert!(
                found.speculation.unwrap().accepted > 0,
                "{family}: {:?}",
                found.speculation
            );
            assert_same((found, session), plain(&model, &options), family);
        }
    }
}

#[test]
fn a_draft_model_keeps_nothing_of_a_prompt_with_another_salt() {
    let model = model("llama");
    let session = session(&model);
    let engine = session.engine().clone();
    let draft = Draft::new(session, &model).unwrap();
    let looked_up = |salt| {
        let before = engine.usage().kv.tokens_looked_up;
        let mut proposer = draft
            .proposer(&model, salt, &SamplerOptions::default())
            .unwrap();
        proposer.begin(&PROMPT, &Cancel::new()).unwrap();
        engine.usage().kv.tokens_looked_up - before
    };
    let (none, one, other) = (
        PrefixSalt::default(),
        PrefixSalt::from_secret(b"one"),
        PrefixSalt::from_secret(b"other"),
    );
    assert_eq!(
        [none, none, one, one, other, one].map(looked_up),
        [4, 0, 4, 0, 4, 4]
    );
}

#[test]
fn a_model_is_its_own_perfect_draft() {
    let model = model("llama");
    for (temperature, is_sampled) in [(0.0, false), (0.0, true), (1.0, true)] {
        let draft = Draft::new(session(&model), &model).unwrap();
        let draft = if is_sampled { draft.sampled() } else { draft };
        let speculate = Speculate {
            most: 4,
            is_fixed: true,
            ..Speculate::draft(draft)
        };
        let sampler = sampled(temperature, 2);
        let options = GenerateOptions {
            speculate: Some(speculate),
            sampler,
            ..most_tokens(41)
        };
        let found = generate(
            &mut session(&model),
            &PROMPT,
            &options,
            &Cancel::new(),
            &mut |_| {},
        )
        .unwrap();
        let speculation = found.speculation.unwrap();
        assert_eq!(
            (
                speculation.steps,
                speculation.proposed,
                speculation.accepted
            ),
            (8, 32, 32)
        );
    }
}

#[test]
fn a_draft_model_proposes_by_the_tokens_so_far_whatever_it_has_seen() {
    let model = model("qwen2");
    let new = || {
        Draft::new(session(&model), &model)
            .unwrap()
            .proposer(&model, PrefixSalt::default(), &SamplerOptions::default())
            .unwrap()
    };
    let proposed = |proposer: &mut super::draft::DraftProposer, tokens: &[u32], count| {
        let mut proposals = Vec::new();
        proposer
            .propose(tokens, count, &Cancel::new(), &mut proposals)
            .unwrap();
        proposals
            .iter()
            .map(|proposal| proposal.token)
            .collect::<Vec<_>>()
    };
    let mut proposer = new();
    // All proposals accepted, some, none, another conversation, a shorter one.
    let mut tokens = vec![1, 2, 3];
    for (accepted, next) in [(4, 17), (2, 9), (0, 30)] {
        let proposals = proposed(&mut proposer, &tokens, 4);
        assert_eq!(proposals, proposed(&mut new(), &tokens, 4), "{tokens:?}");
        tokens.extend_from_slice(&proposals[..accepted]);
        tokens.push(next);
    }
    for tokens in [&[5, 6, 7, 8][..], &[5, 6]] {
        assert_eq!(
            proposed(&mut proposer, tokens, 5),
            proposed(&mut new(), tokens, 5),
            "{tokens:?}"
        );
    }
    // It can propose one token more than its context has room for, which it does not run.
    let long: Vec<u32> = (0..CONTEXT as u32 - 2).collect();
    assert_eq!(proposed(&mut proposer, &long, 9).len(), 3);
    assert_eq!(proposer.find(&vec![1; CONTEXT]), Some(0));
    assert_eq!(proposer.find(&vec![1; CONTEXT + 1]), None);
}

#[test]
fn a_draft_model_proposes_nothing_after_a_prompt_with_pictures() {
    let model = model("llama");
    let draft = Draft::new(session(&model), &model).unwrap();
    let mut proposer = draft
        .proposer(&model, PrefixSalt::default(), &SamplerOptions::default())
        .unwrap();
    for length in [1, 40] {
        let mut prompt = PROMPT.to_vec();
        prompt.extend((0..length).map(|row| (1 << 31) + row));
        proposer.begin(&prompt, &Cancel::new()).unwrap();
        assert_eq!(proposer.find(&prompt), None);
        prompt.push(5);
        assert_eq!(proposer.find(&prompt), None);
    }
    proposer.begin(&PROMPT, &Cancel::new()).unwrap();
    assert_eq!(proposer.find(&PROMPT), Some(0));
}

#[test]
fn a_draft_model_with_other_tokens_is_refused() {
    let tiny = |last: &str| {
        let texts =
            |texts: &[&str]| Value::Strings(texts.iter().map(|&text| text.to_owned()).collect());
        let file = tiny_llama()
            .field("tokenizer.ggml.model", Value::String("gpt2".to_owned()))
            .field("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()))
            .field("tokenizer.ggml.tokens", texts(&["a", "b", "c", last]))
            .field("tokenizer.ggml.merges", texts(&[]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, file.build()).unwrap();
        Arc::new(
            Model::load(
                &path,
                &LoadOptions {
                    threads: Threads::Count(1),
                    ..Default::default()
                },
            )
            .unwrap(),
        )
    };
    let of = |model: &Arc<Model>| {
        Session::new(
            model,
            &SessionOptions {
                context: 8,
                ..SessionOptions::default()
            },
        )
        .unwrap()
    };
    let (model, other) = (tiny("d"), tiny("e"));
    let expected = "the draft model has \"e\" as token 3, the model has \"d\": take a draft model with the same tokenizer";
    assert_eq!(
        Draft::new(of(&other), &model).unwrap_err().to_string(),
        expected
    );
    let llama = self::model("llama");
    let vocab = llama.description().vocab;
    let of_tokens = format!(
        "the draft model has a vocabulary of 4 tokens, the model has one of {vocab}: take a draft model with the same \
         tokenizer"
    );
    assert_eq!(
        Draft::new(of(&model), &llama).unwrap_err().to_string(),
        of_tokens
    );
    // This also holds if it was made for another model.
    let draft = Draft::new(of(&other), &other).unwrap();
    let options = GenerateOptions {
        speculate: Some(Speculate::draft(draft)),
        ..most_tokens(2)
    };
    let refused = generate(
        &mut of(&model),
        &[0, 1],
        &options,
        &Cancel::new(),
        &mut |_| {},
    );
    assert_eq!(refused.unwrap_err().to_string(), expected);
}

#[test]
fn options_out_of_range_are_named() {
    let message = |speculate| {
        let options = GenerateOptions {
            speculate: Some(speculate),
            ..most_tokens(2)
        };
        generate(
            &mut session(&model("llama")),
            &PROMPT,
            &options,
            &Cancel::new(),
            &mut |_| {},
        )
        .unwrap_err()
        .to_string()
    };
    for most in [0, 256] {
        let expected = format!("the number of proposals is {most}, expected 1 to 255");
        assert_eq!(
            message(Speculate {
                most,
                ..Speculate::lookup()
            }),
            expected
        );
    }
    for (shortest, longest) in [(0, 4), (5, 4), (2, 65)] {
        let expected = format!(
            "the n-gram of a lookup is {shortest} to {longest} tokens, expected 1 to 64 tokens, the shorter first"
        );
        let source = Source::Lookup(Lookup { shortest, longest });
        assert_eq!(
            message(Speculate {
                source,
                ..Speculate::lookup()
            }),
            expected
        );
    }
}

/// Draws proposals from the same distribution at every position.
struct Drawn {
    from: Distribution,
    sampler: Sampler,
}

impl Propose for Drawn {
    fn find(&mut self, _: &[u32]) -> Option<usize> {
        Some(0)
    }

    fn propose(
        &mut self,
        _: &[u32],
        count: usize,
        _: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        for _ in 0..count {
            let token = self.sampler.draw_from(&self.from);
            proposals.push(Proposal {
                token,
                drawn_from: Some(self.from.clone()),
            });
        }
        Ok(())
    }
}

/// Returns the statistic of the chi-square test that both rows of counts have the same distribution, and its degrees of
/// freedom.
fn chi_square(one: &[usize], other: &[usize]) -> (f64, usize) {
    let cells = one
        .iter()
        .zip(other)
        .filter(|(one, other)| **one + **other > 0);
    let of_cell = |(one, other): (&usize, &usize)| {
        let (one, other) = (*one as f64, *other as f64);
        (one - other).powi(2) / (one + other)
    };
    (cells.clone().map(of_cell).sum(), cells.count() - 1)
}

#[test]
fn sampled_answers_with_drawn_proposals_are_distributed_as_plain_ones() {
    const RUNS: u64 = 4000;
    const KEPT: usize = 3;
    let model = model("llama");
    let options = |seed| SamplerOptions {
        top_k: KEPT,
        ..sampled(1.0, seed)
    };
    // Answers of three tokens, each one of the three likeliest.
    let mut first = session(&model);
    let logits = first
        .prefill(&PROMPT, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    // The proposals include other tokens, and the likeliest ones with other probabilities.
    let from = Sampler::new(&SamplerOptions {
        temperature: 0.3,
        ..sampled(0.3, 0)
    })
    .unwrap()
    .distribution(&logits, &[]);
    let counts = |speculator: &dyn Fn(u64) -> Speculator, seeds: std::ops::Range<u64>| {
        let mut session = session(&model);
        let mut counts = std::collections::BTreeMap::new();
        for seed in seeds {
            let options = GenerateOptions {
                sampler: options(seed),
                ..most_tokens(3)
            };
            let answer = generate_with(
                &mut session,
                &PROMPT,
                &options,
                speculator(seed),
                &Cancel::new(),
                &mut |_| {},
            );
            *counts.entry(answer.unwrap().tokens).or_insert(0) += 1;
        }
        counts
    };
    let plain = counts(&|_| Speculator::with(None, Lengths::fixed(0)), 0..RUNS);
    let proposer = |seed| {
        let sampler = Sampler::new(&sampled(1.0, seed ^ 0xabcd)).unwrap();
        Speculator::with(
            Some(Box::new(Drawn {
                from: from.clone(),
                sampler,
            })),
            Lengths::fixed(2),
        )
    };
    let drawn = counts(&proposer, RUNS..2 * RUNS);
    let answers: std::collections::BTreeSet<_> = plain.keys().chain(drawn.keys()).collect();
    let of = |counts: &std::collections::BTreeMap<Vec<u32>, usize>| -> Vec<usize> {
        answers
            .iter()
            .map(|answer| counts.get(*answer).copied().unwrap_or(0))
            .collect()
    };
    let (statistic, freedom) = chi_square(&of(&plain), &of(&drawn));
    assert!(freedom > 8, "{answers:?}");
    let freedom = freedom as f64;
    assert!(
        statistic < freedom + 4.0 * (2.0 * freedom).sqrt(),
        "{statistic} for {freedom}: {plain:?} {drawn:?}"
    );
}

#[test]
fn a_drawn_proposal_is_accepted_as_often_as_both_distributions_agree() {
    const RUNS: usize = 40_000;
    let logits = [
        [1.0f32, 0.5, -0.5, 0.0, 2.0, -9.0],
        [1.0, 1.5, 0.0, -9.0, 0.5, 0.5],
    ];
    let mut samplers = [1, 2].map(|seed| Sampler::new(&sampled(1.0, seed)).unwrap());
    let [wanted, proposed] = [0, 1].map(|index| samplers[index].distribution(&logits[index], &[]));
    let (mut accepted, mut counts, mut expected) = (0, [0usize; 6], [0usize; 6]);
    for _ in 0..RUNS {
        let token = samplers[1].draw_from(&proposed);
        let proposal = Proposal {
            token,
            drawn_from: Some(proposed.clone()),
        };
        let chosen = super::step::verify(&proposal, &mut samplers[0], &logits[0], &[]).unwrap();
        accepted += usize::from(chosen == token);
        counts[chosen as usize] += 1;
        expected[samplers[0].sample(&logits[0], &[]) as usize] += 1;
    }
    let agree: f32 = (0..6)
        .map(|token| wanted.probability(token).min(proposed.probability(token)))
        .sum();
    assert!(
        (accepted as f32 / RUNS as f32 - agree).abs() < 0.01,
        "{accepted} of {RUNS}, expected {agree}"
    );
    let (statistic, _) = chi_square(&counts, &expected);
    assert!(
        statistic < 5.0 + 4.0 * 10.0f64.sqrt(),
        "{statistic}: {counts:?}, expected {expected:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_proposals_give_the_answer_of_one_token_a_step(
        family in prop::sample::select(&FAMILIES[..]), right in prop::collection::vec(any::<bool>(), 1..20),
        most in 1usize..12, tokens in 1usize..70, temperature in prop::sample::select(&[0.0f32, 0.7, 3.0][..]),
        repetition_penalty in prop::sample::select(&[1.0f32, 1.2][..]), top_k in 0usize..20, seed: u64,
    ) {
        let model = model(family);
        let sampler = SamplerOptions { repetition_penalty, top_k, ..sampled(temperature, seed) };
        let options = GenerateOptions { sampler, ..most_tokens(tokens) };
        let expected = plain(&model, &options);
        let found = answer(&model, &options, scripted(&model, &expected.0, &right), most);
        assert_same(found, expected, family);
    }
}

proptest! {
    #[test]
    fn a_lookup_finds_the_latest_of_the_longest_earlier_matches(
        tokens in prop::collection::vec(0u32..4, 0..60), shortest in 1usize..4, more in 0usize..4, count in 1usize..20,
    ) {
        let lookup = Lookup { shortest, longest: shortest + more };
        let matches = |start: usize, length: usize| {
            start >= length && tokens[start - length..start] == tokens[tokens.len() - length..]
        };
        let lengths = (shortest..=lookup.longest).rev();
        let expected = lengths.into_iter().find_map(|length| {
            (1..tokens.len()).rev().find(|start| matches(*start, length)).map(|start| (start, length))
        });
        prop_assert_eq!(lookup.find(&tokens), expected);
        if let Some((start, length)) = expected {
            let (mut proposer, mut proposals) = (LookupProposer::new(lookup), Vec::new());
            prop_assert_eq!(proposer.find(&tokens), Some(length - shortest));
            proposer.propose(&tokens, count, &Cancel::new(), &mut proposals).unwrap();
            let mut continued = tokens.clone();
            (0..count).for_each(|index| continued.push(continued[start + index]));
            let proposed: Vec<_> = proposals.iter().map(|proposal| proposal.token).collect();
            prop_assert_eq!(&proposed[..], &continued[tokens.len()..]);
        }
    }
}

//! Properties of every session, tested with small random models of every kind that a description can express.

mod common;

use std::sync::Arc;

use common::{CONTEXT, VOCAB, models};
use proptest::prelude::*;
use triad_engine::{Cancel, Error, KvFormat, LoadOptions, Model, Session, SessionOptions, Threads};

/// Two sums of one key in another order may round to neighbouring f16 numbers, 2⁻¹¹ apart. In a model this narrow, one
/// such number has a large effect.
const F16_BOUND: f32 = 5e-3;

fn session(model: &Arc<Model>, chunk: usize) -> Session {
    Session::new(
        model,
        &SessionOptions {
            context: CONTEXT,
            chunk,
            kv_format: KvFormat::F16,
        },
    )
    .unwrap()
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length)
        .map(|index| (index * 31 % VOCAB) as u32)
        .collect()
}

/// Returns the largest difference, relative to the largest logit.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a
        .iter()
        .fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    a.iter()
        .zip(b)
        .fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()))
        / largest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_chunk_length_does_not_change_the_logits(model in models(), length in 1usize..CONTEXT) {
        let model = Arc::new(model);
        let prompt = prompt(length);
        for (kv_format, bound) in [(KvFormat::F32, 1e-4), (KvFormat::F16, F16_BOUND)] {
            let session = |chunk| Session::new(&model, &SessionOptions { context: CONTEXT, chunk, kv_format }).unwrap();
            let whole = session(CONTEXT).prefill_all_logits(&prompt, &Cancel::new()).unwrap();
            for chunk in [1, 7, 64, 256] {
                let logits = session(chunk).prefill_all_logits(&prompt, &Cancel::new()).unwrap();
                prop_assert!(difference(&whole, &logits) < bound, "chunk {chunk}: {}", difference(&whole, &logits));
                let mut session = session(chunk);
                let last = session.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
                prop_assert!(difference(&whole[(length - 1) * VOCAB..], last) < bound);
            }
        }
    }

    #[test]
    fn a_token_later_in_the_prompt_does_not_change_logits_before_it(model in models(), length in 2usize..CONTEXT) {
        let model = Arc::new(model);
        let mut prompt = prompt(length);
        let before = session(&model, 16).prefill_all_logits(&prompt, &Cancel::new()).unwrap();
        *prompt.last_mut().unwrap() = 96;
        let after = session(&model, 16).prefill_all_logits(&prompt, &Cancel::new()).unwrap();
        prop_assert_eq!(&before[..(length - 1) * VOCAB], &after[..(length - 1) * VOCAB]);
    }

    #[test]
    fn the_number_of_threads_does_not_change_a_bit(model in models(), length in 1usize..CONTEXT) {
        let run = |model: Arc<Model>| session(&model, 16).prefill_all_logits(&prompt(length), &Cancel::new()).unwrap();
        let model = Arc::new(model);
        let first = run(Arc::clone(&model));
        let other = Arc::into_inner(model).unwrap().with_threads(2).unwrap();
        prop_assert_eq!(first, run(Arc::new(other)));
    }

    #[test]
    fn a_truncated_session_goes_on_as_if_it_had_never_seen_more(model in models(), keep in 0usize..30) {
        let model = Arc::new(model);
        let mut session = session(&model, 8);
        session.prefill(&prompt(40), &Cancel::new(), |_| {}).unwrap();
        session.truncate(keep);
        prop_assert_eq!(session.tokens().len(), keep);
        let again = session.prefill(&prompt(50)[keep..], &Cancel::new(), |_| {}).unwrap().to_vec();
        let fresh = self::session(&model, 8).prefill(&prompt(50), &Cancel::new(), |_| {}).unwrap().to_vec();
        prop_assert!(difference(&fresh, &again) < F16_BOUND);
    }

    #[test]
    fn a_cancelled_prefill_can_be_taken_up_where_it_stopped(model in models(), stop_after in 0usize..5) {
        let model = Arc::new(model);
        let mut session = session(&model, 8);
        let (prompt, cancel) = (prompt(50), Cancel::new());
        let mut chunks = 0;
        if stop_after == 0 {
            cancel.cancel();
        }
        let result = session.prefill(&prompt, &cancel, |_| {
            chunks += 1;
            if chunks == stop_after {
                cancel.cancel();
            }
        });
        let result = result.map(<[f32]>::to_vec);
        cancel.reset();
        let done = session.tokens().len();
        let resumed = match result {
            // The engine computes while the callback runs: it had finished, and nothing was left to cancel.
            Ok(logits) => logits,
            Err(error) => {
                prop_assert!(matches!(error, Error::Cancelled), "{}", error);
                prop_assert!(done.is_multiple_of(8) && done < prompt.len() && done >= 8 * stop_after, "{} tokens", done);
                prop_assert!(stop_after > 0 || done == 0, "it was cancelled before it began");
                session.prefill(&prompt[done..], &cancel, |_| {}).unwrap().to_vec()
            }
        };
        let fresh = self::session(&model, 8).prefill(&prompt, &cancel, |_| {}).unwrap().to_vec();
        prop_assert_eq!(fresh, resumed);
    }
}

fn tiny() -> Arc<Model> {
    let mut description = triad_model::family::shape("smollm2-135m").unwrap();
    description.blocks.truncate(1);
    description.vocab = VOCAB;
    description.context = CONTEXT;
    Arc::new(
        Model::random(
            description,
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
            1,
        )
        .unwrap(),
    )
}

fn message<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_prompt_longer_than_the_context_is_an_error_with_both_numbers() {
    let model = tiny();
    let mut session = session(&model, 16);
    let error = message(session.prefill(&prompt(CONTEXT + 1), &Cancel::new(), |_| {}));
    assert_eq!(
        error,
        "the prompt has 81 tokens, but only 80 of the context of 80 are free"
    );
    session
        .prefill(&prompt(70), &Cancel::new(), |_| {})
        .unwrap();
    let error = message(session.prefill(&prompt(11), &Cancel::new(), |_| {}));
    assert_eq!(
        error,
        "the prompt has 11 tokens, but only 10 of the context of 80 are free"
    );
    session
        .prefill(&prompt(10), &Cancel::new(), |_| {})
        .unwrap();
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let model = tiny();
    let mut session = session(&model, 16);
    assert_eq!(
        message(session.prefill(&[], &Cancel::new(), |_| {})),
        "the prompt is empty: give at least one token"
    );
    let error = message(session.prefill(&[3, 97], &Cancel::new(), |_| {}));
    assert_eq!(error, "token 97 is outside the vocabulary of 97");
    let options = |context, chunk| SessionOptions {
        context,
        chunk,
        ..SessionOptions::default()
    };
    let error = message(Session::new(&model, &options(81, 1)));
    assert_eq!(
        error,
        "a context of 81 tokens was asked for, but the model was made for at most 80"
    );
    let error = message(Session::new(&model, &options(80, 0)));
    assert_eq!(error, "the chunk length is 0, expected at least 1 token");
    let threads = message(Model::random(
        model.description().clone(),
        &LoadOptions {
            threads: Threads::Count(0),
            ..Default::default()
        },
        1,
    ));
    assert_eq!(threads, "the number of threads is 0, expected 1 to 1024");
}

#[test]
fn weights_that_are_not_finite_are_an_error_not_an_answer() {
    let mut description = tiny().description().clone();
    description.embedding_scale = f32::INFINITY;
    let model = Arc::new(
        Model::random(
            description,
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
            1,
        )
        .unwrap(),
    );
    let result = session(&model, 16)
        .prefill(&[1], &Cancel::new(), |_| {})
        .map(<[f32]>::to_vec);
    assert!(matches!(result, Err(Error::NotFinite)));
}

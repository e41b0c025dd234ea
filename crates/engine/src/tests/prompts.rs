//! Tests of prompts and of the threads that wait for them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::probed::{Probe, probed, set_probe};
use super::*;
use crate::executor::LayerTimes;
use crate::testing::models::{FAMILIES, float, int8};
use crate::{Error, testing};

#[test]
fn a_prompt_in_chunks_has_the_logits_of_one_chunk() {
    for family in FAMILIES {
        for model in [
            float(family),
            int8(family),
            Arc::new(testing::quantize_int4(&float(family))),
        ] {
            for length in [1, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK / 2] {
                let tokens = prompt(&model, length);
                let expected = all_logits(session(&model, 64), &tokens);
                let mut whole = session(&model, 64);
                let last = whole
                    .prefill(&tokens, &Cancel::new(), |_| {})
                    .unwrap()
                    .to_vec();
                let mut session = engine(&model).session();
                let all = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                assert!(all == expected, "{family}, {length} tokens");
                session.truncate(0);
                let mut reported = 0;
                let logits = session
                    .prefill(&tokens, &Cancel::new(), |done| reported = done)
                    .unwrap();
                assert!(logits == last, "{family}, {length} tokens: the last");
                assert_eq!(reported, length);
                assert_eq!(session.tokens(), tokens);
                // It also decodes as the other session does.
                let next = session.decode(3, &Cancel::new()).unwrap();
                assert!(
                    next == whole.decode(3, &Cancel::new()).unwrap(),
                    "{family}: decode"
                );
            }
        }
    }
}

#[test]
fn a_later_prompt_goes_on_after_an_earlier_one() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let run = |mut session: Session| {
        session
            .prefill(&tokens[..13], &Cancel::new(), |_| {})
            .unwrap();
        session
            .prefill(&tokens[13..], &Cancel::new(), |_| {})
            .unwrap()
            .to_vec()
    };
    assert!(run(session(&model, 5)) == run(session(&model, CHUNK)));
}

#[test]
fn a_cancelled_prompt_keeps_whole_chunks_and_goes_on_from_there() {
    let model = int8("llama");
    let tokens = prompt(&model, 50);
    let expected = session(&model, CHUNK)
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    let layers = tokens.len().div_ceil(CHUNK) * model.description().blocks.len();
    for stop_after in 0..layers {
        let (cancel, begun) = (Cancel::new(), AtomicUsize::new(0));
        let cancelled = cancel.clone();
        let probe: Probe = Arc::new(move |moment| {
            if moment.is_before() && begun.fetch_add(1, Ordering::Relaxed) == stop_after {
                cancelled.cancel();
            }
        });
        let options = EngineOptions {
            session: session_options(CHUNK),
            ..EngineOptions::default()
        };
        let engine = probed(&model, &options);
        set_probe(&engine, Some(probe));
        let mut session = engine.session();
        let result = session
            .prefill(&tokens, &cancel, |_| {})
            .map(<[f32]>::to_vec);
        cancel.reset();
        let done = session.tokens().len();
        let logits = match result {
            // The last chunk had already begun.
            Ok(logits) => logits,
            Err(error) => {
                assert!(matches!(error, Error::Cancelled), "{error}");
                assert!(done < tokens.len() && done.is_multiple_of(CHUNK), "{done}");
                session
                    .prefill(&tokens[done..], &cancel, |_| {})
                    .unwrap()
                    .to_vec()
            }
        };
        assert!(
            logits == expected,
            "stopped after {stop_after} layers, {done} tokens"
        );
    }
}

#[test]
fn a_panic_of_who_listens_ends_the_run() {
    let model = int8("llama");
    let tokens = prompt(&model, 40);
    let engine = engine(&model);
    let expected = session(&model, CHUNK)
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    // Alone, and while another thread computes its rows.
    for others in 0..3 {
        std::thread::scope(|scope| {
            let run = || {
                let mut session = engine.session();
                session
                    .prefill(&tokens, &Cancel::new(), |_| {})
                    .unwrap()
                    .to_vec()
            };
            let others: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
            for _ in 0..20 {
                let mut session = engine.session();
                let listen = std::panic::AssertUnwindSafe(|| {
                    let listener = |_| std::panic::resume_unwind(Box::new("enough"));
                    session
                        .prefill(&tokens, &Cancel::new(), listener)
                        .map(<[f32]>::len)
                });
                std::panic::catch_unwind(listen).unwrap_err();
                assert!(session.tokens().is_empty());
                let logits = session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
                assert!(logits == expected);
            }
            for other in others {
                assert!(other.join().unwrap() == expected);
            }
        });
    }
}

#[test]
fn a_prompt_reports_when_each_layer_of_its_chunks_was_computed() {
    let model = int8("llama");
    let mut session = engine(&model).session();
    assert_eq!(session.reports::<LayerTimes>().count(), 0);
    for length in [2 * CHUNK + 3, 1] {
        let tokens = prompt(&model, length);
        session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
        let reports: Vec<_> = session.reports::<LayerTimes>().collect();
        let rows: Vec<_> = reports.iter().map(|report| report.rows).collect();
        let expected: Vec<_> = tokens.chunks(CHUNK).map(<[u32]>::len).collect();
        assert_eq!(rows, expected, "those of an earlier prompt are gone");
        assert!(reports.is_sorted_by_key(|report| report.start));
        for report in reports {
            assert_eq!(report.layers.len(), model.description().blocks.len());
            let ends = report.layers.iter().flat_map(|one| [one.start, one.end]);
            assert!(ends.is_sorted());
        }
        session.decode(3, &Cancel::new()).unwrap();
        assert_eq!(session.reports::<LayerTimes>().count(), expected.len());
    }
}

#[test]
fn options_without_a_meaning_are_refused() {
    let model = float("llama");
    let refused = |options: EngineOptions| {
        let error = Engine::new(&model, &options).unwrap_err();
        error.to_string()
    };
    let of_session = |session| EngineOptions {
        session,
        ..EngineOptions::default()
    };
    let longest = model.description().context;
    assert_eq!(
        refused(of_session(SessionOptions {
            context: 0,
            ..SessionOptions::default()
        })),
        "the context is 0, expected at least 1 token"
    );
    assert_eq!(
        refused(of_session(session_options(0))),
        "the chunk length is 0, expected at least 1 token"
    );
    assert_eq!(
        refused(EngineOptions {
            most_rows: 0,
            ..of_session(session_options(CHUNK))
        }),
        "the number of rows in a step is 0, expected at least 1"
    );
    assert!(
        refused(of_session(SessionOptions {
            context: longest + 1,
            ..SessionOptions::default()
        }))
        .contains(&format!("at most {longest}"))
    );
}

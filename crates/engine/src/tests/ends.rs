//! Every request ends: cancelled, failed, or batched with others that continue. No request ends because of another one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::probed::{Moment, Probe, probed, set_probe, watches};
use super::*;
use crate::quantization::DecodeWeights;
use crate::testing::models::{FAMILIES, MODELS, int8};
use crate::{Error, KvFormat, LoadOptions, Threads, testing};

/// Far longer than anything here takes: a request that never ends fails one test instead of blocking all of them.
const NEVER: Duration = Duration::from_secs(120);
/// Longer than a waiting session takes to detect cancellation.
const SEEN: Duration = Duration::from_millis(60);

fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    is_done.recv_timeout(NEVER).expect("it ends")
}

/// Returns an engine that probes may be set on.
fn engine(model: &Arc<Model>) -> Engine {
    let options = EngineOptions {
        session: session_options(CHUNK),
        ..EngineOptions::default()
    };
    probed(model, &options)
}

/// Cancels before the `at`-th step or layer, and delays it until all sessions have detected it.
fn cancelling(cancel: &Cancel, at: usize) -> Probe {
    let (cancel, begun) = (cancel.clone(), AtomicUsize::new(0));
    Arc::new(move |moment| {
        if moment.is_before() && begun.fetch_add(1, Ordering::Relaxed) == at {
            cancel.cancel();
            std::thread::sleep(SEEN);
        }
    })
}

#[test]
fn a_cancelled_token_ends() {
    let model = int8("llama");
    let engine = engine(&model);
    let mut session = engine.session();
    session
        .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
        .unwrap();
    let expected = session.fork().decode(5, &Cancel::new()).unwrap().to_vec();
    let cancel = Cancel::new();
    set_probe(&engine, Some(cancelling(&cancel, 0)));
    let (mut session, result) = ends(move || {
        let result = session.decode(5, &cancel).map(<[f32]>::len);
        (session, result)
    });
    match result {
        Err(error) => assert!(matches!(error, Error::Cancelled), "{error}"),
        // The step runs on the same thread that would detect the cancellation.
        Ok(_) => {
            assert_eq!(session.tokens().len(), 21);
            session.truncate(20);
        }
    }
    assert_eq!(session.tokens().len(), 20);
    assert!(session.decode(5, &Cancel::new()).unwrap() == expected);
}

#[test]
fn a_cancelled_token_ends_while_others_go_on() {
    let model = int8("llama");
    let engine = engine(&model);
    let mut sessions: Vec<_> = (0..2).map(|_| engine.session()).collect();
    for session in &mut sessions {
        session
            .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
            .unwrap();
    }
    let expected = sessions[0]
        .fork()
        .decode(5, &Cancel::new())
        .unwrap()
        .to_vec();
    let cancel = Cancel::new();
    // The first layer is one of a prompt, during which both tokens arrive.
    set_probe(&engine, Some(cancelling(&cancel, 1)));
    let mut other = engine.session();
    let prompt = prompt(&model, 3);
    let results = ends(move || {
        let cancels = [Cancel::new(), cancel];
        std::thread::scope(|scope| {
            let decode = |(session, cancel): (&mut Session, &Cancel)| {
                session.decode(5, cancel).map(<[f32]>::to_vec)
            };
            let waiting: Vec<_> = sessions
                .iter_mut()
                .zip(&cancels)
                .map(|pair| scope.spawn(move || decode(pair)))
                .collect();
            other.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
            waiting
                .into_iter()
                .map(|waiting| waiting.join().unwrap())
                .collect::<Vec<_>>()
        })
    });
    assert!(results[0].as_ref().unwrap() == &expected);
    assert!(
        matches!(&results[1], Err(Error::Cancelled))
            || results[1].as_ref().is_ok_and(|logits| *logits == expected)
    );
}

#[test]
fn a_token_cancelled_while_another_thread_runs_its_step_ends() {
    let model = int8("llama");
    let options = EngineOptions {
        session: session_options(CHUNK),
        max_stall: Some(Duration::ZERO),
        ..EngineOptions::default()
    };
    let engine = probed(&model, &options);
    let mut session = engine.session();
    session
        .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
        .unwrap();
    let cancel = Cancel::new();
    let (begun, has_begun) = mpsc::channel();
    let (cancelled, waiting) = (cancel.clone(), AtomicBool::new(true));
    set_probe(
        &engine,
        Some(Arc::new(move |moment| match moment {
            // Until the token has arrived.
            Moment::Layer if waiting.swap(false, Ordering::Relaxed) => {
                begun.send(()).unwrap();
                std::thread::sleep(SEEN);
            }
            Moment::Step => {
                cancelled.cancel();
                std::thread::sleep(SEEN);
            }
            _ => {}
        })),
    );
    let tokens = prompt(&model, 20);
    ends(move || {
        std::thread::scope(|scope| {
            let mut other = engine.session();
            let other = scope.spawn(move || {
                let logits = other.prefill(&tokens, &Cancel::new(), |_| {});
                logits.map(<[f32]>::to_vec).unwrap()
            });
            has_begun.recv().unwrap();
            let result = session.decode(5, &cancel).map(<[f32]>::len);
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
            assert_eq!(session.tokens().len(), 20);
            let mut alone = super::session(&model, CHUNK);
            let expected = alone.prefill(session.tokens(), &Cancel::new(), |_| {});
            assert!(other.join().unwrap() == expected.unwrap());
            set_probe(&engine, None);
            let next = session.decode(5, &Cancel::new()).unwrap();
            assert!(next == alone.decode(5, &Cancel::new()).unwrap());
        });
    });
}

#[test]
fn cancelled_at_any_task_nothing_but_the_request_ends() {
    let model = int8("llama");
    let tokens = prompt(&model, 3 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let engine = engine(&model);
    for at in 0..3 * model.description().blocks.len() + 1 {
        let cancel = Cancel::new();
        set_probe(&engine, Some(cancelling(&cancel, at)));
        let (mut session, tokens) = (engine.session(), tokens.clone());
        let result = ends(move || session.prefill_all_logits(&tokens, &cancel));
        assert!(result.as_ref().map_or_else(
            |error| matches!(error, Error::Cancelled),
            |all| *all == expected
        ));
        set_probe(&engine, None);
        let mut again = engine.session();
        assert!(
            again
                .prefill_all_logits(&prompt(&model, 3 * CHUNK), &Cancel::new())
                .unwrap()
                == expected,
            "{at}"
        );
    }
}

#[test]
fn a_prompt_that_its_own_thread_computes_ends_within_a_layer() {
    let model = int8("llama");
    let engine = engine(&model);
    for at in 0..3 {
        let (cancel, layers) = (Cancel::new(), Arc::new(AtomicUsize::new(0)));
        let (flag, count) = (cancel.clone(), Arc::clone(&layers));
        set_probe(
            &engine,
            Some(Arc::new(move |moment| {
                if moment == Moment::Layer && count.fetch_add(1, Ordering::Relaxed) == at {
                    flag.cancel();
                }
            })),
        );
        let mut session = engine.session();
        let outcome = session.prefill(&prompt(&model, 8), &cancel, |_| {});
        assert!(matches!(outcome, Err(Error::Cancelled)), "{at}");
        assert_eq!(
            layers.load(Ordering::Relaxed),
            at + 1,
            "no layer runs after it"
        );
        assert!(session.tokens().is_empty());
    }
}

#[test]
fn a_prompt_ends_whose_neighbour_is_cancelled() {
    let model = int8("llama");
    let engine = engine(&model);
    let tokens = prompt(&model, 40);
    let expected = session(&model, CHUNK)
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    for at in [1, 5, 20, 30] {
        let cancel = Cancel::new();
        set_probe(&engine, Some(cancelling(&cancel, at)));
        let (engine, tokens, expected) = (engine.clone(), tokens.clone(), expected.clone());
        ends(move || {
            let cancels = [Cancel::new(), cancel, Cancel::new()];
            std::thread::scope(|scope| {
                let (engine, tokens) = (&engine, &tokens);
                let run = |cancel| {
                    engine
                        .session()
                        .prefill(tokens, cancel, |_| {})
                        .map(<[f32]>::to_vec)
                };
                let running: Vec<_> = cancels
                    .iter()
                    .map(|cancel| scope.spawn(move || run(cancel)))
                    .collect();
                for (index, running) in running.into_iter().enumerate() {
                    match running.join().unwrap() {
                        Ok(logits) => assert!(logits == expected),
                        Err(error) => assert!(
                            index == 1 && matches!(error, Error::Cancelled),
                            "{index}: {error}"
                        ),
                    }
                }
            });
        });
    }
}

#[test]
fn a_computation_that_panics_ends_its_requests_and_the_engine_goes_on() {
    let model = int8("llama");
    let engine = engine(&model);
    let tokens = prompt(&model, 3 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for at in 0..3 * model.description().blocks.len() {
        let begun = AtomicUsize::new(0);
        set_probe(
            &engine,
            Some(Arc::new(move |moment| {
                if moment.is_before() && begun.fetch_add(1, Ordering::Relaxed) == at {
                    // Does not print the message of a panic.
                    std::panic::resume_unwind(Box::new("out of order"));
                }
            })),
        );
        let (mut session, run) = (engine.session(), tokens.clone());
        let (session, error) = ends(move || {
            let error = session.prefill(&run, &Cancel::new(), |_| {}).err();
            (session, error)
        });
        assert!(
            matches!(&error, Some(Error::Panic(message)) if message == "out of order"),
            "{error:?}"
        );
        let done = at / model.description().blocks.len() * CHUNK;
        assert_eq!(session.tokens(), &tokens[..done], "the chunks before it");
        set_probe(&engine, None);
        assert!(all_logits(engine.session(), &tokens) == expected, "{at}");
    }
}

#[test]
fn an_engine_that_is_dropped_first_lives_as_long_as_its_sessions() {
    let model = int8("llama");
    let engine = engine(&model);
    let (mut session, mut fork) = {
        let session = engine.session();
        let fork = session.fork();
        (session, fork)
    };
    drop(engine);
    session
        .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
        .unwrap();
    drop(session);
    fork.prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
        .unwrap();
    ends(move || drop(fork));
}

/// Returns how many steps a sequence decodes while another one's prompt is computed, and the number of that prompt's
/// chunks.
fn steps_during_a_prompt(max_stall: Duration) -> (usize, usize) {
    let (_, model) = &MODELS[1];
    let session = SessionOptions {
        context: 400,
        chunk: CHUNK,
        ..SessionOptions::default()
    };
    let options = EngineOptions {
        session,
        max_stall: Some(max_stall),
        ..EngineOptions::default()
    };
    let engine = probed(model, &options);
    let chunks = 30;
    let mut session = engine.session();
    session
        .prefill(&prompt(model, 4), &Cancel::new(), |_| {})
        .unwrap();
    session.decode(1, &Cancel::new()).unwrap();
    set_probe(
        &engine,
        Some(Arc::new(|moment| {
            if moment.is_before() {
                std::thread::sleep(Duration::from_millis(1));
            }
        })),
    );
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                session.decode(1, &Cancel::new()).unwrap();
                session.truncate(5);
            }
        });
        let (mut first, mut last) = (None, 0);
        engine
            .session()
            .prefill(&prompt(model, chunks * CHUNK), &Cancel::new(), |_| {
                last = engine.usage().steps as usize;
                first.get_or_insert(last);
            })
            .unwrap();
        is_over.store(true, Ordering::Relaxed);
        (last - first.unwrap(), chunks)
    })
}

#[test]
fn sequences_that_decode_take_steps_while_a_prompt_is_computed() {
    let (steps, chunks) = steps_during_a_prompt(Duration::ZERO);
    // Each of a chunk's two layers may be preceded by a step.
    assert!(steps >= chunks, "{steps} steps in {chunks} chunks");
}

#[test]
fn a_step_that_may_wait_for_long_takes_no_time_from_a_prompt() {
    let (steps, _) = steps_during_a_prompt(NEVER);
    assert!(steps <= 1, "{steps} steps");
}

#[test]
fn a_thread_that_waits_for_a_step_sleeps_while_a_prompt_is_computed() {
    let model = int8("llama");
    let options = EngineOptions {
        session: session_options(CHUNK),
        max_stall: Some(NEVER),
        ..EngineOptions::default()
    };
    let engine = probed(&model, &options);
    let mut session = engine.session();
    session
        .prefill(&prompt(&model, 4), &Cancel::new(), |_| {})
        .unwrap();
    // The next step waits a moment for the sequences of this one.
    session.decode(1, &Cancel::new()).unwrap();
    let (begun, has_begun) = mpsc::channel();
    set_probe(
        &engine,
        Some(Arc::new(move |moment| {
            if moment == Moment::Layer {
                let _ = begun.send(());
                std::thread::sleep(Duration::from_millis(10));
            }
        })),
    );
    std::thread::scope(|scope| {
        let prompt = prompt(&model, 6 * CHUNK);
        let mut other = engine.session();
        scope.spawn(move || {
            other.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
        });
        has_begun.recv().unwrap();
        let (start, before) = (std::time::Instant::now(), watches(&engine));
        session.decode(1, &Cancel::new()).unwrap();
        let (milliseconds, looks) = (start.elapsed().as_millis(), watches(&engine) - before);
        assert!(
            looks as u128 <= milliseconds / 20 + 10,
            "{looks} in {milliseconds} ms"
        );
    });
}

/// Returns a model in which the embedding of one token is NaN.
fn with_a_bad_token(token: usize) -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let from = format!(
        "{}/../../tests/golden/families/llama",
        env!("CARGO_MANIFEST_DIR")
    );
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..data]).unwrap();
            if let Some(embedding) = header.get("model.embed_tokens.weight") {
                let offset = |index: usize| {
                    data + embedding["data_offsets"][index].as_u64().unwrap() as usize
                };
                let row =
                    (offset(1) - offset(0)) / embedding["shape"][0].as_u64().unwrap() as usize;
                // All bits set are NaN in every float format.
                bytes[offset(0) + token * row..][..row].fill(0xff);
            }
        }
        std::fs::write(folder.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    Arc::new(
        Model::load(
            folder.path(),
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap(),
    )
}

#[test]
fn logits_that_were_not_finite_spoil_nothing_that_comes_later() {
    const BAD: u32 = 100;
    let float = with_a_bad_token(BAD as usize);
    let good: Vec<u32> = (0..60).map(|index| index * index % 99).collect();
    let int8 = Arc::new(testing::quantize(&float, &good, 0.5, DecodeWeights::Int4));
    for (model, kv_format) in [float, int8].iter().flat_map(|model| {
        [KvFormat::F16, KvFormat::F32, KvFormat::Int8].map(|format| (model, format))
    }) {
        let session = SessionOptions {
            context: 300,
            chunk: CHUNK,
            kv_format,
        };
        let fresh = || engine_of(model, &session).session();
        let expected = fresh()
            .prefill(&good, &Cancel::new(), |_| {})
            .unwrap()
            .to_vec();
        let engine = engine_of(model, &session);
        let mut session = engine.session();
        // It fills more than the first page.
        let bad: Vec<u32> = (0..290)
            .map(|index| if index % 5 == 3 { BAD } else { index % 99 })
            .collect();
        assert!(matches!(
            session
                .prefill(&bad, &Cancel::new(), |_| {})
                .map(<[f32]>::len),
            Err(Error::NotFinite)
        ));
        session.truncate(0);
        assert!(
            session.prefill(&good, &Cancel::new(), |_| {}).unwrap() == expected,
            "{kv_format:?}: the same session"
        );
        // In a step with others.
        let mut other = engine.session();
        other.prefill(&good, &Cancel::new(), |_| {}).unwrap();
        let mut other_fresh = fresh();
        other_fresh.prefill(&good, &Cancel::new(), |_| {}).unwrap();
        let next = other_fresh.decode(7, &Cancel::new()).unwrap().to_vec();
        let together = [(&mut session, &[BAD][..]), (&mut other, &[7][..])];
        assert!(matches!(
            Session::decode_together(together, &Cancel::new()),
            Err(Error::NotFinite)
        ));
        assert!(other.logits() == next, "{kv_format:?}: step");
        // In memory that another session has used.
        drop((session, other));
        engine.forget_prefixes();
        let mut spoiled = engine.session();
        let _ = spoiled
            .prefill(&bad, &Cancel::new(), |_| {})
            .map(<[f32]>::len);
        drop(spoiled);
        let mut later = engine.session();
        assert!(
            later.prefill(&good, &Cancel::new(), |_| {}).unwrap() == expected,
            "{kv_format:?}: memory that is used again"
        );
        assert!(
            later.decode(7, &Cancel::new()).unwrap() == next,
            "{kv_format:?}: decode in memory that is used again"
        );
    }
}

#[test]
fn every_processor_counts_the_seconds_that_it_computes() {
    let model = &int8(FAMILIES[0]);
    let start = std::time::Instant::now();
    let engine = super::engine(model);
    let busy = || {
        let processors = engine.processor_use();
        let [cpu] = &processors[..] else {
            panic!("{processors:?}")
        };
        assert_eq!(cpu.name, "cpu");
        cpu.busy_seconds
    };
    assert_eq!(busy(), 0.0);
    let mut session = engine.session();
    session
        .prefill(&prompt(model, 40), &Cancel::new(), |_| {})
        .unwrap();
    let (prompt, elapsed) = (busy(), start.elapsed().as_secs_f64());
    assert!(0.0 < prompt && prompt < elapsed, "{prompt} of {elapsed}");
    session.decode(3, &Cancel::new()).unwrap();
    let (all, elapsed) = (busy(), start.elapsed().as_secs_f64());
    assert!(prompt < all && all < elapsed, "{all} of {elapsed}");
}

#[test]
fn a_prompt_cancelled_at_any_moment_of_its_last_task_ends() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK);
    let engine = engine(&model);
    let last = 2 * model.description().blocks.len();
    for delay in 0..400 {
        let (cancel, begun) = (Cancel::new(), AtomicUsize::new(0));
        let cancelled = cancel.clone();
        set_probe(
            &engine,
            Some(Arc::new(move |moment| {
                if moment == Moment::Layer && begun.fetch_add(1, Ordering::Relaxed) + 1 == last {
                    let cancelled = cancelled.clone();
                    std::thread::spawn(move || {
                        (0..delay * 20).for_each(|_| std::hint::spin_loop());
                        cancelled.cancel();
                    });
                }
            })),
        );
        let mut session = engine.session();
        let tokens = tokens.clone();
        let result = ends(move || session.prefill(&tokens, &cancel, |_| {}).map(<[f32]>::len));
        assert!(
            matches!(result, Ok(_) | Err(Error::Cancelled)),
            "{result:?}"
        );
    }
}

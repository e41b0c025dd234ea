//! Every request ends: cancelled, failed, batched with others that continue, or on processors that fail and return. No
//! request ends because of another one.

use std::sync::mpsc;

use triad_plan::graph::Format;

use triad_engine::quantization::DecodeWeights;
use triad_engine::testing::models::{self, MODELS, PARTS};
use triad_engine::{KvFormat, LoadOptions};

use super::*;

/// Far longer than anything here takes: a request that never ends fails one test instead of blocking all of them.
const NEVER: Duration = Duration::from_secs(120);
/// Longer than a waiting session takes to detect cancellation.
const SEEN: Duration = Duration::from_millis(60);

fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    is_done.recv_timeout(NEVER).expect("it ends")
}

/// Cancels before the `at`-th task, and delays the task until all sessions have detected it.
fn cancelling(cancel: &Cancel, at: usize) -> Probe {
    let (cancel, begun) = (cancel.clone(), AtomicUsize::new(0));
    Arc::new(move |_, moment| {
        if moment == Moment::Before && begun.fetch_add(1, Ordering::Relaxed) == at {
            cancel.cancel();
            std::thread::sleep(SEEN);
        }
        Ok(())
    })
}

/// Returns the options of one processor, and of two.
fn one_and_two() -> impl Iterator<Item = HeteroOptions> {
    [false, true].into_iter().map(|is_two| {
        if is_two {
            options(Policy::CriticalPath)
        } else {
            one_processor()
        }
    })
}

#[test]
fn several_processors_refuse_a_mixture_of_experts_by_name() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/families/mixtral.gguf"
    );
    let model = Model::load(path.as_ref(), &LoadOptions::default()).unwrap();
    let error = start(&Arc::new(model), options(Policy::CriticalPath))
        .err()
        .unwrap();
    assert!(error.to_string().contains("mixture of experts"), "{error}");
}

#[test]
fn several_processors_refuse_an_encoder_by_name() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/encoders/bert.gguf"
    );
    let model = Model::load(path.as_ref(), &LoadOptions::default()).unwrap();
    let error = start(&Arc::new(model), options(Policy::CriticalPath))
        .err()
        .unwrap();
    assert!(error.to_string().contains("encoder"), "{error}");
}

#[test]
fn several_processors_refuse_blocks_without_a_feed_forward_and_factors_by_name() {
    let mut description = models::description();
    description.blocks[1].feed_forward.gate_scale = 0.5;
    let factors = Model::random(description, &LoadOptions::default(), 1).unwrap();
    let cases = [
        (&PARTS[0].1, "has blocks without a feed-forward"),
        (&Arc::new(factors), "has factors on parts of blocks"),
    ];
    for (model, expected) in cases {
        let error = start(model, options(Policy::CriticalPath)).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_cancelled_token_ends() {
    let model = int8("llama");
    for options in one_and_two() {
        let engine = engine(&model, options);
        let mut session = engine.session();
        session
            .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
            .unwrap();
        let expected = session.fork().decode(5, &Cancel::new()).unwrap().to_vec();
        let cancel = Cancel::new();
        engine.set_probe(Some(cancelling(&cancel, 0)));
        let (mut session, result) = ends(move || {
            let result = session.decode(5, &cancel).map(<[f32]>::len);
            (session, result)
        });
        match result {
            Err(error) => assert!(matches!(error, EngineError::Cancelled), "{error}"),
            // One processor runs the step as one task, on the same thread that would detect the cancellation.
            Ok(_) => {
                assert_eq!(session.tokens().len(), 21);
                session.truncate(20);
            }
        }
        assert_eq!(session.tokens().len(), 20);
        assert!(session.decode(5, &Cancel::new()).unwrap() == expected);
    }
}

#[test]
fn a_cancelled_token_ends_while_others_go_on() {
    let model = int8("llama");
    for options in one_and_two() {
        let engine = engine(&model, options);
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
        // The first task is one of a prompt, during which both tokens arrive.
        engine.set_probe(Some(cancelling(&cancel, 1)));
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
            matches!(&results[1], Err(EngineError::Cancelled))
                || results[1].as_ref().is_ok_and(|logits| *logits == expected)
        );
    }
}

#[test]
fn cancelled_at_any_task_nothing_but_the_request_ends() {
    let model = int8("llama");
    let tokens = prompt(&model, 3 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    // On two processors the request ends while one of them computes some of its logits.
    for (options, step) in one_and_two().zip([8, 1]) {
        let engine = engine(&model, options);
        let tasks = 6 * model.description().blocks.len() * 3 + 3;
        for at in (0..tasks).rev().step_by(step) {
            let cancel = Cancel::new();
            engine.set_probe(Some(cancelling(&cancel, at)));
            let (mut session, tokens) = (engine.session(), tokens.clone());
            let result = ends(move || session.prefill_all_logits(&tokens, &cancel));
            assert!(result.as_ref().map_or_else(
                |error| matches!(error, EngineError::Cancelled),
                |all| *all == expected
            ));
            engine.set_probe(None);
            let mut again = engine.session();
            assert!(
                again
                    .prefill_all_logits(&prompt(&model, 3 * CHUNK), &Cancel::new())
                    .unwrap()
                    == expected,
                "{at}"
            );
            assert!(failures(&again).is_empty(), "{at}: {:?}", failures(&again));
        }
    }
}

#[test]
fn a_prompt_ends_whose_neighbour_is_cancelled() {
    let model = int8("llama");
    for options in one_and_two() {
        let engine = engine(&model, options);
        let tokens = prompt(&model, 40);
        let expected = session(&model, CHUNK)
            .prefill(&tokens, &Cancel::new(), |_| {})
            .unwrap()
            .to_vec();
        for at in [1, 5, 20] {
            let cancel = Cancel::new();
            engine.set_probe(Some(cancelling(&cancel, at)));
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
                                index == 1 && matches!(error, EngineError::Cancelled),
                                "{index}: {error}"
                            ),
                        }
                    }
                });
            });
        }
    }
}

#[test]
fn where_no_processor_is_left_for_a_task_the_request_ends_with_what_happened() {
    let model = int8("llama");
    // The second processor cannot take over float operators.
    let mut processors = two(1, None);
    processors[1].description.formats = vec![Format::Int8];
    let options = HeteroOptions {
        processors,
        ..options(Policy::CriticalPath)
    };
    let engine = engine(&model, options);
    let tokens = prompt(&model, 30);
    for at in [0, 7, 20] {
        engine.set_probe(Some(failing(CPU, at, error)));
        let (mut first, run) = (engine.session(), tokens.clone());
        let error = ends(move || {
            first
                .prefill(&run, &Cancel::new(), |_| {})
                .map(<[f32]>::len)
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "no processor is left to run the prompt: the CPU: the TEST: it panicked: unplugged",
            "{at}"
        );
        let mut again = engine.session();
        assert!(
            again.prefill_all_logits(&tokens, &Cancel::new()).unwrap()
                == all_logits(session(&model, CHUNK), &tokens)
        );
    }
}

#[test]
fn where_every_processor_hangs_requests_end_until_one_is_back() {
    let model = int8("llama");
    let hangs = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&hangs);
    let probe: Probe = Arc::new(move |_, _| {
        while still.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let options = HeteroOptions {
        time_out: Duration::from_millis(200),
        ..options(Policy::CriticalPath)
    };
    let engine = with_probe(engine(&model, options), probe);
    let tokens = prompt(&model, 30);
    for _ in 0..3 {
        let (mut session, tokens) = (engine.session(), tokens.clone());
        let error = ends(move || {
            session
                .prefill(&tokens, &Cancel::new(), |_| {})
                .map(<[f32]>::len)
        })
        .unwrap_err();
        assert!(is_of_processors(&error), "{error}");
    }
    hangs.store(false, Ordering::Relaxed);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    ends(move || {
        loop {
            // Prompts fail until the processors have returned.
            let mut session = engine.session();
            if let Ok(logits) = session.prefill_all_logits(&tokens, &Cancel::new()) {
                assert!(logits == expected);
                if failures(&session).is_empty() {
                    return;
                }
            }
        }
    });
}

#[test]
fn processors_that_are_at_times_too_late_come_back_whenever_that_is() {
    let model = int8("llama");
    let tokens = prompt(&model, 20);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let count = AtomicUsize::new(0);
    // Close to the timeout, so that a processor ends its task while it is being marked as lost.
    let probe: Probe = Arc::new(move |_, _| {
        if count.fetch_add(1, Ordering::Relaxed).is_multiple_of(7) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let options = HeteroOptions {
        time_out: Duration::from_millis(20),
        ..options(Policy::CriticalPath)
    };
    let engine = with_probe(engine(&model, options), probe);
    let workers = engine.clone();
    let (run, wanted) = (tokens.clone(), expected.clone());
    ends(move || {
        for _ in 0..60 {
            match engine.session().prefill_all_logits(&run, &Cancel::new()) {
                Ok(logits) => assert!(logits == wanted),
                Err(error) => assert!(is_of_processors(&error), "{error}"),
            }
        }
    });
    workers.set_probe(None);
    ends(move || {
        loop {
            let mut session = workers.session();
            if session
                .prefill_all_logits(&tokens, &Cancel::new())
                .is_ok_and(|logits| logits == expected)
                && failures(&session).is_empty()
            {
                return;
            }
        }
    });
}

#[test]
fn an_engine_that_is_dropped_first_lives_as_long_as_its_sessions() {
    let model = int8("llama");
    for options in one_and_two() {
        let engine = engine(&model, options);
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
}

/// Returns how many steps a sequence decodes while another one's prompt is computed, and the number of that prompt's
/// chunks.
fn steps_during_a_prompt(options: HeteroOptions) -> (usize, usize) {
    let (_, model) = &MODELS[1];
    let engine = engine(model, options);
    let chunks = 30;
    let mut session = engine.session();
    session
        .prefill(&prompt(model, 4), &Cancel::new(), |_| {})
        .unwrap();
    session.decode(1, &Cancel::new()).unwrap();
    engine.set_probe(Some(Arc::new(|_, moment| {
        if moment == Moment::Before {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })));
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
    for options in one_and_two() {
        let options = HeteroOptions {
            engine: EngineOptions {
                max_stall: Some(Duration::ZERO),
                ..of_session(400, CHUNK)
            },
            ..options
        };
        let (steps, chunks) = steps_during_a_prompt(options);
        // On one processor, each of a chunk's twelve tasks may be followed by a step.
        assert!(steps >= chunks, "{steps} steps in {chunks} chunks");
    }
}

#[test]
fn a_step_that_may_wait_for_long_takes_no_time_from_a_prompt() {
    let options = HeteroOptions {
        engine: EngineOptions {
            max_stall: Some(NEVER),
            ..of_session(400, CHUNK)
        },
        ..one_and_two().next().unwrap()
    };
    let (steps, _) = steps_during_a_prompt(options);
    assert!(steps <= 1, "{steps} steps");
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
        for options in one_and_two() {
            let session = SessionOptions {
                context: 300,
                chunk: CHUNK,
                kv_format,
            };
            let fresh = || Session::new(model, &session).unwrap();
            let expected = fresh()
                .prefill(&good, &Cancel::new(), |_| {})
                .unwrap()
                .to_vec();
            let of_engine = EngineOptions {
                session: session.clone(),
                ..EngineOptions::default()
            };
            let engine = engine(
                model,
                HeteroOptions {
                    engine: of_engine,
                    ..options
                },
            );
            let mut session = engine.session();
            // It fills more than the first page.
            let bad: Vec<u32> = (0..290)
                .map(|index| if index % 5 == 3 { BAD } else { index % 99 })
                .collect();
            assert!(matches!(
                session
                    .prefill(&bad, &Cancel::new(), |_| {})
                    .map(<[f32]>::len),
                Err(EngineError::NotFinite)
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
                Err(EngineError::NotFinite)
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
}

#[test]
fn every_processor_counts_the_seconds_that_it_computes() {
    let model = &int8(FAMILIES[0]);
    for options in one_and_two() {
        let start = std::time::Instant::now();
        let engine = engine(model, options);
        let names: Vec<_> = engine
            .processors()
            .iter()
            .map(|(_, one)| &one.name)
            .collect();
        let busy = || {
            let used = engine.processor_use();
            assert!(used.iter().map(|one| &one.name).eq(names.iter().copied()));
            used.iter().map(|one| one.busy_seconds).collect::<Vec<_>>()
        };
        assert_eq!(busy(), vec![0.0; names.len()]);
        engine
            .session()
            .prefill(&prompt(model, 40), &Cancel::new(), |_| {})
            .unwrap();
        let (busy, elapsed) = (busy(), start.elapsed().as_secs_f64());
        assert!(
            busy.iter().any(|busy| *busy > 0.0) && busy.iter().all(|busy| *busy < elapsed),
            "{busy:?}"
        );
    }
}

#[test]
fn a_prompt_cancelled_at_any_moment_of_its_last_task_ends() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK);
    let engine = engine(&model, options(Policy::Fifo));
    // The tasks of one run.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    engine.set_probe(Some(Arc::new(move |_, moment| {
        counted.fetch_add(usize::from(moment == Moment::After), Ordering::Relaxed);
        Ok(())
    })));
    engine
        .session()
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap();
    // Without the task of the logits.
    let last = count.load(Ordering::Relaxed) - 1;
    for delay in 0..400 {
        let (cancel, begun) = (Cancel::new(), AtomicUsize::new(0));
        let (cancelled, is_last) = (cancel.clone(), AtomicBool::new(false));
        engine.set_probe(Some(Arc::new(move |_, moment| {
            if moment == Moment::After
                && begun.fetch_add(1, Ordering::Relaxed) + 1 == last
                && !is_last.swap(true, Ordering::Relaxed)
            {
                let cancelled = cancelled.clone();
                std::thread::spawn(move || {
                    (0..delay * 20).for_each(|_| std::hint::spin_loop());
                    cancelled.cancel();
                });
            }
            Ok(())
        })));
        let mut session = engine.session();
        let tokens = tokens.clone();
        let result = ends(move || session.prefill(&tokens, &cancel, |_| {}).map(<[f32]>::len));
        assert!(
            matches!(result, Ok(_) | Err(EngineError::Cancelled)),
            "{result:?}"
        );
    }
}

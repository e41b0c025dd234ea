//! Tests of execution: any policy and any processors, even if some fail, give the logits of one processor alone, bit
//! for bit.

mod adapters;
mod cuts;
mod devices;
#[cfg(any(feature = "gpu", feature = "npu", feature = "hexagon"))]
mod encoder_devices;
mod ends;
mod energy;
mod fixed_point;
mod floats;
#[cfg(feature = "gpu")]
mod gpu;
mod operators;
mod outlier_cache;
mod pictures;
mod plans;
mod prefixes;
mod sequences;
mod simulation;
#[cfg(any(feature = "gpu", feature = "npu", feature = "hexagon"))]
#[path = "../../processors/tests/skip/mod.rs"]
mod skip;
mod steps;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use triad_plan::graph::{Format, Task};
use triad_plan::processors::{Processor, ProcessorId};
use triad_plan::schedule::Policy;

use triad_engine::testing::models::{FAMILIES, float, int8, prompt, pruned};
use triad_engine::{
    Cancel, Engine, EngineOptions, Error as EngineError, Model, Result, Session, SessionOptions,
    Threads, testing,
};
use triad_kernels::lock;

use crate::shared::{Moment, Probe};
use crate::{
    Device, Error, FailureReason, HeteroEngine, HeteroOptions, ProcessorFailure, ProcessorOptions,
    Verification, execution, verify,
};

const CHUNK: usize = 8;
const NAMES: [&str; 2] = ["cpu", "npu"];
const CPU: ProcessorId = ProcessorId::new(0);
const NPU: ProcessorId = ProcessorId::new(1);

impl HeteroEngine {
    fn set_probe(&self, probe: Option<Probe>) {
        *lock(&self.shared().probe) = probe;
    }
}

/// Returns a session of an engine on one CPU.
fn session(model: &Arc<Model>, chunk: usize) -> Session {
    Session::new(
        model,
        &SessionOptions {
            context: 64,
            chunk,
            ..SessionOptions::default()
        },
    )
    .unwrap()
}

/// Returns a CPU, and an NPU that multiplies INT8.
fn two(npu_threads: usize, device: Option<Arc<dyn Device>>) -> Vec<ProcessorOptions> {
    // If the CPU is lost, the threads that drive the NPU compute floats, too.
    let npu = Processor {
        formats: Processor::cpu("npu").formats,
        ..Processor::npu("npu", None)
    };
    let of = |description, threads, device| ProcessorOptions {
        description,
        threads: Threads::Count(threads),
        device,
        multiplier: None,
    };
    vec![
        of(Processor::cpu("cpu"), 1, None),
        of(npu, npu_threads, device),
    ]
}

fn options(policy: Policy) -> HeteroOptions {
    HeteroOptions {
        engine: of_session(64, CHUNK),
        processors: two(1, None),
        policy,
        ..HeteroOptions::default()
    }
}

/// Returns the options of an engine of this crate on the threads of the model alone.
fn one_processor() -> HeteroOptions {
    HeteroOptions {
        processors: Vec::new(),
        ..options(Policy::CriticalPath)
    }
}

/// Returns options of an engine whose sessions have this context and chunk length.
fn of_session(context: usize, chunk: usize) -> EngineOptions {
    let session = SessionOptions {
        context,
        chunk,
        ..SessionOptions::default()
    };
    EngineOptions {
        session,
        ..EngineOptions::default()
    }
}

/// Creates an engine, or returns the error that refuses it.
fn start(model: &Arc<Model>, options: HeteroOptions) -> crate::Result<HeteroEngine> {
    HeteroEngine::new(model, options, &mut |_, _| {})
}

fn engine(model: &Arc<Model>, options: HeteroOptions) -> HeteroEngine {
    start(model, options).unwrap()
}

/// Returns the engine of a session with the means of this crate.
fn hetero_engine(session: &Session) -> HeteroEngine {
    HeteroEngine::from_engine(session.engine()).expect("an engine of this crate")
}

fn with_probe(engine: HeteroEngine, probe: Probe) -> HeteroEngine {
    engine.set_probe(Some(probe));
    engine
}

fn all_logits(mut session: Session, tokens: &[u32]) -> Vec<f32> {
    session.prefill_all_logits(tokens, &Cancel::new()).unwrap()
}

/// Returns an engine of every policy on two processors, and one with a single processor.
fn engines(model: &Arc<Model>) -> impl Iterator<Item = (String, HeteroEngine)> {
    let two_each = Policy::ALL
        .into_iter()
        .map(|policy| (format!("{policy:?}"), engine(model, options(policy))));
    let one = HeteroOptions {
        processors: two(1, None).drain(..1).collect(),
        ..options(Policy::Fifo)
    };
    let three = HeteroOptions {
        processors: two(2, None),
        chunks_in_flight: 2,
        ..options(Policy::Paper)
    };
    two_each.chain([
        ("alone".into(), engine(model, one)),
        ("three".into(), engine(model, three)),
    ])
}

/// Returns whether no processor was left to run a request.
fn is_of_processors(error: &EngineError) -> bool {
    matches!(Error::from_engine(error), Some(Error::Processors { .. }))
}

fn failures(session: &Session) -> &[ProcessorFailure] {
    &execution(session).unwrap().failures
}

#[test]
fn every_policy_and_processor_set_gives_the_logits_of_the_sequential_pass() {
    for family in FAMILIES {
        for model in [
            float(family),
            int8(family),
            Arc::new(testing::quantize_int4(&float(family))),
        ] {
            for length in [1, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK / 2] {
                let tokens = prompt(&model, length);
                let expected = all_logits(session(&model, CHUNK), &tokens);
                let mut sequential = session(&model, CHUNK);
                let last = sequential
                    .prefill(&tokens, &Cancel::new(), |_| {})
                    .unwrap()
                    .to_vec();
                for (name, engine) in engines(&model) {
                    let mut executed = engine.session();
                    hetero_engine(&executed).plan_ahead(length);
                    let all = executed
                        .prefill_all_logits(&tokens, &Cancel::new())
                        .unwrap();
                    assert!(all == expected, "{family}, {name}, {length} tokens");
                    executed.truncate(0);
                    let mut reported = 0;
                    let logits = executed
                        .prefill(&tokens, &Cancel::new(), |done| reported = done)
                        .unwrap();
                    assert!(
                        logits == last,
                        "{family}, {name}, {length} tokens: the last"
                    );
                    assert_eq!(reported, length);
                    assert_eq!(executed.tokens(), tokens);
                    // It also decodes as the sequential session does.
                    let next = executed.decode(3, &Cancel::new()).unwrap().to_vec();
                    let mut sequential = session(&model, CHUNK);
                    sequential.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
                    assert!(
                        next == sequential.decode(3, &Cancel::new()).unwrap(),
                        "{family}, {name}: decode"
                    );
                }
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
    let expected = run(session(&model, 5));
    for (name, engine) in engines(&model) {
        assert!(run(engine.session()) == expected, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_delays_change_no_bit(delays in prop::collection::vec(0u64..400, 16), in_flight in 1usize..6, policy in 0usize..6) {
        let model = int8("qwen2");
        let tokens = prompt(&model, 45);
        let expected = all_logits(session(&model, CHUNK), &tokens);
        let next = AtomicUsize::new(0);
        let probe: Probe = Arc::new(move |_, _| {
            let delay = delays[next.fetch_add(1, Ordering::Relaxed) % delays.len()];
            std::thread::sleep(Duration::from_micros(delay));
            Ok(())
        });
        let options = HeteroOptions { chunks_in_flight: in_flight, ..options(Policy::ALL[policy]) };
        let engine = with_probe(engine(&model, options), probe);
        engine.plan_ahead(tokens.len());
        prop_assert!(all_logits(engine.session(), &tokens) == expected);
    }
}

/// Returns a probe that fails at the `at`-th moment of a processor.
fn failing(processor: ProcessorId, at: usize, fail: fn() -> Result<()>) -> Probe {
    let count = AtomicUsize::new(0);
    Arc::new(move |of, _| {
        let fails = of == processor.index() && count.fetch_add(1, Ordering::Relaxed) == at;
        if fails { fail() } else { Ok(()) }
    })
}

fn error() -> Result<()> {
    let reason = FailureReason::Panic("unplugged".into());
    let failure = ProcessorFailure {
        processor: "test".into(),
        task: None,
        reason,
    };
    Err(Error::Processor(Box::new(failure)).into())
}

fn panic() -> Result<()> {
    // Does not print the message of a panic.
    std::panic::resume_unwind(Box::new("unplugged"))
}

#[test]
fn a_processor_lost_at_any_step_changes_no_bit() {
    let model = int8("gemma3");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let engine_of = |policy| engine(&model, options(policy));
    let (graph, shadows) = {
        let engine = engine_of(Policy::Fifo);
        (engine.graph(), engine.tasks().shadows.clone())
    };
    // Each task has two moments, one before and one after it; there are three chunks.
    let int8 = graph
        .subgraphs()
        .iter()
        .filter(|subgraph| subgraph.role.format() == Format::Int8)
        .count();
    let others = graph.subgraphs().len() - int8 + shadows.iter().flatten().count();
    assert!(
        shadows.iter().flatten().count() > 0,
        "some shadows are tasks"
    );
    for (processor, tasks) in [(CPU, others), (NPU, int8)] {
        for at in 0..2 * 3 * tasks {
            let fail = if at % 2 == 0 { error } else { panic };
            let policy = Policy::ALL[at % Policy::ALL.len()];
            let mut session = with_probe(engine_of(policy), failing(processor, at, fail)).session();
            hetero_engine(&session).plan_ahead(tokens.len());
            let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(logits == expected, "{processor:?} at {at}");
            let [failure] = failures(&session) else {
                panic!("{processor:?} at {at}: {:?}", failures(&session))
            };
            assert!(
                failure.processor == NAMES[processor.index()]
                    && failure.reason.to_string().contains("unplugged"),
                "{failure:?}"
            );
            session.truncate(0);
            let again = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(again == expected, "the next prompt has both again");
            assert!(failures(&session).is_empty());
        }
    }
}

#[test]
fn when_all_processors_fail_the_error_has_the_failure_of_each() {
    let model = int8("llama");
    let mut session = with_probe(
        engine(&model, options(Policy::Paper)),
        Arc::new(|_, _| error()),
    )
    .session();
    let error = session
        .prefill(&prompt(&model, 30), &Cancel::new(), |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error
            .starts_with("no processor is left to run the prompt: the CPU: the TEST: it panicked: unplugged; the NPU:"),
        "{error}"
    );
    assert!(session.tokens().is_empty());
    hetero_engine(&session).set_probe(None);
    session
        .prefill(&prompt(&model, 30), &Cancel::new(), |_| {})
        .unwrap();
}

#[test]
fn a_processor_that_hangs_is_left_alone() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let hangs = Arc::new(AtomicBool::new(true));
    let (probe_hangs, begun) = (Arc::clone(&hangs), AtomicUsize::new(0));
    let probe: Probe = Arc::new(move |processor, moment| {
        if processor == NPU.index()
            && moment == Moment::Before
            && begun.fetch_add(1, Ordering::Relaxed) == 4
        {
            while probe_hangs.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    });
    let options = HeteroOptions {
        time_out: Duration::from_millis(300),
        ..options(Policy::CriticalPath)
    };
    let mut session = with_probe(engine(&model, options), probe).session();
    for _ in 0..2 {
        session.truncate(0);
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
        assert_eq!(
            failures(&session).len(),
            1,
            "lost, and still away from the next prompt"
        );
    }
    hangs.store(false, Ordering::Relaxed);
    // As soon as it has returned, it is used again.
    while !failures(&session).is_empty() {
        session.truncate(0);
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
    }
}

#[test]
fn a_cancelled_prompt_keeps_whole_chunks_and_goes_on_from_there() {
    let model = int8("llama");
    let tokens = prompt(&model, 50);
    let expected = session(&model, CHUNK)
        .prefill(&tokens, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    let tasks = 6 * model.description().blocks.len() * 7;
    for stop_after in (0..tasks).step_by(5) {
        let (cancel, begun) = (Cancel::new(), AtomicUsize::new(0));
        let cancelled = cancel.clone();
        let probe: Probe = Arc::new(move |_, moment| {
            if moment == Moment::Before && begun.fetch_add(1, Ordering::Relaxed) == stop_after {
                cancelled.cancel();
            }
            Ok(())
        });
        let mut session = with_probe(engine(&model, options(Policy::Fifo)), probe).session();
        let result = session
            .prefill(&tokens, &cancel, |_| {})
            .map(<[f32]>::to_vec);
        cancel.reset();
        let done = session.tokens().len();
        let logits = match result {
            // The last task had already begun.
            Ok(logits) => logits,
            Err(error) => {
                assert!(matches!(error, EngineError::Cancelled), "{error}");
                assert!(done < tokens.len() && done.is_multiple_of(CHUNK), "{done}");
                session
                    .prefill(&tokens[done..], &cancel, |_| {})
                    .unwrap()
                    .to_vec()
            }
        };
        assert!(
            logits == expected,
            "stopped after {stop_after} tasks, {done} tokens"
        );
    }
}

#[test]
fn a_panic_of_who_listens_ends_the_run() {
    let model = int8("llama");
    let tokens = prompt(&model, 40);
    for options in [options(Policy::Paper), one_processor()] {
        let mut session = engine(&model, options).session();
        let listen = std::panic::AssertUnwindSafe(|| {
            let listener = |_| std::panic::resume_unwind(Box::new("enough"));
            session
                .prefill(&tokens, &Cancel::new(), listener)
                .map(<[f32]>::len)
        });
        std::panic::catch_unwind(listen).unwrap_err();
        assert!(session.tokens().is_empty());
        let logits = session
            .prefill(&tokens, &Cancel::new(), |_| {})
            .unwrap()
            .to_vec();
        let mut fresh = self::session(&model, CHUNK);
        assert!(logits == fresh.prefill(&tokens, &Cancel::new(), |_| {}).unwrap());
    }
}

#[test]
fn an_engine_with_another_executor_has_no_processors_and_no_executions() {
    let model = int8("llama");
    let mut session = session(&model, CHUNK);
    assert!(HeteroEngine::from_engine(session.engine()).is_none());
    let tokens = prompt(&model, 30);
    session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
    assert!(execution(&session).is_none());
}

#[test]
fn a_timeline_has_every_task_where_it_ran() {
    let model = Arc::new(testing::quantize_dynamic(&float("llama")));
    let tokens = prompt(&model, 30);
    let mut session = engine(&model, options(Policy::CriticalPath)).session();
    session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
    let execution = execution(&session).unwrap();
    let (graph, tasks) = (&execution.graph, &execution.tasks);
    let mut of_task = vec![None; tasks.tasks.len()];
    assert_eq!(
        of_task.len(),
        graph.tasks().count(),
        "nothing is cut, and dynamic scales have no shadows apart"
    );
    for event in execution.timeline.events() {
        assert!(of_task[event.task].replace(*event).is_none());
        let role = graph.subgraphs()[tasks.tasks[event.task].task.subgraph].role;
        assert_eq!(
            event.processor,
            if role.format() == Format::Int8 {
                NPU
            } else {
                CPU
            }
        );
    }
    let of_task: Vec<_> = of_task.into_iter().map(Option::unwrap).collect();
    for (number, task) in graph.tasks().enumerate() {
        let ends = |need: Task| {
            tasks
                .pieces(need.chunk, need.subgraph)
                .map(|number| of_task[number].end)
        };
        assert!(
            graph
                .dependencies(task)
                .flat_map(ends)
                .all(|end| end <= of_task[number].start),
            "{task:?}"
        );
    }
    let costs = hetero_engine(&session).costs();
    assert_eq!(costs.seen().count(), 6, "each role on its processor");
    assert!(costs.seconds("npu", graph, &tasks.tasks[5], 0).unwrap() > 0.0);
}

#[test]
fn no_chunk_in_flight_is_refused() {
    let refused = start(
        &int8("llama"),
        HeteroOptions {
            chunks_in_flight: 0,
            ..options(Policy::Fifo)
        },
    );
    let error = refused.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the number of chunks in flight is 0, expected at least 1"
    );
}

fn verified(engine: &HeteroEngine) -> Verification {
    verify(engine, 0.0, &Cancel::new(), &mut |_, _| {}).unwrap()
}

#[test]
fn verify_finds_nothing_where_nothing_is_wrong() {
    let verification = verified(&engine(&int8("qwen2"), options(Policy::Fifo)));
    assert_eq!(verification.comparisons.len(), 5 * Policy::ALL.len());
    assert_eq!(verification.failures().count(), 0);
}

#[test]
fn verify_reports_a_processor_that_was_lost_on_the_way() {
    let engine = with_probe(
        engine(&int8("llama"), options(Policy::Fifo)),
        failing(NPU, 3, error),
    );
    let verification = verified(&engine);
    let lost: Vec<_> = verification
        .failures()
        .map(|comparison| (comparison.failed_processors, comparison.difference))
        .collect();
    assert_eq!(lost, [(1, 0.0)]);
}

#[test]
fn a_prompt_follows_the_order_that_was_planned_for_it_and_another_policy_serves_until_then() {
    let model = int8("llama");
    let tokens = prompt(&model, 5 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let engine = engine(&model, options(Policy::Planned));
    let policies = |expected_policy| {
        let mut session = engine.session();
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
        assert_eq!(execution(&session).unwrap().policy, expected_policy);
    };
    policies(Policy::CriticalPath);
    engine.plan_ahead(tokens.len());
    policies(Policy::Planned);
    engine.set_policy(Policy::Fifo);
    policies(Policy::Fifo);
}

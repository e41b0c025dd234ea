//! Any policy, any processors, whoever fails: the logits of one processor alone, bit for bit.

mod ends;
mod prefixes;
mod save;
mod sequences;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_plan::graph::{Role, Task};
use triad_plan::processors::{Processor as Description, ProcessorId};
use triad_plan::schedule::Policy;
use triad_processors::{Processor, Program, Subgraph};

use super::{Engine, EngineOptions, Moment, Output, Probe, ProcessorOptions, Products, Programs, Verification, verify};
use crate::error::{Error, Result};
use crate::linear::Kernels;
use crate::linear_input::LinearInput;
use crate::quantize::DecodeWeights;
use crate::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads, testing};

const FAMILIES: [&str; 5] = ["llama", "qwen2", "gemma3", "phi2", "phi3"];
const CHUNK: usize = 8;
const NAMES: [&str; 2] = ["cpu", "npu"];
const CPU: ProcessorId = ProcessorId::new(0);
const NPU: ProcessorId = ProcessorId::new(1);

fn float(family: &str) -> Arc<Model> {
    let path = format!("{}/../../tests/golden/families/{family}", env!("CARGO_MANIFEST_DIR"));
    Arc::new(Model::load(path.as_ref(), &LoadOptions { threads: Threads::Count(1) }).unwrap())
}

/// With half of its shadows.
fn int8(family: &str) -> Arc<Model> {
    pruned(family, 0.5)
}

/// Without the least important `rate` of its shadows.
fn pruned(family: &str, rate: f64) -> Arc<Model> {
    let model = float(family);
    Arc::new(testing::quantize(&model, &prompt(&model, 40), rate, DecodeWeights::Int8))
}

fn prompt(model: &Model, length: usize) -> Vec<u32> {
    let vocab = model.description().vocab;
    (0..length).map(|index| ((index * index * 7 + index * 13) % vocab) as u32).collect()
}

/// On the model's threads alone.
fn session(model: &Arc<Model>, chunk: usize) -> Session {
    Session::new(model, &SessionOptions { context: 64, chunk, ..SessionOptions::default() }).unwrap()
}

/// A CPU, and what multiplies INT8 beside it.
fn two(npu_threads: usize, products: Option<Box<dyn Products>>) -> Vec<ProcessorOptions> {
    // Threads that drive an NPU compute floats, too, where the CPU is lost.
    let npu = Description { formats: Description::cpu("npu").formats, ..Description::npu("npu", None) };
    let of =
        |description, threads, products| ProcessorOptions { description, threads: Threads::Count(threads), products };
    vec![of(Description::cpu("cpu"), 1, None), of(npu, npu_threads, products)]
}

fn options(policy: Policy) -> EngineOptions {
    let session = SessionOptions { context: 64, chunk: CHUNK, ..SessionOptions::default() };
    EngineOptions { session, processors: two(1, None), policy, ..EngineOptions::default() }
}

fn engine(model: &Arc<Model>, options: EngineOptions) -> Engine {
    Engine::new(model, options).unwrap()
}

fn with_products(model: &Arc<Model>, policy: Policy, products: Box<dyn Products>) -> Engine {
    engine(model, EngineOptions { processors: two(1, Some(products)), ..options(policy) })
}

fn with_probe(engine: Engine, probe: Probe) -> Engine {
    engine.set_probe(Some(probe));
    engine
}

fn all_logits(mut session: Session, tokens: &[u32]) -> Vec<f32> {
    session.prefill_all_logits(tokens, &Cancel::new()).unwrap()
}

/// Of every policy on two processors, and of one processor alone.
fn engines(model: &Arc<Model>) -> impl Iterator<Item = (String, Engine)> {
    let two_each = Policy::ALL.into_iter().map(|policy| (format!("{policy:?}"), engine(model, options(policy))));
    let one = EngineOptions { processors: two(1, None).drain(..1).collect(), ..options(Policy::Fifo) };
    let three = EngineOptions { processors: two(2, None), chunks_in_flight: 2, ..options(Policy::Paper) };
    two_each.chain([("alone".into(), engine(model, one)), ("three".into(), engine(model, three))])
}

fn losses(session: &Session) -> &[super::Loss] {
    &session.execution().unwrap().losses
}

#[test]
fn every_policy_and_processor_set_gives_the_logits_of_the_sequential_pass() {
    for family in FAMILIES {
        for model in [float(family), int8(family)] {
            for length in [1, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK / 2] {
                let tokens = prompt(&model, length);
                let expected = all_logits(session(&model, CHUNK), &tokens);
                let mut sequential = session(&model, CHUNK);
                let last = sequential.prefill(&tokens, &Cancel::new(), |_| {}).unwrap().to_vec();
                for (name, engine) in engines(&model) {
                    let mut executed = engine.session();
                    let all = executed.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                    assert!(all == expected, "{family}, {name}, {length} tokens");
                    executed.truncate(0);
                    let mut told = 0;
                    let logits = executed.prefill(&tokens, &Cancel::new(), |done| told = done).unwrap();
                    assert!(logits == last, "{family}, {name}, {length} tokens: the last");
                    assert_eq!(told, length);
                    assert_eq!(executed.tokens(), tokens);
                    // And goes on as the other does.
                    let next = executed.decode(3, &Cancel::new()).unwrap().to_vec();
                    let mut sequential = session(&model, CHUNK);
                    sequential.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
                    assert!(next == sequential.decode(3, &Cancel::new()).unwrap(), "{family}, {name}: decode");
                }
            }
        }
    }
}

#[test]
fn programs_of_a_processor_give_the_logits_of_the_sequential_pass() {
    let pool = Arc::new(triad_kernels::pool::Pool::new(1).unwrap());
    let processor = triad_processors::cpu::Cpu::new(pool);
    for family in FAMILIES {
        let model = int8(family);
        let tokens = prompt(&model, 7 * CHUNK / 2);
        let mut blocks = 0;
        let products = Programs::prepare(&model, &processor, CHUNK, |done| blocks = done).unwrap();
        assert_eq!(blocks, model.description().blocks.len());
        let executed = all_logits(with_products(&model, Policy::CriticalPath, Box::new(products)).session(), &tokens);
        assert!(executed == all_logits(session(&model, CHUNK), &tokens), "{family}");
        let refused = Programs::prepare(&float(family), &processor, CHUNK, |_| {}).err().unwrap().to_string();
        let expected = "cpu does not run the feed-forward of block 0: it computes in float: expected a package, whose \
                        layers read INT8 with a scale that is known before";
        assert_eq!(refused, expected);
    }
}

/// Our kernels as a device that keeps what it prepared, and may vanish.
struct Stand {
    cpu: triad_processors::cpu::Cpu,
    prepared: Mutex<Vec<Subgraph>>,
    vanishes: Option<Arc<Vanishing>>,
}

/// All programs of a device fail from some run on.
struct Vanishing {
    after: usize,
    runs: AtomicUsize,
    fail: Box<dyn Fn() -> triad_processors::Result<()> + Send + Sync>,
}

struct VanishingProgram {
    program: Box<dyn Program>,
    of: Arc<Vanishing>,
}

impl Stand {
    fn new(vanishes: Option<Arc<Vanishing>>) -> Self {
        let pool = Arc::new(triad_kernels::pool::Pool::new(1).unwrap());
        Self { cpu: triad_processors::cpu::Cpu::new(pool), prepared: Mutex::default(), vanishes }
    }

    /// As the NPU of `options`.
    fn options(&self, model: &Model, options: EngineOptions) -> EngineOptions {
        let products = Box::new(Programs::prepare(model, self, CHUNK, |_| {}).unwrap());
        EngineOptions { processors: two(1, Some(products)), ..options }
    }
}

impl Program for VanishingProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> triad_processors::Result<()> {
        self.program.run(input, outputs)?;
        if self.of.runs.fetch_add(1, Ordering::Relaxed) < self.of.after {
            return Ok(());
        }
        outputs.iter_mut().for_each(|out| out.fill(7.0));
        (self.of.fail)()
    }
}

impl Processor for Stand {
    fn name(&self) -> &str {
        self.cpu.name()
    }

    fn capabilities(&self) -> &triad_processors::Capabilities {
        self.cpu.capabilities()
    }

    fn prepare(&self, subgraph: &Subgraph, rows: usize) -> triad_processors::Result<Box<dyn Program>> {
        self.prepared.lock().unwrap().push(subgraph.clone());
        let program = self.cpu.prepare(subgraph, rows)?;
        Ok(match &self.vanishes {
            Some(of) => Box::new(VanishingProgram { program, of: Arc::clone(of) }),
            None => program,
        })
    }
}

#[test]
fn a_feed_forward_is_one_program_unless_its_shadow_is_added_within_it() {
    for (family, rate) in FAMILIES.into_iter().flat_map(|family| [0.0, 0.3, 0.5, 0.7, 1.0].map(|rate| (family, rate))) {
        let model = pruned(family, rate);
        let stand = Stand::new(None);
        let options = stand.options(&model, options(Policy::Fifo));
        let mut prepared = stand.prepared.into_inner().unwrap().into_iter();
        for block in &model.weights().blocks {
            let inputs = block.inputs.as_ref().unwrap();
            let [gate_up, down] = [LinearInput::FeedForward, LinearInput::Down].map(|input| &inputs[input.index()]);
            let of_block = prepared.by_ref().take(if gate_up.has_shadow() { 4 } else { 3 });
            let mut feed_forwards = of_block.filter_map(|subgraph| match subgraph {
                Subgraph::FeedForward(feed_forward) => Some(feed_forward),
                Subgraph::Linear(_) => None,
            });
            let feed_forward = feed_forwards.next();
            assert_eq!((feed_forward.is_some(), feed_forwards.count()), (!gate_up.has_shadow(), 0), "{family}, {rate}");
            if let Some(feed_forward) = feed_forward {
                assert_eq!(feed_forward.return_inner, down.has_shadow(), "returned for the shadow alone");
                assert_eq!(feed_forward.smoothing.as_deref(), down.smoothing());
            }
        }
        assert_eq!(prepared.count(), 0, "{family}, {rate}");
        let tokens = prompt(&model, 7 * CHUNK / 2);
        let executed = all_logits(engine(&model, options).session(), &tokens);
        assert!(executed == all_logits(session(&model, CHUNK), &tokens), "{family}, {rate}");
    }
}

#[test]
fn a_later_prompt_goes_on_behind_an_earlier_one() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let run = |mut session: Session| {
        session.prefill(&tokens[..13], &Cancel::new(), |_| {}).unwrap();
        session.prefill(&tokens[13..], &Cancel::new(), |_| {}).unwrap().to_vec()
    };
    let expected = run(session(&model, 5));
    for (name, engine) in engines(&model) {
        assert!(run(engine.session()) == expected, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_delays_change_no_bit(delays in prop::collection::vec(0u64..400, 16), in_flight in 1usize..6, policy in 0usize..5) {
        let model = int8("qwen2");
        let tokens = prompt(&model, 45);
        let expected = all_logits(session(&model, CHUNK), &tokens);
        let next = AtomicUsize::new(0);
        let probe: Probe = Arc::new(move |_, _| {
            let delay = delays[next.fetch_add(1, Ordering::Relaxed) % delays.len()];
            std::thread::sleep(Duration::from_micros(delay));
            Ok(())
        });
        let options = EngineOptions { chunks_in_flight: in_flight, ..options(Policy::ALL[policy]) };
        let engine = with_probe(engine(&model, options), probe);
        prop_assert!(all_logits(engine.session(), &tokens) == expected);
    }
}

/// Fails at the `at`-th moment of a processor.
fn failing(processor: ProcessorId, at: usize, fail: fn() -> Result<()>) -> Probe {
    let count = AtomicUsize::new(0);
    Arc::new(move |of, _| {
        let fails = of == processor.index() && count.fetch_add(1, Ordering::Relaxed) == at;
        if fails { fail() } else { Ok(()) }
    })
}

fn error() -> Result<()> {
    Err(Error::Processor { processor: "test".into(), reason: "unplugged".into() })
}

fn panic() -> Result<()> {
    // Without the message that a panic prints.
    std::panic::resume_unwind(Box::new("unplugged"))
}

#[test]
fn a_processor_lost_at_any_step_changes_no_bit() {
    let model = int8("gemma3");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    // Each task has two moments, one before it and one behind it.
    let moments = 2 * 3 * 3 * model.description().blocks.len();
    for processor in [CPU, NPU] {
        for at in 0..moments {
            let fail = if at % 2 == 0 { error } else { panic };
            let policy = Policy::ALL[at % Policy::ALL.len()];
            let mut session = with_probe(engine(&model, options(policy)), failing(processor, at, fail)).session();
            let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(logits == expected, "{processor:?} at {at}");
            let [loss] = losses(&session) else { panic!("{processor:?} at {at}: {:?}", losses(&session)) };
            assert!(loss.processor == NAMES[processor.index()] && loss.reason.contains("unplugged"), "{loss:?}");
            session.truncate(0);
            let again = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            assert!(again == expected, "the next prompt has both again");
            assert!(losses(&session).is_empty());
        }
    }
}

#[test]
fn when_all_processors_fail_the_error_says_what_happened_to_each() {
    let model = int8("llama");
    let mut session = with_probe(engine(&model, options(Policy::Paper)), Arc::new(|_, _| error())).session();
    let error = session.prefill(&prompt(&model, 30), &Cancel::new(), |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("no processor is left to run the prompt: the CPU: test: unplugged; the NPU:"), "{error}");
    assert!(session.tokens().is_empty());
    session.engine().set_probe(None);
    session.prefill(&prompt(&model, 30), &Cancel::new(), |_| {}).unwrap();
}

#[test]
fn a_processor_that_hangs_is_left_alone() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let hangs = Arc::new(AtomicBool::new(true));
    let (probe_hangs, begun) = (Arc::clone(&hangs), AtomicUsize::new(0));
    let probe: Probe = Arc::new(move |processor, moment| {
        if processor == NPU.index() && moment == Moment::Before && begun.fetch_add(1, Ordering::Relaxed) == 4 {
            while probe_hangs.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    });
    let options = EngineOptions { time_out: Duration::from_millis(300), ..options(Policy::CriticalPath) };
    let mut session = with_probe(engine(&model, options), probe).session();
    for _ in 0..2 {
        session.truncate(0);
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
        assert_eq!(losses(&session).len(), 1, "lost, and still away from the next prompt");
    }
    hangs.store(false, Ordering::Relaxed);
    // As soon as it is back it works again.
    while !losses(&session).is_empty() {
        session.truncate(0);
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
    }
}

#[test]
fn a_cancelled_prompt_keeps_whole_chunks_and_goes_on_from_there() {
    let model = int8("llama");
    let tokens = prompt(&model, 50);
    let expected = session(&model, CHUNK).prefill(&tokens, &Cancel::new(), |_| {}).unwrap().to_vec();
    let tasks = 6 * model.description().blocks.len() * 7;
    for stop_after in (0..tasks).step_by(5) {
        let (cancel, begun) = (Cancel::new(), AtomicUsize::new(0));
        let asked = cancel.clone();
        let probe: Probe = Arc::new(move |_, moment| {
            if moment == Moment::Before && begun.fetch_add(1, Ordering::Relaxed) == stop_after {
                asked.cancel();
            }
            Ok(())
        });
        let mut session = with_probe(engine(&model, options(Policy::Fifo)), probe).session();
        let result = session.prefill(&tokens, &cancel, |_| {}).map(<[f32]>::to_vec);
        cancel.reset();
        let done = session.tokens().len();
        let logits = match result {
            // The last task was on its way.
            Ok(logits) => logits,
            Err(error) => {
                assert!(matches!(error, Error::Cancelled), "{error}");
                assert!(done < tokens.len() && done.is_multiple_of(CHUNK), "{done}");
                session.prefill(&tokens[done..], &cancel, |_| {}).unwrap().to_vec()
            }
        };
        assert!(logits == expected, "stopped after {stop_after} tasks, {done} tokens");
    }
}

#[test]
fn a_panic_of_who_listens_ends_the_run() {
    let model = int8("llama");
    let tokens = prompt(&model, 40);
    let mut session = engine(&model, options(Policy::Paper)).session();
    let listen = std::panic::AssertUnwindSafe(|| {
        let listener = |_| std::panic::resume_unwind(Box::new("enough"));
        session.prefill(&tokens, &Cancel::new(), listener).map(<[f32]>::len)
    });
    std::panic::catch_unwind(listen).unwrap_err();
    assert!(session.tokens().is_empty());
    let logits = session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap().to_vec();
    let mut fresh = self::session(&model, CHUNK);
    assert!(logits == fresh.prefill(&tokens, &Cancel::new(), |_| {}).unwrap());
}

/// Our kernels, in the place of a device's programs; fails or computes wrongly at one linear input.
struct Device {
    model: Arc<Model>,
    fails_at: Option<(usize, LinearInput)>,
    is_wrong_at: Option<(usize, LinearInput)>,
    /// The only number of rows with which it is wrong.
    wrong_rows: Option<usize>,
    /// For each product whether its input had outliers, and the threads that worked with the one that waited for it.
    seen: Arc<Mutex<Vec<(bool, usize)>>>,
}

impl Device {
    fn new(model: &Arc<Model>) -> Self {
        Self { model: Arc::clone(model), fails_at: None, is_wrong_at: None, wrong_rows: None, seen: Arc::default() }
    }
}

impl Products for Device {
    fn multiply(&mut self, block: usize, input: LinearInput, x: &QuantizedRows, outs: &mut [Output]) -> Result<()> {
        self.seen.lock().unwrap().push((x.outliers() > 0, triad_kernels::pool::threads()));
        if self.fails_at == Some((block, input)) {
            outs.iter_mut().for_each(|(_, out)| out.fill(7.0));
            return Err(Error::Processor { processor: "device".into(), reason: "out of memory".into() });
        }
        Kernels(self.model.weights()).multiply(block, input, x, outs)?;
        if self.is_wrong_at == Some((block, input)) && self.wrong_rows.is_none_or(|rows| rows == x.rows()) {
            outs[0].1[0] += 1e3;
        }
        Ok(())
    }
}

#[test]
fn programs_multiply_and_where_one_fails_the_cpu_takes_over() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let inputs = LinearInput::ALL.map(|input| Some((1, input)));
    for fails_at in inputs.into_iter().chain([None]) {
        let device = Device { fails_at, ..Device::new(&model) };
        let mut session = with_products(&model, Policy::Paper, Box::new(device)).session();
        assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected, "{fails_at:?}");
        let losses = losses(&session);
        assert_eq!(losses.len(), usize::from(fails_at.is_some()));
        assert!(losses.iter().all(|loss| loss.reason == "device: out of memory" && loss.task.is_some()));
    }
}

#[test]
fn a_device_that_vanishes_at_any_run_changes_no_bit_and_is_said() {
    let model = int8("llama");
    let tokens = prompt(&model, 3 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let unplugged = || triad_processors::Error::Run { processor: "stand".into(), reason: "unplugged".into() };
    let present = Arc::new(AtomicBool::new(false));
    let is_back = Arc::clone(&present);
    let hang = move || {
        while !is_back.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let programs = Stand::new(None);
    programs.options(&model, options(Policy::Fifo));
    let runs = 3 * programs.prepared.lock().unwrap().len();
    type Fail = Arc<dyn Fn() -> triad_processors::Result<()> + Send + Sync>;
    let fails: [(Fail, usize, &str); 3] = [
        (Arc::new(move || Err(unplugged())), 1, "unplugged"),
        (Arc::new(|| std::panic::resume_unwind(Box::new("unplugged"))), 1, "it panicked: unplugged"),
        (Arc::new(hang), 7, "it did not end a task within 0.3 s"),
    ];
    for (fail, step, reason) in fails {
        for after in (0..runs).step_by(step) {
            let fail = Arc::clone(&fail);
            let vanishing = Vanishing { after, runs: AtomicUsize::new(0), fail: Box::new(move || fail()) };
            let options = Stand::new(Some(Arc::new(vanishing))).options(&model, options(Policy::CriticalPath));
            let options = EngineOptions { time_out: Duration::from_millis(300), ..options };
            let mut session = engine(&model, options).session();
            for prompt in 0..2 {
                session.truncate(0);
                assert!(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected, "{reason}, {after}");
                let losses = losses(&session);
                assert_eq!(losses.len(), 1, "{reason}, {after}: it stays away");
                assert_eq!((losses[0].processor.as_str(), losses[0].task.is_some()), ("npu", prompt == 0 || step == 1));
                assert!(prompt > 0 || losses[0].reason.contains(reason), "{losses:?}");
            }
        }
    }
    present.store(true, Ordering::Relaxed);
}

#[test]
fn shadows_are_computed_while_a_device_multiplies() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let device = Device::new(&model);
    let seen = Arc::clone(&device.seen);
    let executed = all_logits(with_products(&model, Policy::Paper, Box::new(device)).session(), &tokens);
    assert!(executed == all_logits(session(&model, CHUNK), &tokens));
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.iter().any(|(outliers, _)| *outliers) && seen.iter().any(|(outliers, _)| !outliers));
    for (outliers, threads) in seen {
        assert_eq!(threads, if outliers { 2 } else { 1 }, "one more for a shadow");
    }
}

#[test]
fn a_timeline_has_every_task_where_it_ran() {
    let model = Arc::new(testing::quantize_dynamic(&float("llama")));
    let tokens = prompt(&model, 30);
    let mut session = engine(&model, options(Policy::CriticalPath)).session();
    session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
    let execution = session.execution().unwrap();
    let graph = &execution.graph;
    let mut of_task = vec![None; graph.tasks().count()];
    for event in execution.timeline.events() {
        assert!(of_task[event.task].replace(*event).is_none());
        let role = graph.subgraphs()[event.task % graph.subgraphs().len()].role;
        let is_int8 = matches!(role, Role::QueryKeyValue | Role::AttentionOutput | Role::FeedForward);
        assert_eq!(event.processor, if is_int8 { NPU } else { CPU });
    }
    let of_task: Vec<_> = of_task.into_iter().map(Option::unwrap).collect();
    for task in graph.tasks() {
        let number = |task: Task| task.chunk * graph.subgraphs().len() + task.subgraph;
        let start = of_task[number(task)].start;
        assert!(graph.dependencies(task).all(|need| of_task[number(need)].end <= start), "{task:?}");
    }
    assert_eq!(session.engine().costs().seen().count(), 6, "each role on its processor");
    assert!(session.engine().costs().seconds("npu", Role::FeedForward, 8, 0).unwrap() > 0.0);
}

#[test]
fn no_chunk_in_flight_is_refused() {
    let refused = Engine::new(&int8("llama"), EngineOptions { chunks_in_flight: 0, ..options(Policy::Fifo) });
    let error = refused.unwrap_err();
    assert_eq!(error.to_string(), "the number of chunks in flight is 0, expected at least 1");
}

fn verified(engine: &Engine) -> Verification {
    verify(engine, 0.0, &Cancel::new(), &mut |_, _| {}).unwrap()
}

#[test]
fn verify_finds_nothing_where_nothing_is_wrong() {
    let verification = verified(&engine(&int8("qwen2"), options(Policy::Fifo)));
    assert_eq!(verification.comparisons.len(), 5 * Policy::ALL.len());
    assert_eq!(verification.failures().count(), 0);
}

#[test]
fn verify_finds_one_wrong_chunk() {
    let model = int8("llama");
    let is_wrong_at = Some((0, LinearInput::Attention));
    let device = Device { is_wrong_at, wrong_rows: Some(4), ..Device::new(&model) };
    let verification = verified(&with_products(&model, Policy::InOrder, Box::new(device)));
    let wrong: Vec<_> = verification.failures().map(|comparison| comparison.tokens).collect();
    assert_eq!(wrong, [28; 5], "no other prompt has a chunk of 4 tokens");
}

#[test]
fn verify_finds_one_wrong_static_graph() {
    let model = int8("llama");
    for input in LinearInput::ALL {
        let products = Box::new(Device { is_wrong_at: Some((0, input)), ..Device::new(&model) });
        assert_ne!(verified(&with_products(&model, Policy::Paper, products)).failures().count(), 0, "{input:?}");
    }
}

#[test]
fn verify_reports_a_processor_that_was_lost_on_the_way() {
    let engine = with_probe(engine(&int8("llama"), options(Policy::Fifo)), failing(NPU, 3, error));
    let verification = verified(&engine);
    let lost: Vec<_> = verification.failures().map(|comparison| (comparison.losses, comparison.difference)).collect();
    assert_eq!(lost, [(1, 0.0)]);
}

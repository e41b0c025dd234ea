//! Tests of devices that run programs. The test device uses our kernels, and may fail, compute wrong results or lack
//! memory.

use std::sync::Mutex;

use triad_engine::LinearInput;
use triad_kernels::OutputMut;
use triad_kernels::int8::{Int8Weight, QuantizedView};
use triad_kernels::pool::Pool;
use triad_plan::device::DeviceProfile;
use triad_plan::graph::Role;
use triad_plan::placement::Reason;
use triad_plan::prefill::{KeptShadows, Options, Prefill};
use triad_plan::tasks::Operation;
use triad_processors::cpu::Cpu;
use triad_processors::{
    Capabilities, DeviceSubgraph, Error as DeviceError, FeedForward, FloatLinear, FloatProgram,
    Layer, Linear, Program,
};

use super::*;
use crate::shadows;

/// Called after each run of a program, with the program's number in the order of preparation.
pub(super) type OnRun = Arc<
    dyn Fn(usize, QuantizedView, &mut [OutputMut]) -> triad_processors::Result<()> + Send + Sync,
>;

/// A device with our kernels, which records what it prepared.
pub(super) struct TestDevice {
    cpu: Cpu,
    capabilities: Capabilities,
    pub(super) prepared: Mutex<Vec<DeviceSubgraph>>,
    on_run: OnRun,
    /// Bytes that it really has room for, whatever window it reports.
    room: usize,
    /// Returns the error that refuses every subgraph, if there is one.
    refusal: Option<fn() -> DeviceError>,
}

struct TestProgram {
    program: Box<dyn Program>,
    number: usize,
    on_run: OnRun,
}

impl TestDevice {
    pub(super) fn new() -> Self {
        let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
        let capabilities = cpu.capabilities().clone();
        Self {
            cpu,
            capabilities,
            prepared: Mutex::default(),
            on_run: Arc::new(|_, _, _| Ok(())),
            room: usize::MAX,
            refusal: None,
        }
    }

    /// Returns a device that has room for this many bytes.
    pub(super) fn with_room(room: usize) -> Self {
        Self {
            room,
            ..Self::new()
        }
    }

    /// Returns a device that refuses every subgraph.
    pub(super) fn refusing(refusal: fn() -> DeviceError) -> Self {
        Self {
            refusal: Some(refusal),
            ..Self::new()
        }
    }

    /// Returns a device that computes all rows of its programs.
    pub(super) fn with_static_shapes() -> Self {
        let device = Self::new();
        Self {
            capabilities: Capabilities {
                static_shapes: true,
                ..device.capabilities.clone()
            },
            ..device
        }
    }

    /// Returns a device whose copies of the weights the CPU can't read.
    pub(super) fn with_own_memory(on_run: OnRun) -> Arc<Self> {
        let device = Self {
            on_run,
            ..Self::new()
        };
        Arc::new(Self {
            capabilities: Capabilities {
                own_memory: true,
                ..device.capabilities.clone()
            },
            ..device
        })
    }

    /// Returns a device that runs no whole feed-forwards.
    pub fn with_products_alone() -> Self {
        let device = Self::new();
        Self {
            capabilities: Capabilities {
                feed_forwards: false,
                ..device.capabilities.clone()
            },
            ..device
        }
    }

    pub(super) fn on_run(on_run: OnRun) -> Arc<Self> {
        Arc::new(Self {
            on_run,
            ..Self::new()
        })
    }
}

/// A layer with its own copy of the weights.
struct Copied {
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    bias: Option<Vec<f32>>,
}

impl Layer for Copied {
    fn weight(&self) -> Int8Weight<'_> {
        let Self {
            in_features,
            packed,
            scales,
            sums,
            ..
        } = self;
        Int8Weight {
            out_features: scales.len(),
            in_features: *in_features,
            packed,
            scales,
            sums,
        }
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Returns the same subgraph with copies of the weights.
fn copied(subgraph: &DeviceSubgraph) -> DeviceSubgraph {
    let copy = |layer: &Arc<dyn Layer>| -> Arc<dyn Layer> {
        let (weight, bias) = (layer.weight(), layer.bias().map(<[f32]>::to_vec));
        let (packed, scales, sums) = (
            weight.packed.to_vec(),
            weight.scales.to_vec(),
            weight.sums.to_vec(),
        );
        Arc::new(Copied {
            in_features: weight.in_features,
            packed,
            scales,
            sums,
            bias,
        })
    };
    match subgraph {
        DeviceSubgraph::Linear(Linear {
            input_scale,
            layers,
        }) => DeviceSubgraph::Linear(Linear {
            input_scale: *input_scale,
            layers: layers.iter().map(copy).collect(),
        }),
        DeviceSubgraph::FeedForward(whole) => DeviceSubgraph::FeedForward(FeedForward {
            up: copy(&whole.up),
            gate: whole.gate.as_ref().map(copy),
            down: copy(&whole.down),
            ..whole.clone()
        }),
    }
}

impl Program for TestProgram {
    fn run(
        &mut self,
        input: QuantizedView,
        outputs: &mut [OutputMut],
    ) -> triad_processors::Result<()> {
        self.program.run(input, outputs)?;
        (self.on_run)(self.number, input, outputs)
    }
}

impl Device for TestDevice {
    fn name(&self) -> &str {
        "test"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(
        &self,
        subgraph: &DeviceSubgraph,
        rows: usize,
    ) -> triad_processors::Result<Box<dyn Program>> {
        if let Some(refusal) = self.refusal {
            return Err(refusal());
        }
        let mut prepared = self.prepared.lock().unwrap();
        let used: usize = prepared.iter().map(|other| other.bytes(CHUNK)).sum();
        let needed = subgraph.bytes(CHUNK);
        if used + needed > self.room {
            let (processor, free) = ("test".into(), self.room - used);
            return Err(DeviceError::WindowFull {
                processor,
                needed,
                free,
                window: self.room,
            });
        }
        let program = match self.capabilities.own_memory {
            true => self.cpu.prepare(&copied(subgraph), rows)?,
            false => self.cpu.prepare(subgraph, rows)?,
        };
        let number = prepared.len();
        prepared.push(subgraph.clone());
        Ok(Box::new(TestProgram {
            program,
            number,
            on_run: Arc::clone(&self.on_run),
        }))
    }

    fn prepare_floats(
        &self,
        linear: &FloatLinear,
        rows: usize,
    ) -> triad_processors::Result<Box<dyn FloatProgram>> {
        self.cpu.prepare_floats(linear, rows)
    }
}

pub(super) fn with_device(device: &Arc<TestDevice>, options: HeteroOptions) -> HeteroOptions {
    HeteroOptions {
        processors: two(1, Some(Arc::clone(device) as Arc<dyn Device>)),
        ..options
    }
}

pub(super) fn unplugged() -> DeviceError {
    DeviceError::Run {
        processor: "test".into(),
        reason: "unplugged".into(),
    }
}

#[test]
fn programs_of_a_device_give_the_logits_of_the_sequential_pass() {
    for family in FAMILIES {
        let model = int8(family);
        let tokens = prompt(&model, 7 * CHUNK / 2);
        let (device, mut reported) = (Arc::new(TestDevice::new()), (0, 0));
        let with_test_device = with_device(&device, options(Policy::CriticalPath));
        let engine = HeteroEngine::new(&model, with_test_device, &mut |done, all| {
            reported = (done, all);
        })
        .unwrap();
        assert_eq!(
            reported,
            (
                engine.graph().subgraphs().len(),
                engine.graph().subgraphs().len()
            )
        );
        assert!(
            all_logits(engine.session(), &tokens) == all_logits(session(&model, CHUNK), &tokens),
            "{family}"
        );
    }
}

#[test]
fn a_device_that_runs_no_whole_feed_forwards_gets_their_products() {
    for family in FAMILIES {
        let model = int8(family);
        let tokens = prompt(&model, 2 * CHUNK + 3);
        let device = Arc::new(TestDevice::with_products_alone());
        let engine = engine(&model, with_device(&device, options(Policy::CriticalPath)));
        let prepared = device.prepared.lock().unwrap();
        // Query, key and value; attention's output; gate and up; down.
        assert_eq!(prepared.len(), 4 * model.description().blocks.len());
        let is_products = |subgraph: &DeviceSubgraph| matches!(subgraph, DeviceSubgraph::Linear(_));
        assert!(prepared.iter().all(is_products), "{family}");
        drop(prepared);
        assert!(
            all_logits(engine.session(), &tokens) == all_logits(session(&model, CHUNK), &tokens),
            "{family}"
        );
    }
}

#[test]
fn a_feed_forward_is_one_program_unless_its_shadow_is_added_within_it() {
    for (family, rate) in FAMILIES
        .into_iter()
        .flat_map(|family| [0.0, 0.3, 0.5, 0.7, 1.0].map(|rate| (family, rate)))
    {
        let model = pruned(family, rate);
        let device = Arc::new(TestDevice::new());
        let executed = all_logits(
            engine(&model, with_device(&device, options(Policy::Fifo))).session(),
            &prompt(&model, 28),
        );
        assert!(
            executed == all_logits(session(&model, CHUNK), &prompt(&model, 28)),
            "{family}, {rate}"
        );
        let prepared = device.prepared.lock().unwrap();
        let mut prepared = prepared.iter();
        let inputs = || {
            model
                .weights()
                .blocks
                .iter()
                .map(|block| block.inputs.as_ref().unwrap())
        };
        // Feed-forwards come first, block after block.
        for inputs in inputs() {
            let [gate_up, down] =
                [LinearInput::FeedForward, LinearInput::Down].map(|input| &inputs[input.index()]);
            match (gate_up.has_shadow(), prepared.next().unwrap()) {
                (false, DeviceSubgraph::FeedForward(feed_forward)) => {
                    assert_eq!(
                        feed_forward.return_inner,
                        down.has_shadow(),
                        "returned for the shadow alone"
                    );
                    assert_eq!(feed_forward.smoothing.as_deref(), down.smoothing());
                }
                (true, DeviceSubgraph::Linear(_)) => {
                    assert!(
                        matches!(prepared.next(), Some(DeviceSubgraph::Linear(_))),
                        "{family}, {rate}: down"
                    );
                }
                _ => panic!("{family}, {rate}"),
            }
        }
        assert_eq!(
            prepared.count(),
            2 * inputs().count(),
            "{family}, {rate}: of attention"
        );
    }
}

#[test]
fn where_a_program_fails_the_cpu_takes_over() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let count = {
        let device = Arc::new(TestDevice::new());
        engine(&model, with_device(&device, options(Policy::Fifo)));
        device.prepared.lock().unwrap().len()
    };
    for fails_at in 0..=count {
        let device = TestDevice::on_run(Arc::new(move |number, _, outs| {
            if number != fails_at {
                return Ok(());
            }
            outs.iter_mut().for_each(|out| out.fill(7.0));
            Err(unplugged())
        }));
        let mut session = engine(&model, with_device(&device, options(Policy::Paper))).session();
        assert!(
            session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
            "{fails_at:?}"
        );
        let failures = failures(&session);
        assert_eq!(failures.len(), usize::from(fails_at < count));
        for failure in failures {
            assert!(
                failure
                    .reason
                    .to_string()
                    .ends_with("test failed: unplugged")
                    && failure.task.is_some(),
                "{failure}"
            );
        }
    }
}

#[test]
fn a_device_that_vanishes_at_any_run_changes_no_bit_and_is_reported() {
    let model = int8("llama");
    let tokens = prompt(&model, 3 * CHUNK);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let present = Arc::new(AtomicBool::new(false));
    let is_back = Arc::clone(&present);
    let hang = move || {
        while !is_back.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let device = Arc::new(TestDevice::new());
    engine(&model, with_device(&device, options(Policy::Fifo)));
    let runs = 3 * device.prepared.lock().unwrap().len();
    type Fail = Arc<dyn Fn() -> triad_processors::Result<()> + Send + Sync>;
    let fails: [(Fail, usize, &str); 3] = [
        (Arc::new(move || Err(unplugged())), 1, "unplugged"),
        (
            Arc::new(|| std::panic::resume_unwind(Box::new("unplugged"))),
            1,
            "it panicked: unplugged",
        ),
        (Arc::new(hang), 7, "it did not end a task within 0.3 s"),
    ];
    for (fail, step, reason) in fails {
        for after in (0..runs).step_by(step) {
            let (fail, ran) = (Arc::clone(&fail), AtomicUsize::new(0));
            let device = TestDevice::on_run(Arc::new(move |_, _, outs| {
                if ran.fetch_add(1, Ordering::Relaxed) < after {
                    return Ok(());
                }
                outs.iter_mut().for_each(|out| out.fill(7.0));
                fail()
            }));
            let options = with_device(&device, options(Policy::CriticalPath));
            let options = HeteroOptions {
                time_out: Duration::from_millis(300),
                ..options
            };
            let mut session = engine(&model, options).session();
            for prompt in 0..2 {
                session.truncate(0);
                assert!(
                    session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                    "{reason}, {after}"
                );
                let failures = failures(&session);
                assert_eq!(failures.len(), 1, "{reason}, {after}: it stays away");
                assert_eq!(
                    (failures[0].processor.as_str(), failures[0].task.is_some()),
                    ("npu", prompt == 0 || step == 1)
                );
                assert!(
                    prompt > 0 || failures[0].reason.to_string().contains(reason),
                    "{failures:?}"
                );
            }
        }
    }
    present.store(true, Ordering::Relaxed);
}

#[test]
fn shadows_next_to_a_device_are_tasks_of_the_cpu() {
    let model = int8("llama");
    let mut session = engine(
        &model,
        with_device(&Arc::new(TestDevice::new()), options(Policy::Paper)),
    )
    .session();
    session
        .prefill(&prompt(&model, 30), &Cancel::new(), |_| {})
        .unwrap();
    let execution = execution(&session).unwrap();
    let is_shadow = |task: usize| execution.tasks.tasks[task].operation == Operation::Shadow;
    let on = execution
        .timeline
        .events()
        .iter()
        .filter(|event| is_shadow(event.task))
        .map(|event| event.processor);
    let on: Vec<_> = on.collect();
    let inputs = shadows::shadows(&model);
    let kept = inputs
        .iter()
        .flat_map(|of| [of.attention, of.attention_output, of.feed_forward, of.down]);
    assert_eq!(
        on,
        vec![CPU; execution.graph.chunks().len() * kept.filter(|kept| *kept).count()]
    );
    assert!(!on.is_empty());
}

#[test]
fn what_is_simulated_is_what_runs() {
    for (family, rate) in FAMILIES
        .into_iter()
        .flat_map(|family| [0.0, 0.5, 1.0].map(|rate| (family, rate)))
    {
        let model = pruned(family, rate);
        let bytes = |role| {
            let graph = triad_plan::graph::Graph::new(model.description(), CHUNK, CHUNK);
            graph
                .subgraphs()
                .iter()
                .find(|subgraph| subgraph.role == role)
                .map_or(0, |one| one.graph_bytes(CHUNK))
        };
        // With room for everything, and for one feed-forward plus one other subgraph.
        for window in [
            1 << 30,
            bytes(Role::FeedForward) + bytes(Role::QueryKeyValue),
        ] {
            let device = TestDevice::new();
            let capabilities = Capabilities {
                window: Some(window),
                ..device.capabilities.clone()
            };
            let device = Arc::new(TestDevice {
                capabilities,
                ..device
            });
            let run = HeteroOptions {
                chunks_in_flight: 3,
                ..options(Policy::CriticalPath)
            };
            let mut session = engine(&model, with_device(&device, run)).session();
            session
                .prefill(&prompt(&model, 45), &Cancel::new(), |_| {})
                .unwrap();
            let executed = &execution(&session).unwrap().tasks;
            let simulated = Options {
                chunk: CHUNK,
                chunks_in_flight: 3,
                shadows: Some(KeptShadows {
                    blocks: shadows::shadows(&model),
                    hot_share: 0.03,
                }),
                window: Some(window),
                ..Options::paper(Policy::CriticalPath)
            };
            let profile = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
            let simulated = Prefill::new(&profile, model.description(), 45, &simulated).tasks;
            assert_eq!(
                executed.tasks, simulated.tasks,
                "{family}, {rate}, {window}"
            );
            for number in 0..executed.tasks.len() {
                let [one, other] = [&executed.dag, &simulated.dag];
                assert_eq!(
                    (one.home(number), one.predecessors(number)),
                    (other.home(number), other.predecessors(number))
                );
            }
        }
    }
}

#[test]
fn what_a_device_has_no_room_for_runs_elsewhere_and_is_reported() {
    let model = int8("qwen2");
    let tokens = prompt(&model, 30);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let all: usize = {
        let device = Arc::new(TestDevice::new());
        engine(&model, with_device(&device, options(Policy::Fifo)));
        device
            .prepared
            .lock()
            .unwrap()
            .iter()
            .map(|subgraph| subgraph.bytes(CHUNK))
            .sum()
    };
    for (room, is_said) in [
        (all, true),
        (all / 2, true),
        (all / 2, false),
        (0, true),
        (0, false),
    ] {
        let device = TestDevice::new();
        let window = is_said.then_some(room);
        let device = Arc::new(TestDevice {
            room,
            capabilities: Capabilities {
                window,
                ..device.capabilities.clone()
            },
            ..device
        });
        let engine = engine(&model, with_device(&device, options(Policy::Fifo)));
        assert!(all_logits(engine.session(), &tokens) == expected, "{room}");
        let (graph, placement) = (engine.graph(), &engine.tasks().placement);
        let places = || graph.subgraphs().iter().zip(placement.places());
        let moved = places().filter(|(_, place)| place.reason == Reason::WindowFull);
        let prepared = device.prepared.lock().unwrap().len();
        let int8 = graph
            .subgraphs()
            .iter()
            .filter(|subgraph| subgraph.role.format() == Format::Int8)
            .count();
        assert_eq!(
            moved
                .map(|(_, place)| assert_eq!(place.processor, CPU))
                .count(),
            int8 - prepared
        );
        assert_eq!(prepared == int8, room == all);
        let is_inside = |role| matches!(role, Role::FeedForward | Role::GateUp | Role::Down);
        let first = places()
            .find(|(subgraph, _)| is_inside(subgraph.role))
            .unwrap();
        assert!(
            room == 0 || first.1.processor == NPU,
            "feed-forwards come first"
        );
    }
}

#[test]
fn verify_finds_one_wrong_chunk() {
    let model = int8("llama");
    let device = TestDevice::on_run(Arc::new(
        |number, x: QuantizedView, outs: &mut [OutputMut]| {
            if number == 0 && x.rows() == 4 {
                outs[0].row_mut(0)[0] += 1e3;
            }
            Ok(())
        },
    ));
    let verification = verified(&engine(
        &model,
        with_device(&device, options(Policy::InOrder)),
    ));
    let wrong: Vec<_> = verification
        .failures()
        .map(|comparison| comparison.tokens)
        .collect();
    assert_eq!(
        wrong,
        [28; Policy::ALL.len()],
        "no other prompt has a chunk of 4 tokens"
    );
}

#[test]
fn verify_finds_one_wrong_static_graph() {
    let model = int8("llama");
    let programs = 3 * model.description().blocks.len();
    for wrong in 0..programs {
        let device = TestDevice::on_run(Arc::new(move |number, _, outs| {
            if number == wrong {
                outs[0].row_mut(0)[0] += 1e3;
            }
            Ok(())
        }));
        assert_ne!(
            verified(&engine(
                &model,
                with_device(&device, options(Policy::Paper))
            ))
            .failures()
            .count(),
            0,
            "{wrong}"
        );
    }
}

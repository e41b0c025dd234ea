//! Tests with the GPU that the environment names, next to a CPU and with a device that multiplies for it.

use triad_engine::statistics::Operator;
use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedView;
use triad_kernels::pool::Pool;
use triad_plan::graph::Role;
use triad_plan::partition::Strategy;
use triad_plan::partition::energy::Objective;
use triad_plan::partition::plans::{Plans, products_of};
use triad_plan::partition::solve::Restriction;
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_processors::cpu::Cpu;
use triad_processors::gpu::{ADAPTER, AdapterKind, Gpu, GpuOptions};
use triad_processors::{Capabilities, DeviceSubgraph, Program};

use super::*;
use crate::work::alignment;
use crate::{
    JoinStatistics, MeasureOptions, MeasuredJoins, MeasuredMultiplier, MeasuredProcessor,
    Operations, ProductCosts, ProductTime, measure_multiplier,
};

/// The largest difference of logits that other sums explain, compared with the largest logit.
const OF_FLOATS: f32 = 5e-3;
/// The same where our kernels round activations, and in prefill weights, to bf16.
const OF_W4A16: f32 = 3e-2;
/// The same where a number in INT8 may be rounded to its neighbour.
const OF_INT8: f32 = 3e-2;

pub(super) fn gpu() -> Option<Arc<Gpu>> {
    let options = GpuOptions::from_environment();
    if options.adapter.is_none() {
        skip::skip(format_args!("{ADAPTER} names no GPU"));
        return None;
    }
    Some(Arc::new(Gpu::open(&options).unwrap()))
}

fn share(axis: Axis, shares: [f64; 2], multiple: usize) -> Cut {
    let share = |(index, share)| Share {
        processor: ProcessorId::new(index),
        share,
    };
    let shares = shares.into_iter().enumerate().map(share).collect();
    Cut::new(axis, shares, multiple).unwrap()
}

/// Returns the largest difference, compared with the largest expected value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // NaN is more than anything.
    differences.fold(0.0, |most, x| if x <= most { most } else { x }) / largest
}

const PRODUCTS: [Role; 4] = [
    Role::QueryKeyValue,
    Role::AttentionOutput,
    Role::GateUp,
    Role::Down,
];

#[test]
fn models_that_read_floats_have_the_logits_of_the_cpu_next_to_a_gpu_whole_and_cut() {
    let Some(gpu) = gpu() else { return };
    for family in ["llama", "qwen2", "gemma3", "phi3"] {
        let float = float(family);
        let w4a16 = Arc::new(testing::quantize_int4(&float));
        for (format, model, bound) in [("W4A16", &w4a16, OF_W4A16), ("float", &float, OF_FLOATS)] {
            let tokens = prompt(model, 2 * CHUNK + 3);
            let expected = all_logits(session(model, CHUNK), &tokens);
            for cut in [
                None,
                Some(share(Axis::Columns, [1.0, 1.0], 1)),
                Some(share(Axis::Columns, [1.0, 3.0], 5)),
                Some(share(Axis::Rows, [1.0, 2.0], 1)),
            ] {
                let what = format!("{family}, {format}, {cut:?}");
                let cuts = cut.map(|cut| PRODUCTS.map(|role| (role, cut.clone())));
                let before = gpu.float_runs();
                let options = HeteroOptions {
                    processors: two(1, Some(Arc::clone(&gpu) as Arc<dyn Device>)),
                    cuts: cuts.map(Vec::from).unwrap_or_default(),
                    ..options(Policy::CriticalPath)
                };
                let mut session = engine(model, options).session();
                let found = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                let difference = difference(&found, &expected);
                assert!(
                    difference > 0.0 && difference < bound,
                    "{what}: {difference}"
                );
                assert!(failures(&session).is_empty(), "{what}");
                // The GPU has computed each of its tasks, once.
                let execution = execution(&session).unwrap();
                let events = execution.timeline.events().iter();
                let on_gpu = events.filter(|event| event.processor == NPU).count();
                assert!(on_gpu >= 3 * 4, "{what}");
                assert_eq!(gpu.float_runs() - before, on_gpu as u64, "{what}");
            }
        }
    }
}

#[test]
fn a_gpu_that_is_lost_at_any_product_in_w4a16_leaves_the_rest_to_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let model = Arc::new(testing::quantize_int4(&float("llama")));
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for at in (0..).step_by(5) {
        let fail = if at % 2 == 0 { error } else { panic };
        let options = HeteroOptions {
            processors: two(1, Some(Arc::clone(&gpu) as Arc<dyn Device>)),
            ..options(Policy::ALL[at % Policy::ALL.len()])
        };
        let engine = engine(&model, options);
        let mut session = with_probe(engine, failing(NPU, at, fail)).session();
        let found = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
        let difference = difference(&found, &expected);
        assert!(difference < OF_W4A16, "lost at {at}: {difference}");
        if failures(&session).is_empty() {
            assert!(at > 20, "there are as many products");
            break;
        }
    }
}

#[test]
fn the_cpu_computes_no_operator_of_a_model_that_a_gpu_runs_with_a_device_that_multiplies() {
    let Some(gpu) = gpu() else { return };
    for family in ["llama", "qwen2", "gemma3"] {
        let model = int8(family);
        let tokens = prompt(&model, 2 * CHUNK + 3);
        let run = |multiplier: Option<Arc<dyn Device>>, cuts: Vec<(Role, Cut)>| {
            let processor = ProcessorOptions {
                description: Processor::gpu("gpu"),
                threads: Threads::Count(1),
                device: Some(Arc::clone(&gpu) as Arc<dyn Device>),
                multiplier,
            };
            let options = HeteroOptions {
                processors: vec![processor],
                cuts,
                ..options(Policy::InOrder)
            };
            let engine = engine(&model, options);
            engine.count(true);
            let mut session = engine.session();
            let cancel = Cancel::new();
            let mut logits = session.prefill(&tokens, &cancel, |_| {}).unwrap().to_vec();
            logits.extend_from_slice(session.decode(7, &cancel).unwrap());
            engine.count(false);
            let statistics = engine.statistics();
            let computed = Operator::ALL.into_iter();
            let computed = computed.filter(|operator| statistics.operator(*operator).runs > 0);
            let computed: Vec<_> = computed.collect();
            assert!(
                computed.iter().all(|one| *one == Operator::Embedding),
                "{family}: the CPU computed {computed:?}"
            );
            (logits, engine.operations().unwrap())
        };
        let npu = kernels;
        let (expected, alone) = run(None, Vec::new());
        assert_eq!((alone.multiplier, alone.cpu_seconds), (0, None));
        let half = share(Axis::Columns, [1.0, 1.0], 16);
        for cuts in [
            Vec::new(),
            vec![(Role::Down, half.clone()), (Role::GateUp, half)],
        ] {
            let (found, operations) = run(Some(npu()), cuts);
            let difference = difference(&found, &expected);
            assert!(difference < OF_INT8, "{family}: {difference}");
            assert!(operations.multiplier > 0, "{family}");
            assert_eq!(operations.cpu_seconds, Some(0.0), "{family}");
            assert!(operations.device < alone.device, "{family}");
        }
        // The device must multiply the format of the package.
        let processor = |model: &Arc<Model>| {
            let options = HeteroOptions {
                processors: vec![multiplied(&gpu, npu())],
                ..options(Policy::InOrder)
            };
            start(model, options).unwrap_err().to_string()
        };
        let refused = processor(&float(family));
        assert!(refused.contains("and the layer is in float"), "{refused}");
    }
}

/// Rows of the chunks whose rows are cut, and of prompts of some of them.
const LONG: usize = 96;

/// Returns the GPU, with a device that multiplies for it.
fn multiplied(gpu: &Arc<Gpu>, multiplier: Arc<dyn Device>) -> ProcessorOptions {
    ProcessorOptions {
        description: Processor::gpu("gpu"),
        threads: Threads::Count(1),
        device: Some(Arc::clone(gpu) as Arc<dyn Device>),
        multiplier: Some(multiplier),
    }
}

fn kernels() -> Arc<dyn Device> {
    Arc::new(Cpu::new(Arc::new(Pool::new(1).unwrap())))
}

fn long(
    processors: Vec<ProcessorOptions>,
    cuts: Vec<(Role, Cut)>,
    plans: Option<Plans>,
) -> HeteroOptions {
    HeteroOptions {
        engine: of_session(2 * LONG + 8, LONG),
        processors,
        cuts,
        plans,
        ..options(Policy::InOrder)
    }
}

/// Returns measurements by which each processor has its advantages: the multiplying one is static, so that plans of many
/// kinds result. `join` is the time of joining.
fn costs(model: &Model, rates: [f64; 2], join: f64) -> ProductCosts {
    let description = model.description();
    let products = products_of(description, LONG, |role, shape| {
        alignment(description, role, shape)
    });
    let mut times: Vec<ProductTime> = Vec::new();
    for product in products.unwrap() {
        let (columns, depth) = (product.shape.columns(), product.shape.depth());
        let lengths: [&[usize]; 2] = [&[1, 16, 32, 64, LONG], &[32, 64]];
        for (processor, (rate, lengths)) in rates.into_iter().zip(lengths).enumerate() {
            for (rows, columns) in lengths
                .iter()
                .flat_map(|rows| [(*rows, 16), (*rows, columns)])
            {
                let time = ProductTime {
                    processor: ProcessorId::new(processor),
                    rows,
                    columns,
                    depth,
                    alone: rate * (rows * columns * depth) as f64,
                    contended: 1.1 * rate * (rows * columns * depth) as f64,
                };
                let is_known = |other: &ProductTime| {
                    (other.processor, other.rows, other.columns, other.depth)
                        == (time.processor, rows, columns, depth)
                };
                if !times.iter().any(is_known) {
                    times.push(time);
                }
            }
        }
    }
    let processor = |name: &str, lengths| MeasuredProcessor {
        name: name.into(),
        lengths,
    };
    ProductCosts {
        chunk: LONG,
        processors: vec![processor("gpu", None), processor("npu", Some(vec![32, 64]))],
        joins: MeasuredJoins {
            float: CPU,
            own_seconds: join,
            begin_seconds: join,
            end_seconds: join,
        },
        products: times,
        decode: None,
        prompts: Vec::new(),
        powers: None,
        objective: Objective::Latency,
    }
}

#[test]
fn products_that_a_gpu_and_a_device_compute_together_by_any_plan_have_the_bits_of_the_gpu_alone() {
    let Some(gpu) = gpu() else { return };
    let is_software = gpu.adapter().kind == AdapterKind::Software;
    let mut strategies = std::collections::BTreeSet::new();
    for family in ["llama", "qwen2", "gemma3"] {
        let model = int8(family);
        let run = |processors: Vec<ProcessorOptions>, cuts, plans| {
            let session_of = |options| engine(&model, options).session();
            let mut session = session_of(long(processors, cuts, plans));
            let mut logits = Vec::new();
            // A whole chunk and a shorter one; then a longer prompt in the same session.
            for length in [LONG + 37, 40] {
                let tokens = prompt(&model, length);
                logits.extend(session.prefill_all_logits(&tokens, &Cancel::new()).unwrap());
            }
            assert!(failures(&session).is_empty());
            let engine = hetero_engine(&session);
            (logits, engine.operations().unwrap(), engine.joins())
        };
        let alone = ProcessorOptions {
            multiplier: None,
            ..multiplied(&gpu, kernels())
        };
        let (expected, ..) = run(vec![alone], Vec::new(), None);
        let check = |(found, operations, joins): (Vec<f32>, Operations, Option<JoinStatistics>),
                     what: &str| {
            if is_software {
                assert!(
                    found == expected,
                    "{what}: {}",
                    difference(&found, &expected)
                );
            } else {
                assert!(difference(&found, &expected) < OF_INT8, "{what}");
            }
            assert_eq!(operations.multiplier > 0, joins.is_some(), "{what}");
            operations
        };
        let both = |cuts, plans| run(vec![multiplied(&gpu, kernels())], cuts, plans);
        check(both(Vec::new(), None), "whole");
        for (axis, multiple) in [(Axis::Columns, 16), (Axis::Rows, 1)] {
            let cut = share(axis, [1.0, 2.0], multiple);
            let cuts = PRODUCTS.map(|role| (role, cut.clone())).into();
            let what = format!("{family}, {axis:?}");
            assert!(check(both(cuts, None), &what).multiplier > 0, "{what}");
        }
        for restriction in Restriction::ALL {
            for (rates, join) in [
                ([1e-9, 1e-9], 0.0),
                ([4e-9, 1e-9], 1e-6),
                ([1e-9, 8e-9], 0.0),
                ([1.5e-9, 1e-9], 1e-3),
            ] {
                let plans =
                    costs(&model, rates, join).plans(model.description(), LONG, restriction);
                let plans = plans.unwrap();
                let choices = plans.products().iter().flat_map(|plan| &plan.choices);
                strategies.extend(choices.map(|choice| choice.best.partition.strategy));
                check(
                    both(Vec::new(), Some(plans)),
                    &format!("{family}, {restriction:?}, {rates:?}"),
                );
            }
        }
    }
    // Rows, columns and both are among them.
    for strategy in [
        Strategy::Alone,
        Strategy::RowCutting,
        Strategy::SequenceLengthCutting,
        Strategy::HybridCutting,
        Strategy::MarginAndRowCutting,
    ] {
        assert!(strategies.contains(&strategy), "{strategies:?}");
    }
}

/// Multiplies by our kernels, but hangs as long as it is told to.
struct HangingDevice {
    kernels: Arc<dyn Device>,
    hangs: Arc<AtomicBool>,
}

struct HangingProgram(Box<dyn Program>, Arc<AtomicBool>);

impl Device for HangingDevice {
    fn name(&self) -> &str {
        "hanging"
    }

    fn capabilities(&self) -> &Capabilities {
        self.kernels.capabilities()
    }

    fn prepare(
        &self,
        subgraph: &DeviceSubgraph,
        rows: usize,
    ) -> triad_processors::Result<Box<dyn Program>> {
        let program = self.kernels.prepare(subgraph, rows)?;
        Ok(Box::new(HangingProgram(program, Arc::clone(&self.hangs))))
    }
}

impl Program for HangingProgram {
    fn run(
        &mut self,
        input: QuantizedView,
        outputs: &mut [OutputMut],
    ) -> triad_processors::Result<()> {
        while self.1.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.run(input, outputs)
    }
}

#[test]
fn a_request_succeeds_while_the_device_that_multiplies_for_a_gpu_hangs() {
    let Some(gpu) = gpu() else { return };
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let hangs = Arc::new(AtomicBool::new(false));
    let device = HangingDevice {
        kernels: kernels(),
        hangs: Arc::clone(&hangs),
    };
    let options = HeteroOptions {
        processors: vec![multiplied(&gpu, Arc::new(device))],
        time_out: Duration::from_secs(1),
        ..options(Policy::InOrder)
    };
    let engine = engine(&model, options);
    let run = || {
        let mut session = engine.session();
        let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
        let failures: Vec<_> = failures(&session)
            .iter()
            .map(|one| one.reason.to_string())
            .collect();
        (logits, failures)
    };
    let (expected, none) = run();
    assert!(none.is_empty(), "{none:?}");
    hangs.store(true, Ordering::Relaxed);
    let (found, failed) = run();
    assert!(difference(&found, &expected) < OF_INT8);
    assert!(
        failed.len() == 1 && failed[0].contains("did not end a product within 1 s"),
        "{failed:?}"
    );
    // It is not waited for again.
    let (found, failed) = run();
    assert!(
        failed.is_empty() && difference(&found, &expected) < OF_INT8,
        "{failed:?}"
    );
    hangs.store(false, Ordering::Relaxed);
    let used = || engine.operations().unwrap().multiplier;
    let before = used();
    while used() == before {
        assert!(run().1.is_empty());
    }
    // Dropping the engine does not wait for a device that hangs.
    hangs.store(true, Ordering::Relaxed);
    assert!(!run().1.is_empty());
    drop(engine);
    hangs.store(false, Ordering::Relaxed);
}

#[test]
fn the_products_of_a_gpu_and_of_a_device_that_multiplies_for_it_are_measured_and_planned_by() {
    let Some(gpu) = gpu() else { return };
    let model = int8("llama");
    let how = MeasureOptions {
        chunk: 40,
        repeat: 1,
        for_predictions: false,
    };
    let processor = multiplied(&gpu, kernels());
    let (mut done, mut all) = (0, 0);
    let measured = measure_multiplier(&model, &processor, how, &Cancel::new(), &mut |now, of| {
        assert_eq!(now, done + 1);
        (done, all) = (now, of);
    });
    let MeasuredMultiplier { costs, joins } = measured.unwrap();
    assert_eq!((done, costs.products.len(), costs.chunk), (all, all, 64));
    for time in [joins.blocking, joins.polling, joins.read, joins.write] {
        assert!(time > 0.0 && time < 1.0, "{joins:?}");
    }
    // The same checks as those of a file.
    let json = serde_json::to_string(&costs).unwrap();
    let again: ProductCosts = serde_json::from_str(&json).unwrap();
    assert_eq!(again, costs);
    for restriction in Restriction::ALL {
        let plans = costs.plans(model.description(), 40, restriction).unwrap();
        let options = HeteroOptions {
            engine: of_session(64, 40),
            processors: vec![processor.clone()],
            plans: Some(plans),
            ..options(Policy::InOrder)
        };
        let tokens = prompt(&model, 50);
        let found = all_logits(engine(&model, options).session(), &tokens);
        let expected = all_logits(session(&model, 40), &tokens);
        assert!(difference(&found, &expected) < OF_INT8, "{restriction:?}");
    }
    let alone = ProcessorOptions {
        multiplier: None,
        ..processor
    };
    let refused = measure_multiplier(&model, &alone, how, &Cancel::new(), &mut |_, _| {});
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("a device that multiplies")
    );
}

//! Tests with the GPU that the environment names, next to a CPU and with a device that multiplies for it.

use triad_engine::statistics::Operator;
use triad_kernels::pool::Pool;
use triad_plan::graph::Role;
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_processors::cpu::Cpu;
use triad_processors::gpu::{ADAPTER, Gpu, GpuOptions};

use super::*;

#[path = "../../../processors/tests/skip/mod.rs"]
mod skip;

/// The largest difference of logits that other sums explain, compared with the largest logit.
const OF_FLOATS: f32 = 5e-3;
/// The same where our kernels round activations, and in prefill weights, to bf16.
const OF_W4A16: f32 = 3e-2;
/// The same where a number in INT8 may be rounded to its neighbour.
const OF_INT8: f32 = 3e-2;

fn gpu() -> Option<Arc<Gpu>> {
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
            let computed = computed.filter(|operator| statistics.of(*operator).runs > 0);
            let computed: Vec<_> = computed.collect();
            assert!(
                computed.iter().all(|one| *one == Operator::Embedding),
                "{family}: the CPU computed {computed:?}"
            );
            (logits, engine.operations().unwrap())
        };
        let npu = || Arc::new(Cpu::new(Arc::new(Pool::new(1).unwrap()))) as Arc<dyn Device>;
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
        // Rows are not cut there, and the device must multiply the format of the package.
        let processor = |model: &Arc<Model>, cuts| {
            let processor = ProcessorOptions {
                description: Processor::gpu("gpu"),
                threads: Threads::Count(1),
                device: Some(Arc::clone(&gpu) as Arc<dyn Device>),
                multiplier: Some(npu()),
            };
            let options = HeteroOptions {
                processors: vec![processor],
                cuts,
                ..options(Policy::InOrder)
            };
            start(model, options).unwrap_err().to_string()
        };
        let rows = vec![(Role::Down, share(Axis::Rows, [1.0, 1.0], 1))];
        assert!(processor(&model, rows).contains("rows of down"));
        let refused = processor(&float(family), Vec::new());
        assert!(refused.contains("and the layer is in float"), "{refused}");
    }
}

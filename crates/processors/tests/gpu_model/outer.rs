//! Models on the GPU of which another processor computes products in prompts: here the CPU's kernels, which may fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use triad_kernels::int8::{Int8Weight, QuantizedView};
use triad_kernels::pool::Pool;
use triad_kernels::{OutputMut, Phase};
use triad_model::description::Linear;
use triad_processors::cpu::Cpu;
use triad_processors::gpu::Gpu;
use triad_processors::gpu::model::{GpuModel, ModelVariant};
use triad_processors::model::{DeviceLinear, DeviceWeight};
use triad_processors::{
    Device, DeviceSubgraph, Error, Layer, LayerColumns, Linear as LinearLayers, ProductProgram,
    Program, Result,
};

use super::families::{all, llama};
use super::plain::{Format, PlainModel};
use super::{OPTIONS, assert_near, assert_within, gpu, logits_in, on_gpu};

/// The layers that read one input, in the order in which the GPU concatenates them.
const READERS: [&[Linear]; 4] = [
    &[Linear::Query, Linear::Key, Linear::Value],
    &[Linear::AttentionOutput],
    &[Linear::Gate, Linear::Up],
    &[Linear::Down],
];

/// Relative change of logits if some numbers are rounded to a neighbour, compared with the largest.
const TOLERANCE: f32 = 2e-2;

struct Owned {
    out_features: usize,
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    bias: Option<Vec<f32>>,
}

impl Layer for Owned {
    fn weight(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: &self.packed,
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Counts the runs of a program, and fails from one on.
struct Counted {
    program: Box<dyn Program>,
    runs: Arc<AtomicUsize>,
    fails_at: usize,
}

impl Program for Counted {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        if self.runs.fetch_add(1, Ordering::Relaxed) >= self.fails_at {
            if self.fails_at % 2 == 1 {
                // Does not print the message of a panic.
                std::panic::resume_unwind(Box::new("unplugged"));
            }
            return Err(Error::Run {
                processor: "test".into(),
                reason: "unplugged".into(),
            });
        }
        self.program.run(input, outputs)
    }
}

/// Returns programs for the products of a model, of all columns or of the last ones of each.
fn products(
    model: &PlainModel,
    is_cut: bool,
    runs: &Arc<AtomicUsize>,
    fails_at: usize,
) -> Vec<ProductProgram> {
    let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
    let view = model.view();
    let mut programs = Vec::new();
    for (block, weights) in view.blocks.iter().enumerate() {
        for names in READERS {
            let of_name = |name: &Linear| {
                let mut linears = weights.linears.iter();
                linears.find(|(linear, _)| linear == name).map(|it| it.1)
            };
            let layers = names
                .iter()
                .filter_map(|name| Some((*name, of_name(name)?)));
            let layers: Vec<_> = layers.collect();
            // The second half of the last layer, or everything.
            let used = if is_cut { layers.len() - 1 } else { 0 };
            // A part begins at a whole block of packed weights.
            let is_whole = |(_, layer): &(Linear, DeviceLinear)| match layer.weight {
                DeviceWeight::Int8(weight, _) => {
                    weight.out_features.is_multiple_of(Int8Weight::COLUMNS)
                }
                DeviceWeight::Float(_) => false,
            };
            if !layers[..used].iter().all(is_whole) {
                continue;
            }
            let (mut outputs, mut shared, mut input_scale) = (Vec::new(), Vec::new(), 0.0);
            for (name, layer) in &layers[used..] {
                let DeviceWeight::Int8(weight, input) = layer.weight else {
                    panic!("in INT8")
                };
                let half = (weight.out_features / 2).next_multiple_of(Int8Weight::COLUMNS);
                let first = if is_cut && half < weight.out_features {
                    half
                } else {
                    0
                };
                let range: Range<usize> = first..weight.out_features;
                let owned = Arc::new(Owned {
                    out_features: weight.out_features,
                    in_features: weight.in_features,
                    packed: weight.packed.to_vec(),
                    scales: weight.scales.to_vec(),
                    sums: weight.sums.to_vec(),
                    bias: layer.bias.map(<[f32]>::to_vec),
                });
                let columns = LayerColumns::new(owned, range.clone()).unwrap();
                outputs.push((*name, range));
                shared.push(Arc::new(columns) as Arc<dyn Layer>);
                input_scale = input.scale;
            }
            let subgraph = DeviceSubgraph::Linear(LinearLayers {
                input_scale,
                layers: shared,
            });
            programs.push(ProductProgram {
                block,
                outputs,
                program: Box::new(Counted {
                    program: cpu.prepare(&subgraph, OPTIONS.rows).unwrap(),
                    runs: Arc::clone(runs),
                    fails_at,
                }),
            });
        }
    }
    programs
}

fn with_products(gpu: &Gpu, model: &PlainModel, programs: Vec<ProductProgram>) -> Result<GpuModel> {
    GpuModel::with_products(gpu, &model.view(), &OPTIONS, &ModelVariant::ALL, programs)
}

#[test]
fn a_model_whose_products_another_processor_computes_has_the_logits_of_the_gpu_alone() {
    let Some(gpu) = gpu() else { return };
    for (name, description) in all() {
        for (format, is_cut) in [
            (Format::W8a8, false),
            (Format::W8a8, true),
            (Format::W8a8Int4, false),
        ] {
            let hidden = description.hidden;
            let blocks = description.blocks.iter();
            let mut linears = blocks.flat_map(|block| block.linears(hidden));
            // INT4 has whole groups alone.
            if format == Format::W8a8Int4 && !linears.all(|it| it.in_features.is_multiple_of(32)) {
                continue;
            }
            let model = PlainModel::new(description.clone(), &[format], 1);
            let (x, runs) = (model.rows(37, 2), Arc::default());
            let mut alone = on_gpu(&gpu, &model);
            let programs = products(&model, is_cut, &runs, usize::MAX);
            let count = programs.len();
            let mut with = with_products(&gpu, &model, programs).unwrap();
            let what = format!("{name}, {format:?}, cut: {is_cut}");
            for phase in [Phase::Prefill, Phase::Decode] {
                let (mut one, mut other) = (alone.sequence(), with.sequence());
                let expected = logits_in(&mut alone, &mut one, &x, 37, phase);
                let found = logits_in(&mut with, &mut other, &x, 37, phase);
                assert_within(TOLERANCE, &found, &expected, &what);
            }
            assert_eq!(
                runs.load(Ordering::Relaxed),
                count,
                "{what}: each product once, and none in decode"
            );
            let (with, alone) = (with.operations(), alone.operations());
            assert!(with.products > 0 && with.device < alone.device, "{what}");
            assert_eq!(alone.products, 0);
        }
    }
}

#[test]
fn the_gpu_computes_all_of_a_chunk_at_any_of_whose_products_the_other_processor_is_lost() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(20, 2);
    let mut alone = on_gpu(&gpu, &model);
    let mut sequence = alone.sequence();
    let expected = logits_in(&mut alone, &mut sequence, &x, 20, Phase::Prefill);
    for is_cut in [false, true] {
        let count = products(&model, is_cut, &Arc::default(), 0).len();
        for fails_at in 0..count {
            let runs = Arc::default();
            let programs = products(&model, is_cut, &runs, fails_at);
            let mut with = with_products(&gpu, &model, programs).unwrap();
            let mut sequence = with.sequence();
            let found = logits_in(&mut with, &mut sequence, &x, 20, Phase::Prefill);
            // It is the same pass as that of the GPU alone.
            assert!(found == expected, "lost at {fails_at}, cut: {is_cut}");
            let failure = with.take_failure().unwrap().to_string();
            assert!(failure.contains("unplugged"), "{failure}");
            assert!(with.take_failure().is_none(), "it is reported once");
            let mut sequence = with.sequence();
            let again = logits_in(&mut with, &mut sequence, &x, 20, Phase::Prefill);
            assert!(again == expected);
            assert_eq!(
                runs.load(Ordering::Relaxed),
                fails_at + 1,
                "not asked again before a retry"
            );
            with.retry();
            let mut sequence = with.sequence();
            let again = logits_in(&mut with, &mut sequence, &x, 20, Phase::Prefill);
            assert!(again == expected);
            assert_eq!(runs.load(Ordering::Relaxed), fails_at + 2);
            assert!(with.take_failure().is_some(), "and reported again");
        }
    }
}

#[test]
fn logits_of_the_residual_stream_are_those_of_a_chunk() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let x = model.rows(9, 2);
    let run = model.run(&x);
    let mut on_gpu = on_gpu(&gpu, &model);
    let mut found = Vec::new();
    on_gpu
        .logits(&run.residual, Phase::Prefill, |logits| {
            found.extend_from_slice(logits);
        })
        .unwrap();
    assert_near(&found, &run.logits, "logits");
    let hidden = model.description.hidden;
    for wrong in [0, hidden - 1, (OPTIONS.rows + 1) * hidden] {
        let refused = on_gpu.logits(&vec![0.0; wrong], Phase::Prefill, |_| {});
        assert!(matches!(refused, Err(Error::Rows { .. })));
    }
}

#[test]
fn products_that_are_not_the_last_columns_of_layers_that_read_int8_are_refused() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let runs = Arc::default();
    let mut programs = products(&model, false, &runs, usize::MAX);
    programs[0].outputs[1].1.start = 16;
    let refused = with_products(&gpu, &model, programs)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("block 0: another processor computes"),
        "{refused}"
    );
    let mut programs = products(&model, false, &runs, usize::MAX);
    programs[0].outputs.pop();
    assert!(with_products(&gpu, &model, programs).is_err());
    let float = PlainModel::new(llama(), &[Format::F32], 1);
    let programs = products(&model, false, &runs, usize::MAX);
    let refused = with_products(&gpu, &float, programs)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("its layers read floats"), "{refused}");
}

//! Layers that read INT8, computed by the CPU's kernels, and models with such layers on the GPU.

use triad_kernels::int8::{
    Int8Weight, QuantizedRows, matmul_int8, pack, packed_len, quantize_weight_rows, row_sums,
    shadow,
};
use triad_kernels::{OutputMut, Phase};
use triad_model::description::Linear;
use triad_processors::gpu::model::{GpuModel, ModelVariant};
use triad_processors::model::{DeviceModel, DeviceWeight, Int8Input};

use super::families::{all, llama};
use super::plain::{Format, PlainModel};
use super::{OPTIONS, assert_within, gpu, logits_in, on_gpu};

/// An INT8 weight, and how the layer's input is quantized.
pub struct PlainInt8 {
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    scale: f32,
    smoothing: Option<Vec<f32>>,
    has_shadow: bool,
}

impl PlainInt8 {
    /// Creates a layer with these weights `[out_features, in_features]`. Every input has a few numbers beyond the clip
    /// threshold. Attention's output layer has no shadow, and down's input is smoothed.
    pub fn new(values: &[f32], linear: Linear, in_features: usize) -> Self {
        let smoothing: Vec<_> = (0..in_features)
            .map(|channel| 0.5 + (channel % 7) as f32 / 8.0)
            .collect();
        let (scale, smoothing, has_shadow) = match linear {
            Linear::AttentionOutput => (0.02, None, false),
            Linear::Down => (0.004, Some(smoothing), true),
            _ => (0.016, None, true),
        };
        let mut values = values.to_vec();
        if let Some(smoothing) = &smoothing {
            let rows = values.chunks_exact_mut(in_features);
            rows.for_each(|row| {
                row.iter_mut()
                    .zip(smoothing)
                    .for_each(|(weight, factor)| *weight /= factor);
            });
        }
        let out_features = values.len() / in_features;
        let (mut numbers, mut scales) = (vec![0; values.len()], vec![0.0; out_features]);
        quantize_weight_rows(&values, in_features, &mut scales, &mut numbers);
        let (mut packed, mut sums) = (
            vec![0; packed_len(out_features, in_features).unwrap()],
            vec![0; out_features],
        );
        pack(&numbers, out_features, in_features, &mut packed);
        row_sums(&numbers, in_features, &mut sums);
        Self {
            packed,
            scales,
            sums,
            scale,
            smoothing,
            has_shadow,
        }
    }

    pub fn view(&self, in_features: usize) -> DeviceWeight<'_> {
        let Self {
            packed,
            scales,
            sums,
            scale,
            smoothing,
            has_shadow,
        } = self;
        let weight = Int8Weight {
            out_features: scales.len(),
            in_features,
            packed,
            scales,
            sums,
        };
        let input = Int8Input {
            scale: *scale,
            smoothing: smoothing.as_deref(),
            has_shadow: *has_shadow,
        };
        DeviceWeight::Int8(weight, input)
    }

    pub fn multiply(&self, x: &[f32], bias: Option<&[f32]>, in_features: usize) -> Vec<f32> {
        let DeviceWeight::Int8(
            weight,
            Int8Input {
                scale,
                smoothing,
                has_shadow,
            },
        ) = self.view(in_features)
        else {
            unreachable!("it is in INT8")
        };
        let mut quantized = QuantizedRows::default();
        quantized.quantize_static(x, in_features, scale, smoothing, has_shadow);
        let features = weight.out_features;
        let mut out = vec![0.0; quantized.rows() * features];
        matmul_int8(
            quantized.view(),
            weight,
            bias,
            OutputMut::new(&mut out, features),
        );
        shadow(quantized.view(), weight, OutputMut::new(&mut out, features));
        out
    }
}

/// Relative change of logits if some numbers are rounded to a neighbour, compared with the largest.
const TOLERANCE: f32 = 2e-2;

#[test]
fn models_in_int8_of_all_families_have_the_logits_of_the_cpu_in_chunks_and_row_by_row() {
    let Some(gpu) = gpu() else { return };
    for (name, description) in all() {
        let model = PlainModel::new(description, &[Format::W8a8], 1);
        let x = model.rows(37, 2);
        let expected = model.run(&x).logits;
        let mut on_gpu = on_gpu(&gpu, &model);
        let mut sequence = on_gpu.sequence();
        let found = logits_in(&mut on_gpu, &mut sequence, &x, 37, Phase::Prefill);
        assert_within(TOLERANCE, &found, &expected, name);
        let hidden = model.description.hidden;
        let mut sequence = on_gpu.sequence();
        let rows = x.chunks_exact(hidden).take(12);
        let found: Vec<_> = rows
            .flat_map(|x| logits_in(&mut on_gpu, &mut sequence, x, 1, Phase::Decode))
            .collect();
        assert_within(TOLERANCE, &found, &expected[..found.len()], name);
    }
}

#[test]
fn rows_that_decode_are_multiplied_with_the_weights_for_them() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8Int4], 3);
    let (x, mut on_gpu) = (model.rows(9, 4), on_gpu(&gpu, &model));
    let mut all = Vec::new();
    for phase in [Phase::Prefill, Phase::Decode] {
        let mut sequence = on_gpu.sequence();
        let found = logits_in(&mut on_gpu, &mut sequence, &x, 9, phase);
        assert_within(
            TOLERANCE,
            &found,
            &model.run_in(&x, phase).logits,
            &format!("{phase:?}"),
        );
        all.push(found);
    }
    assert_ne!(all[0], all[1]);
}

/// Makes a model invalid.
type Change = fn(&mut DeviceModel);

fn int8<'a, 'b>(
    model: &'b mut DeviceModel<'a>,
    layer: usize,
) -> (&'b mut Int8Weight<'a>, &'b mut Int8Input<'a>) {
    let DeviceWeight::Int8(weight, input) = &mut model.blocks[1].linears[layer].1.weight else {
        panic!("in INT8")
    };
    (weight, input)
}

#[test]
fn a_model_in_int8_whose_parts_disagree_is_refused_with_the_part_that_is_why() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::W8a8], 1);
    let cases: [(Change, &str); 8] = [
        (
            |model| int8(model, 0).0.packed = &[],
            "block 1: Query: 0 packed numbers, expected 4096",
        ),
        (
            |model| int8(model, 0).0.scales = &[1.0],
            "block 1: Query: 1 scales, expected 64",
        ),
        (
            |model| int8(model, 0).0.in_features = 60,
            "block 1: Query: a weight of (64, 60) in INT8, expected (64, 64)",
        ),
        (
            |model| int8(model, 6).1.smoothing = Some(&[1.0]),
            "block 1: Down: 1 factors of smoothing, expected 96",
        ),
        (
            |model| int8(model, 3).1.scale = 0.0,
            "block 1: AttentionOutput: an input scale of 0, expected a positive",
        ),
        (
            |model| int8(model, 1).1.scale = 0.5,
            "block 1: [Query, Key, Value] read one input and have several",
        ),
        (
            |model| int8(model, 5).1.has_shadow = false,
            "block 1: [Gate, Up] read one input and have several",
        ),
        (
            |model| model.output = model.blocks[0].linears[0].1,
            "output matrix: a weight of (64, 64) in INT8",
        ),
    ];
    for (change, expected) in cases {
        let mut view = model.view();
        change(&mut view);
        let error = GpuModel::new(&gpu, &view, &OPTIONS, &ModelVariant::ALL)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

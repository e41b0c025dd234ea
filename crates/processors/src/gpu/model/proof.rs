//! Whether a GPU multiplies rightly: small products with weights of each format a model has, beside sums in f64.

use bytemuck::{Zeroable, bytes_of, cast_slice};
use half::{bf16, f16};
use triad_kernels::Matrix;
use triad_kernels::int4::{self, quantize_int4};
use triad_kernels::int8::quantize_weight_rows;

use super::super::VariantState;
use super::super::context::Context;
use super::description::UNIT;
use super::kernels::{FloatVariant, Kernel, Pipelines, ROWS_COLUMNS, WeightFormat};
use super::steps::ProductUniforms;
use super::weights::upload;
use super::{Call, ROWS_TOGETHER, product_kernels};
use crate::error::{Error, Result};
use crate::model::FloatLinear;

/// Rows and columns: multiples of no tile, and more than one of the largest.
const ROWS: usize = 67;
const COLUMNS: usize = 70;
/// Features: whole groups of INT4, but no whole number of steps of a workgroup.
const FEATURES: usize = 3 * int4::GROUP;
/// Of a sum, relative to the sum of its products' magnitudes.
const TOLERANCE: f32 = 1e-5;
/// Every fourth row of the weight is so much smaller, below the normal numbers of f16.
const TINY: f32 = 3.8e-6;

/// The pipelines of the first of `variants` that multiplies weights of all `formats` rightly, and what came of each.
///
/// # Errors
/// If none does, or the GPU fails.
pub(super) fn choose(
    context: &Context,
    variants: &[FloatVariant],
    formats: &[WeightFormat],
) -> Result<(Pipelines, Vec<(FloatVariant, VariantState)>)> {
    let (mut used, mut states) = (None, Vec::new());
    for variant in variants {
        let state = match used {
            Some(_) => VariantState::Untried,
            None => {
                let mut pipelines = Pipelines::new(*variant);
                match prove(context, &mut pipelines, formats)? {
                    Ok(()) => {
                        used = Some(pipelines);
                        VariantState::Used
                    }
                    Err(reason) => VariantState::Refused(reason),
                }
            }
        };
        states.push((*variant, state));
    }
    let refused = states.iter().filter_map(|(variant, state)| match state {
        VariantState::Refused(reason) => Some(format!("{}: {reason}", variant.name)),
        _ => None,
    });
    let reasons = || refused.collect::<Vec<_>>().join("; ");
    let pipelines = used.ok_or_else(|| Error::GpuMiscomputes { gpu: context.name.clone(), reasons: reasons() })?;
    Ok((pipelines, states))
}

/// Whether all are right, or what is wrong.
fn prove(
    context: &Context,
    pipelines: &mut Pipelines,
    formats: &[WeightFormat],
) -> Result<std::result::Result<(), String>> {
    for format in formats {
        let weight = Weight::new(*format);
        let few = [1, ROWS_TOGETHER as usize + 1, ROWS];
        for (kernel, rows) in product_kernels(*format).into_iter().zip(few) {
            if let Err(reason) = pipelines.compile(context, kernel) {
                return Ok(Err(reason));
            }
            let tile = pipelines.variant.tile();
            let groups = match rows {
                ROWS => [COLUMNS.div_ceil(tile), ROWS.div_ceil(tile)],
                1 => [COLUMNS.div_ceil(ROWS_COLUMNS), 1],
                rows => [COLUMNS.div_ceil(ROWS_COLUMNS), rows.div_ceil(ROWS_TOGETHER as usize)],
            };
            let x = numbers(rows * FEATURES, 7);
            let of_columns = |seed, rows: usize| {
                let numbers = numbers(rows * COLUMNS, seed).into_iter().enumerate();
                numbers.map(|(index, number)| number * size(index % COLUMNS)).collect::<Vec<_>>()
            };
            let (bias, before) = (of_columns(8, 1), of_columns(9, rows));
            let found = multiply(context, pipelines, (kernel, groups), &weight, (&x, &bias, &before))?;
            for (index, found) in found.iter().enumerate() {
                let (row, column) = (index / COLUMNS, index % COLUMNS);
                let terms = x[row * FEATURES..][..FEATURES].iter().zip(weight.row(column)).map(|(x, w)| x * w);
                let terms = terms.chain([bias[column], before[index]]);
                let expected = terms.clone().map(f64::from).sum::<f64>() as f32;
                let error = (found - expected).abs();
                if error.is_nan() || error > TOLERANCE * terms.map(f32::abs).sum::<f32>() {
                    return Ok(Err(format!("{kernel:?}: output {index} is {found}, expected {expected}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Runs one kernel, which adds products and bias to `before`.
fn multiply(
    context: &Context,
    pipelines: &mut Pipelines,
    (kernel, groups): (Kernel, [usize; 2]),
    weight: &Weight,
    (x, bias, before): (&[f32], &[f32], &[f32]),
) -> Result<Vec<f32>> {
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let call = Call { rows: (x.len() / FEATURES) as u32, ..Call::zeroed() };
    let product = ProductUniforms {
        units: (FEATURES / UNIT) as u32,
        columns: COLUMNS as u32,
        first: 0,
        stride: COLUMNS as u32,
        bias_at: 0,
        adds: 1,
        of_outputs: 0,
        unused: 0,
    };
    let uniforms = [bytes_of(&call), bytes_of(&product)].map(|bytes| -> Result<_> {
        let buffer = context.buffer("uniforms", bytes.len() as u64, usage)?;
        context.queue.write_buffer(&buffer, 0, bytes);
        Ok(buffer)
    });
    let [call, product] = uniforms;
    let (call, product) = (call?, product?);
    let layer = FloatLinear { weight: weight.matrix(), bias: None };
    let slabs = upload(context, &[layer], FEATURES)?;
    let [slab] = &slabs[..] else { unreachable!("a small weight is in one part") };
    let [input, parameters] = [x, bias].map(|values| context.filled("a small product", values));
    let bytes = size_of_val(before) as u64;
    let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let out = context.buffer("a small product", bytes, storage)?;
    context.queue.write_buffer(&out, 0, cast_slice(before));
    let staging = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let staging = context.buffer("a small product", bytes, staging)?;
    let buffers = [&input?, &slab.weight, &slab.scales, &parameters?, &out];
    let size = size_of::<ProductUniforms>() as u64;
    let group = pipelines.group(context, kernel, &call, (&product, 0, size), &buffers);
    let mut encoder = context.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipelines.get(context, kernel)?);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups[0] as u32, groups[1] as u32, 1);
    }
    encoder.copy_buffer_to_buffer(&out, 0, &staging, 0, bytes);
    let mut found = Vec::new();
    context.run(encoder, &staging, bytes, |bytes| found.extend_from_slice(cast_slice(bytes)))?;
    Ok(found)
}

/// How large the weights of a row are.
fn size(row: usize) -> f32 {
    if row % 4 == 3 { TINY } else { 1.0 }
}

/// From −1 to 1, the same every time.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A weight `[COLUMNS, FEATURES]`.
enum Weight {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Int8(Vec<i8>, Vec<f32>),
    Int4(Vec<u8>, Vec<f16>),
}

impl Weight {
    fn new(format: WeightFormat) -> Self {
        let count = COLUMNS * FEATURES;
        let values: Vec<_> =
            numbers(count, 3).into_iter().enumerate().map(|(index, x)| x * size(index / FEATURES)).collect();
        match format {
            WeightFormat::F32 => Self::F32(values),
            WeightFormat::F16 => Self::F16(values.into_iter().map(f16::from_f32).collect()),
            WeightFormat::Bf16 => Self::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            WeightFormat::Int8 => {
                let (mut numbers, mut scales) = (vec![0; count], vec![0.0; COLUMNS]);
                quantize_weight_rows(&values, FEATURES, &mut scales, &mut numbers);
                Self::Int8(numbers, scales)
            }
            WeightFormat::Int4 => {
                let (mut numbers, mut scales) = (vec![0; count / 2], vec![f16::ZERO; count / int4::GROUP]);
                quantize_int4(&values, &mut numbers, &mut scales);
                Self::Int4(numbers, scales)
            }
        }
    }

    fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::F32(values) => Matrix::F32(values),
            Self::F16(values) => Matrix::F16(values),
            Self::Bf16(values) => Matrix::Bf16(values),
            Self::Int8(values, scales) => Matrix::Int8 { values, scales },
            Self::Int4(values, scales) => Matrix::Int4 { values, scales },
        }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let mut wide = vec![0.0; FEATURES];
        self.matrix().widen_row(row, &mut wide);
        wide
    }
}

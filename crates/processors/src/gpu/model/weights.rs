//! Weights on a GPU: layers that read one input, side by side, in parts that its buffers can hold.

use triad_kernels::Matrix;

use super::super::context::Context;
use super::kernels::{ROWS_COLUMNS, WeightFormat};
use crate::error::Result;
use crate::model::FloatLinear;

/// Workgroups in one dimension, at most, on every GPU.
pub(super) const MOST_GROUPS: usize = 65535;

/// Columns of the output of layers that read one input, whose weights are in one buffer and of one format.
#[derive(Debug)]
pub(super) struct Slab {
    pub format: WeightFormat,
    /// Where its columns begin among those of all layers.
    pub first: usize,
    pub columns: usize,
    pub weight: wgpu::Buffer,
    pub scales: wgpu::Buffer,
}

/// A slab whose weights are not on the GPU yet.
struct Planned<'a> {
    format: WeightFormat,
    first: usize,
    columns: usize,
    parts: Vec<Matrix<'a>>,
}

/// Copies `layers`, which read `in_features` features, to the GPU. The output of each is behind those before it.
///
/// # Errors
/// If there is no memory for them.
pub(super) fn upload(context: &Context, layers: &[FloatLinear], in_features: usize) -> Result<Vec<Slab>> {
    plan(layers, in_features, context.most_bytes()).iter().map(|slab| slab.upload(context)).collect()
}

/// The slabs of `layers`, of at most `most_bytes` each: as few as there can be with all columns in their order.
fn plan<'a>(layers: &[FloatLinear<'a>], in_features: usize, most_bytes: u64) -> Vec<Planned<'a>> {
    let mut planned: Vec<Planned> = Vec::new();
    let mut column = 0;
    for layer in layers {
        let weight = layer.weight;
        let (format, row_bytes) = (WeightFormat::of(weight), row_bytes(weight, in_features));
        let most = (most_bytes / row_bytes as u64).clamp(1, (MOST_GROUPS * ROWS_COLUMNS) as u64) as usize;
        let out_features = layer.out_features(in_features);
        let mut row = 0;
        while row < out_features {
            let is_full = |last: &Planned| last.format != format || last.columns >= most;
            if planned.last().is_none_or(is_full) {
                planned.push(Planned { format, first: column, columns: 0, parts: Vec::new() });
            }
            let last = planned.last_mut().expect("it was pushed");
            let taken = (out_features - row).min(most - last.columns);
            last.parts.push(weight.rows(row..row + taken, in_features));
            last.columns += taken;
            (row, column) = (row + taken, column + taken);
        }
    }
    planned
}

impl Planned<'_> {
    fn upload(&self, context: &Context) -> Result<Slab> {
        let Self { format, first, columns, parts } = self;
        let parts: Vec<_> = parts.iter().map(|part| stored(*part)).collect();
        let weight = context.uploaded("weights", &parts.iter().map(|(values, _)| *values).collect::<Vec<_>>())?;
        // Words must be whole.
        let mut scales = parts.iter().map(|(_, scales)| *scales).collect::<Vec<_>>().concat();
        scales.resize(scales.len().next_multiple_of(4), 0);
        let scales = context.uploaded("scales", &[&scales])?;
        Ok(Slab { format: *format, first: *first, columns: *columns, weight, scales })
    }
}

/// Bytes of a row without its scales.
pub(super) fn row_bytes(matrix: Matrix, in_features: usize) -> usize {
    match matrix {
        Matrix::F32(_) => 4 * in_features,
        Matrix::F16(_) | Matrix::Bf16(_) => 2 * in_features,
        Matrix::Int8 { .. } => in_features,
        Matrix::Int4 { .. } => in_features / 2,
    }
}

/// The bytes of a matrix and of its scales.
pub(super) fn stored(matrix: Matrix<'_>) -> (&[u8], &[u8]) {
    match matrix {
        Matrix::F32(values) => (bytemuck::cast_slice(values), &[]),
        Matrix::F16(values) => (bytemuck::cast_slice(values), &[]),
        Matrix::Bf16(values) => (bytemuck::cast_slice(values), &[]),
        Matrix::Int8 { values, scales } => (bytemuck::cast_slice(values), bytemuck::cast_slice(scales)),
        Matrix::Int4 { values, scales } => (values, bytemuck::cast_slice(scales)),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    const FEATURES: usize = 8;

    fn f32s(matrix: Matrix) -> Vec<f32> {
        let rows = stored(matrix).0.len() / row_bytes(matrix, FEATURES);
        let mut wide = vec![0.0; rows * FEATURES];
        wide.chunks_exact_mut(FEATURES).enumerate().for_each(|(row, wide)| matrix.widen_row(row, wide));
        wide
    }

    #[test]
    fn every_column_is_in_one_slab_that_a_buffer_holds_and_slabs_are_as_few_as_formats_and_buffers_allow() {
        let numbers = |count: usize, first: usize| (0..count * FEATURES).map(move |index| (first + index) as f32);
        let [a, b, d] = [(5, 0), (9, 40), (3, 160)].map(|(count, first)| numbers(count, first).collect::<Vec<_>>());
        let c: Vec<_> = numbers(6, 112).map(f16::from_f32).collect();
        let layers = [Matrix::F32(&a), Matrix::F32(&b), Matrix::F16(&c), Matrix::F32(&d)];
        let layers = layers.map(|weight| FloatLinear { weight, bias: None });
        let expected: Vec<_> = numbers(23, 0).collect();
        // Rows of 32 bytes, in f16 of 16.
        for (most_bytes, columns) in [
            (u64::MAX, vec![14, 6, 3]),
            (14 * 32, vec![14, 6, 3]),
            (4 * 32 + 31, vec![4, 4, 4, 2, 6, 3]),
            (2 * 32, vec![2, 2, 2, 2, 2, 2, 2, 4, 2, 2, 1]),
        ] {
            let slabs = plan(&layers, FEATURES, most_bytes);
            assert_eq!(slabs.iter().map(|slab| slab.columns).collect::<Vec<_>>(), columns);
            let found: Vec<_> = slabs.iter().flat_map(|slab| slab.parts.iter().flat_map(|part| f32s(*part))).collect();
            assert_eq!(found, expected);
            let mut first = 0;
            for slab in &slabs {
                assert_eq!(slab.first, first);
                first += slab.columns;
                let bytes: usize = slab.parts.iter().map(|part| stored(*part).0.len()).sum();
                assert!(bytes as u64 <= most_bytes);
            }
        }
    }
}

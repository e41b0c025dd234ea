//! The numbers on which kernels are measured: their values do not matter for the speed.

use half::f16;
use triad_kernels::attention::{PAGE, Shape, Slab};
use triad_kernels::int8::{Int8Weight, pack, packed_len, row_sums};
use triad_kernels::{BlockFormat, Matrix};

/// A weight in the layout of the INT8 kernels.
#[derive(Clone)]
pub(super) struct PackedInt8 {
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl PackedInt8 {
    pub(super) fn random(in_features: usize, out_features: usize) -> Self {
        let row_major = bytes(in_features * out_features);
        let mut packed =
            vec![0; packed_len(out_features, in_features).expect("a matrix of a model")];
        pack(&row_major, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        row_sums(&row_major, in_features, &mut sums);
        Self {
            in_features,
            packed,
            scales: vec![0.01; out_features],
            sums,
        }
    }

    pub(super) fn view(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.scales.len(),
            in_features: self.in_features,
            packed: &self.packed,
            scales: &self.scales,
            sums: &self.sums,
        }
    }
}

/// Returns the measured GGUF formats that support rows of `in_features` features: a small and a large one of each kind
/// of block.
pub(super) fn block_formats(in_features: usize) -> impl Iterator<Item = BlockFormat> {
    let formats = [
        BlockFormat::Q4_0,
        BlockFormat::Q8_0,
        BlockFormat::Q4_K,
        BlockFormat::Q6_K,
    ];
    formats
        .into_iter()
        .filter(move |format| in_features.is_multiple_of(format.elements()))
}

/// Returns the bytes of blocks whose scales are finite numbers.
pub(super) fn blocks(count: usize) -> Vec<u8> {
    (0..count)
        .map(|index| (index * 7919 % 0x3b) as u8)
        .collect()
}

/// Returns arbitrary numbers from −1 to 1.
pub(super) fn numbers(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (index * 7919 % 2003) as f32 / 1001.0 - 1.0)
        .collect()
}

pub(super) fn bytes(count: usize) -> Vec<i8> {
    (0..count)
        .map(|index| (index * 7919 % 255) as u8 as i8)
        .collect()
}

pub(super) fn halves(count: usize) -> Vec<f16> {
    (0..count)
        .map(|index| f16::from_f32((index * 7919 % 2003) as f32 / 1001.0 - 1.0))
        .collect()
}

/// Returns the number of values in the pages that hold `context` keys or values.
pub(super) fn paged(context: usize, shape: &Shape) -> usize {
    context.div_ceil(PAGE) * PAGE * shape.kv_heads * shape.head_dim
}

pub(super) fn slab<'a>(keys: &'a [f16], values: &'a [f16], shape: &Shape) -> Slab<'a> {
    let (keys, values) = (Matrix::F16(keys), Matrix::F16(values));
    Slab {
        keys,
        values,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    }
}

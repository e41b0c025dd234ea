//! INT8 activations by INT8 weights.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512_rows;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_vnni;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx_vnni;
#[cfg(target_arch = "aarch64")]
pub(super) mod dotprod;
#[cfg(target_arch = "aarch64")]
pub(super) mod i8mm;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(crate) mod quantize;
pub(super) mod reference;
pub(crate) mod rows;
pub(crate) mod shadow;
#[cfg(target_arch = "aarch64")]
pub(super) mod sme;
mod tile;
pub(crate) mod weight;

use std::ops::Range;

use crate::output::SharedOutput;
use quantize::ActivationRow;
use rows::{Outliers, QuantizedView};
use shadow::ShadowColumns;
use weight::Int8Weight;

/// The largest magnitude of a quantized number: symmetric, so −128 is never used.
pub(crate) const LARGEST: f32 = 127.0;

/// The most input features of a layer, so that no sum of products leaves i32.
pub const MAX_IN_FEATURES: usize = i32::MAX as usize / (127 * 127);

/// One way to multiply. All kernels sum the same products in i32 and end each output in one order of
/// operations, [`output`]'s, so that all of them give the same bits.
pub(crate) trait Int8Kernel: Send + Sync {
    /// Instruction set and, after it, the instruction that multiplies.
    fn name(&self) -> &'static str;

    /// Rows of one task, at most, of activations with so many features: enough that a panel of weights, once in the cache, is
    /// used well.
    fn task_rows(&self, _in_features: usize) -> usize {
        96
    }

    /// Computes the outputs of one rectangle.
    fn multiply(&self, rectangle: &Rectangle);

    /// Fills the stored numbers of one row of activations, and adds those beyond the limit to `outliers`, ascending.
    /// What is stored for one that is no number is left open.
    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        row.quantize(numbers, outliers);
    }

    /// The shadow of some columns.
    fn shadow(&self, columns: &ShadowColumns) {
        columns.compute();
    }
}

/// Rows and columns of one output matrix that belong to one task alone.
pub(crate) struct Rectangle<'a> {
    pub x: QuantizedView<'a>,
    pub rows: Range<usize>,
    pub weight: Int8Weight<'a>,
    /// Output channels, from a multiple of sixteen on.
    pub columns: Range<usize>,
    pub bias: Option<&'a [f32]>,
    pub out: SharedOutput<'a>,
}

/// One output from its sum of products: the definition that vector kernels follow operation by operation.
#[inline(always)]
pub(crate) fn output(sum: i32, row_scale: f32, weight_scale: f32, bias: f32) -> f32 {
    sum as f32 * (row_scale * weight_scale) + bias
}

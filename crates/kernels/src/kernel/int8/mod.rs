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
mod limits;
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
pub(crate) use limits::LARGEST;
pub use limits::MAX_IN_FEATURES;
use quantize::ActivationRow;
use rows::{Outliers, QuantizedView};
use shadow::ShadowColumns;
use weight::Int8Weight;

/// One way to multiply. All kernels sum the same products in i32 and compute each output by the same operations in the
/// same order as [`output`], so all of them give the same bits.
pub(crate) trait Int8Kernel: Send + Sync {
    /// Returns the instruction set and, after it, the instruction that multiplies.
    fn name(&self) -> &'static str;

    /// Returns the maximum number of rows per task for activations with so many features: enough to reuse a panel of
    /// weights well while it is in the cache.
    fn task_rows(&self, _in_features: usize) -> usize {
        96
    }

    /// Computes the outputs of one rectangle.
    fn multiply(&self, rectangle: &Rectangle);

    /// Writes the quantized numbers of one row of activations, and appends those beyond the limit to `outliers`,
    /// ascending by channel. The stored byte for NaN or infinity is unspecified.
    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        row.quantize(numbers, outliers);
    }

    /// Computes the shadow of some columns.
    fn shadow(&self, columns: &ShadowColumns) {
        columns.compute();
    }
}

/// Rows and columns of an output matrix that only one task writes.
pub(crate) struct Rectangle<'a> {
    pub x: QuantizedView<'a>,
    pub rows: Range<usize>,
    pub weight: Int8Weight<'a>,
    /// Output channels; the first is a multiple of sixteen.
    pub columns: Range<usize>,
    pub bias: Option<&'a [f32]>,
    pub out: SharedOutput<'a>,
}

/// Computes one output from its sum of products: the definition that vector kernels follow operation by operation.
#[inline(always)]
pub(crate) fn output(sum: i32, row_scale: f32, weight_scale: f32, bias: f32) -> f32 {
    sum as f32 * (row_scale * weight_scale) + bias
}

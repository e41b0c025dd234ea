//! 32-bit words, in panels: numbers in f32, pairs of bf16, and pairs of INT16.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx_bf16;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2_pairs;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_exp2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_pairs;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon_bf16;
pub(crate) mod pairs;
pub(super) mod portable;
mod powers;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod vector;

use std::ops::Range;

use crate::activation::exp2;
use crate::dot::sum;
use crate::log_softmax::largest;
use crate::output::SharedOutput;
use crate::vectorize::vectorize_fused;
use pairs::{Purpose, ValueUnits};
pub(crate) use powers::{PANEL, Powers};

/// Columns per block; the width of a tile is a multiple of this.
pub(crate) const LANES: usize = 16;

/// One way to multiply 32-bit words: numbers in f32, or pairs of bf16 or INT16 that are consecutive in depth. Products
/// are added to sums in f32; those of INT16 are added exactly to sums in i32, whose bits are stored in place of f32.
/// Kernels of f32 and bf16 differ in whether products are rounded before they are added.
pub(crate) trait PanelKernel: Send + Sync {
    /// Returns the name of its instruction set.
    fn name(&self) -> &'static str;

    /// Multiplies all rows by one panel.
    fn multiply(&self, panel: &Panel);

    /// Returns how many numbers of the depth are multiplied at once: a multiple takes no longer than fewer numbers. At
    /// most half the columns of a panel.
    fn step(&self) -> usize {
        1
    }

    /// Returns how many query rows times query heads attention multiplies at once, unless one row has more: their
    /// scores stay in a core's caches.
    fn strip(&self) -> usize {
        48
    }

    /// Transposes a square of 16 × 16 words: `to[c * to_stride + r] = from[r * from_stride + c]`.
    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize);
}

/// A kernel for pairs of bf16, and conversions to them. Rounds to nearest, ties to even.
pub(crate) trait Bf16Kernel: PanelKernel {
    /// Rounds a row to pairs of consecutive numbers; the last of an odd number is paired with zero.
    fn to_bf16(&self, row: &[f32], words: &mut [u32]);

    /// Rounds each number of `even` and the one at the same index of `odd` to a pair.
    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]);

    /// Writes 2^(x − m) for each exponent x in `visible`, and zero for all others, in the layout of
    /// [`Bf16Kernel::to_bf16`], where m is the maximum of `before` and these exponents. Powers are exact to 2⁻¹³. The
    /// returned sum is that of the powers before rounding. Overwrites the exponents.
    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> Powers;
}

/// A kernel for pairs of INT16.
pub(crate) trait PairKernel: PanelKernel {
    /// Rounds rows of `width` numbers to pairs of consecutive numbers (the last of an odd number is paired with zero),
    /// and writes the unit of each row to `units`. The unit is NaN if a number is NaN; if one is infinite, it is
    /// infinity, and all others are zeros.
    fn round(
        &self,
        rows: &[f32],
        width: usize,
        purpose: Purpose,
        words: &mut [u32],
        units: &mut Vec<f32>,
    ) {
        pairs::round(rows, width, purpose, words, units);
    }

    /// Writes 2^(x − m) for each exponent x in `visible`, and zero for all others, each times the unit of its value, as
    /// words, where m is the maximum of `before` and these exponents. Powers are exact to 2⁻¹³. The returned sum is
    /// that of the powers before rounding. Also returns the unit of the words. Overwrites the exponents, of which there
    /// are at most [`pairs::WEIGHTS`].
    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        units: ValueUnits,
        words: &mut [u32],
    ) -> (Powers, f32) {
        let powers = powers_of_two(exponents, visible, before);
        let unit = units.of_weights(&powers);
        pairs::round_weights(exponents, units.each, unit, words);
        (powers, unit)
    }
}

/// Columns of an output matrix, at most [`PANEL`], that only one task writes.
pub(crate) struct Panel<'a> {
    /// `[rows of out, steps]`.
    pub left: &'a [u32],
    pub left_stride: usize,
    pub steps: usize,
    /// `[steps, columns]`, padded to a multiple of [`LANES`] columns.
    pub right: &'a [u32],
    pub right_stride: usize,
    pub out: SharedOutput<'a>,
    pub columns: Range<usize>,
    /// Whether the product is added to `out` or replaces it.
    pub add: bool,
}

impl Panel<'_> {
    /// Asserts that the slices contain everything that a kernel reads: all rows of the output, and whole blocks of
    /// columns.
    pub fn check(&self) {
        let (rows, blocks) = (self.out.rows(), self.columns.len().div_ceil(LANES));
        assert!(self.steps > 0 && (rows - 1) * self.left_stride + self.steps <= self.left.len());
        assert!((self.steps - 1) * self.right_stride + blocks * LANES <= self.right.len());
    }
}

/// Replaces each exponent x in `visible` by 2^(x − m), and all others by zero, where m is the maximum of `before` and
/// these exponents.
pub(crate) fn powers_of_two(exponents: &mut [f32], visible: Range<usize>, before: f32) -> Powers {
    // Whole blocks of lanes if there are enough exponents. Lanes are counted from an index that does not depend on
    // `visible`, so the order of the sum does not depend on it either.
    let first = visible.start / LANES * LANES;
    let end = visible.end.next_multiple_of(LANES).min(exponents.len());
    exponents[..first].fill(0.0);
    exponents[end..].fill(0.0);
    // The powers of these are zero.
    exponents[first..visible.start].fill(f32::MIN);
    exponents[visible.end..end].fill(f32::MIN);
    let exponents = &mut exponents[first..end];
    vectorize_fused(
        #[inline(always)]
        |fused| {
            let of_visible = largest(exponents).max(f32::MIN);
            let largest = of_visible.max(before);
            let mut sums = [0.0f32; LANES];
            let (blocks, rest) = exponents.as_chunks_mut::<LANES>();
            for block in blocks {
                for lane in 0..LANES {
                    block[lane] = exp2(block[lane] - largest, fused);
                    sums[lane] += block[lane];
                }
            }
            for (exponent, sum) in rest.iter_mut().zip(&mut sums) {
                *exponent = exp2(*exponent - largest, fused);
                *sum += *exponent;
            }
            Powers {
                of_visible,
                largest,
                sum: sum(sums),
            }
        },
    )
}

/// Asserts that both slices contain sixteen words of each of sixteen rows.
#[cfg(target_arch = "x86_64")]
pub(crate) fn check_transpose(from: &[u32], from_stride: usize, to: &[u32], to_stride: usize) {
    let last = |stride| (LANES - 1) * stride + LANES;
    assert!(last(from_stride) <= from.len() && last(to_stride) <= to.len());
}

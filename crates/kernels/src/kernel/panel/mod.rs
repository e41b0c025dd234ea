//! Words of 32 bits, in panels: numbers in f32, pairs of bf16, and pairs of INT16.

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
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod vector;

use std::ops::Range;

use crate::activation::exp2;
use crate::dot::sum;
use crate::log_softmax::largest;
use crate::output::SharedOutput;
use crate::vectorize::vectorize_fused;
use pairs::{Purpose, ValueUnits};

/// Columns of a panel: those of the widest tile of a kernel.
pub(crate) const PANEL: usize = 64;
/// Columns of a block: what a tile's width is a multiple of.
pub(crate) const LANES: usize = 16;

/// One way to multiply words of 32 bits: numbers in f32, or pairs of bf16 or INT16 that are neighbours in depth. Products are
/// added to sums in f32; those of INT16 to sums in i32, exactly, whose bits are then where those of f32 are elsewhere. Kernels of
/// f32 and bf16 differ in whether products are rounded before they are added.
pub(crate) trait PanelKernel: Send + Sync {
    /// Name of its instruction set.
    fn name(&self) -> &'static str;

    /// Multiplies all rows by one panel.
    fn multiply(&self, panel: &Panel);

    /// Numbers of the depth that it multiplies at once: a multiple takes no longer than fewer, and columns are half a panel at
    /// most.
    fn step(&self) -> usize {
        1
    }

    /// Query rows times query heads that attention multiplies at once, unless one row has more: their scores stay in a core's
    /// caches.
    fn strip(&self) -> usize {
        48
    }

    /// Transposes a square of 16 × 16 words: `to[c * to_stride + r] = from[r * from_stride + c]`.
    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize);
}

/// A kernel for pairs of bf16, and conversions to them. Rounds to nearest, ties to even.
pub(crate) trait Bf16Kernel: PanelKernel {
    /// Rounds a row to pairs of neighbours; the last of an odd number is paired with zero.
    fn to_bf16(&self, row: &[f32], words: &mut [u32]);

    /// Rounds each number of `even` and the one at the same index of `odd` to a pair.
    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]);

    /// Writes 2^(x − m) for each x of the exponents in `visible`, and zero for all others, in the layout of
    /// [`Bf16Kernel::to_bf16`], where m is the largest of those exponents and of `before`. Powers are exact to 2⁻¹³.
    /// Their sum is that before they are rounded. Overwrites the exponents.
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
    /// Rounds rows of `width` numbers to pairs of neighbours, the last of an odd number beside a zero, and returns the unit of
    /// each in `units`: NaN if a number is; if one is infinite, infinity, and all others are zeros.
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

    /// Writes 2^(x − m) for each x of the exponents in `visible`, and zero for all others, each times the unit of its value, as
    /// words, where m is the largest of those exponents and of `before`. Powers are exact to 2⁻¹³. Their sum is that before they
    /// are rounded. Returns the unit of the words as well. Overwrites the exponents, of which there are at most
    /// [`pairs::WEIGHTS`].
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

/// Powers of two.
pub(crate) struct Powers {
    /// The largest exponent of those that are visible; the smallest finite number if there is none that is larger.
    pub of_visible: f32,
    /// The largest of that and the one before, which the powers are relative to. Neither is NaN.
    pub largest: f32,
    /// Their sum.
    pub sum: f32,
}

/// Columns of an output matrix, at most [`PANEL`], that belong to one task alone.
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
    /// Asserts that all that a kernel reads is in the slices: all rows of the output, and whole blocks of columns.
    pub fn check(&self) {
        let (rows, blocks) = (self.out.rows(), self.columns.len().div_ceil(LANES));
        assert!(self.steps > 0 && (rows - 1) * self.left_stride + self.steps <= self.left.len());
        assert!((self.steps - 1) * self.right_stride + blocks * LANES <= self.right.len());
    }
}

/// Replaces each x of the exponents in `visible` by 2^(x − m), and all others by zero, where m is the largest of those
/// exponents and of `before`.
pub(crate) fn powers_of_two(exponents: &mut [f32], visible: Range<usize>, before: f32) -> Powers {
    // Whole blocks of lanes where there are as many exponents. Lanes are counted from an index that does not depend on what
    // is visible, so that neither does the order of the sum.
    let first = visible.start / LANES * LANES;
    let end = visible.end.next_multiple_of(LANES).min(exponents.len());
    exponents[..first].fill(0.0);
    exponents[end..].fill(0.0);
    // Their powers are zero.
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

/// Asserts that both slices contain sixteen words of sixteen rows.
#[cfg(target_arch = "x86_64")]
pub(crate) fn check_transpose(from: &[u32], from_stride: usize, to: &[u32], to_stride: usize) {
    let last = |stride| (LANES - 1) * stride + LANES;
    assert!(last(from_stride) <= from.len() && last(to_stride) <= to.len());
}

//! The table of kernels.

use std::ops::Range;
use std::sync::LazyLock;

#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512, avx512_bf16::Avx512Bf16};
use crate::output::SharedOutput;
use crate::tier::{self, Tier};

/// Columns of a block: what a tile's width is a multiple of.
pub(super) const LANES: usize = 16;

/// One way to multiply words of 32 bits: numbers in f32, or pairs of bf16 that are neighbours in depth, each product
/// added to sums in f32. Kernels differ in whether products are rounded before they are added.
pub(super) trait Kernel: Send + Sync {
    /// Name of its instruction set.
    fn name(&self) -> &'static str;

    /// The tier that it belongs to.
    fn tier(&self) -> Tier;

    /// Multiplies all rows by one panel.
    fn multiply(&self, panel: &Panel);

    /// Transposes a square of 16 × 16 words: `to[c * to_stride + r] = from[r * from_stride + c]`.
    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize);
}

/// A kernel for pairs of bf16, and conversions to them. Rounds to nearest, ties to even.
pub(super) trait Bf16Kernel: Kernel {
    /// Rounds a row to pairs of neighbours; the last of an odd number is paired with zero.
    fn to_bf16(&self, row: &[f32], words: &mut [u32]);

    /// Rounds each number of `even` and the one at the same index of `odd` to a pair.
    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]);

    /// Writes 2^(x − m) for each x of the exponents in `visible`, and zero for all others, in the layout of
    /// [`Bf16Kernel::to_bf16`], where m is the largest of those exponents and of `largest`. Powers are exact to 2⁻¹³.
    /// Returns m and the sum of the powers before they are rounded. Overwrites exponents that are not visible.
    fn exp2_and_sum(&self, exponents: &mut [f32], visible: Range<usize>, largest: f32, words: &mut [u32])
    -> (f32, f32);
}

/// Columns of an output matrix, at most [`PANEL`](super::PANEL), that belong to one task alone.
pub(super) struct Panel<'a> {
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

/// Asserts that both slices contain sixteen words of sixteen rows.
#[cfg(target_arch = "x86_64")]
pub(super) fn check_transpose(from: &[u32], from_stride: usize, to: &[u32], to_stride: usize) {
    let last = |stride| (LANES - 1) * stride + LANES;
    assert!(last(from_stride) <= from.len() && last(to_stride) <= to.len());
}

/// The kernel for pairs of bf16, if this processor has instructions for them.
pub(super) fn bf16() -> Option<&'static dyn Bf16Kernel> {
    #[cfg(target_arch = "x86_64")]
    {
        static KERNEL: LazyLock<Option<Avx512Bf16>> = LazyLock::new(Avx512Bf16::new);
        KERNEL.as_ref().filter(|kernel| tier::may_be_used(kernel.tier())).map(|kernel| kernel as &dyn Bf16Kernel)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The kernels for f32 that this processor can run and that may be used, best first.
pub(super) fn available() -> &'static [Box<dyn Kernel>] {
    static AVAILABLE: LazyLock<Vec<Box<dyn Kernel>>> = LazyLock::new(|| {
        let table = [
            #[cfg(target_arch = "x86_64")]
            boxed(Avx512::new()),
            #[cfg(target_arch = "x86_64")]
            boxed(Avx2::new()),
            #[cfg(target_arch = "aarch64")]
            boxed(Some(Neon)),
            boxed(Some(Portable)),
        ];
        table.into_iter().flatten().filter(|kernel| tier::may_be_used(kernel.tier())).collect()
    });
    &AVAILABLE
}

fn boxed<K: Kernel + 'static>(kernel: Option<K>) -> Option<Box<dyn Kernel>> {
    kernel.map(|kernel| Box::new(kernel) as Box<dyn Kernel>)
}

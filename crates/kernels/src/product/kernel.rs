//! The table of kernels.

use std::ops::Range;
use std::sync::LazyLock;

#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512, avx512_bf16::Avx512Bf16};
use crate::shared_output::SharedOutput;
use crate::tier::{self, Tier};

/// Columns of a block: what a tile's width is a multiple of.
pub(super) const LANES: usize = 16;

/// One way to multiply words of 32 bits: numbers in f32, or pairs of bf16 that are neighbours in depth, each product
/// added to sums in f32. Kernels differ in whether products are rounded before they are added.
pub(super) trait Kernel: Send + Sync {
    /// Its instruction set.
    fn name(&self) -> &'static str;

    /// The tier that it belongs to.
    fn tier(&self) -> Tier;

    /// All rows of one panel.
    fn multiply(&self, panel: &Panel);

    /// Turns a square: word `c` of the `r`-th sixteen of `from`, whose rows are `from_stride` apart, becomes word
    /// `r` of the `c`-th sixteen of `to`.
    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize);
}

/// A kernel for pairs of bf16, and what else its processor can do with them. Numbers are rounded to the even neighbour
/// where two are as near.
pub(super) trait Bf16Kernel: Kernel {
    /// Pairs of neighbours of a row, a zero beside the last of an odd number.
    fn narrow(&self, row: &[f32], words: &mut [u32]);

    /// Pairs of each number of `even` with the one at its place in `odd`.
    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]);

    /// 2 to the power of each exponent in `visible` less the largest of them and of `largest`, and zero for all others, as
    /// [`Bf16Kernel::narrow`] makes words. Powers are exact to 2⁻¹³. Answers the largest, and the sum of the powers before
    /// they are rounded. What is not visible is spoiled.
    fn powers(&self, exponents: &mut [f32], visible: Range<usize>, largest: f32, words: &mut [u32]) -> (f32, f32);
}

/// Columns of an output matrix, at most [`PANEL`](super::PANEL), that belong to one task alone.
pub(super) struct Panel<'a> {
    /// `[rows of out, steps]`.
    pub left: &'a [u32],
    pub left_stride: usize,
    pub steps: usize,
    /// `[steps, columns]`, and words that don't count up to the next multiple of [`LANES`] columns.
    pub right: &'a [u32],
    pub right_stride: usize,
    pub out: SharedOutput<'a>,
    pub columns: Range<usize>,
    /// Adds to what is there.
    pub add: bool,
}

impl Panel<'_> {
    /// Asserts that everything a kernel reads is there: all rows of the output, and whole blocks of columns.
    pub fn check(&self) {
        let (rows, blocks) = (self.out.rows(), self.columns.len().div_ceil(LANES));
        assert!(self.steps > 0 && (rows - 1) * self.left_stride + self.steps <= self.left.len());
        assert!((self.steps - 1) * self.right_stride + blocks * LANES <= self.right.len());
    }
}

/// Asserts that sixteen words of sixteen rows lie in both slices.
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

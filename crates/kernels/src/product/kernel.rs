//! The table of kernels.

use std::ops::Range;
use std::sync::LazyLock;

use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::shared_output::SharedOutput;

/// Columns of a block: what a tile's width is a multiple of.
pub(super) const LANES: usize = 16;

/// One way to multiply. Kernels differ in whether products are rounded before they are added.
pub(super) trait Kernel: Send + Sync {
    /// Its instruction set.
    fn name(&self) -> &'static str;

    /// All rows of one panel.
    fn multiply(&self, panel: &Panel);

    /// Turns a square: number `c` of the `r`-th sixteen of `from`, whose rows are `from_stride` apart, becomes number
    /// `r` of the `c`-th sixteen of `to`.
    fn transpose(&self, from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize);
}

/// Columns of an output matrix, at most [`PANEL`](super::PANEL), that belong to one task alone.
pub(super) struct Panel<'a> {
    /// `[rows of out, steps]`.
    pub left: &'a [f32],
    pub left_stride: usize,
    pub steps: usize,
    /// `[steps, columns]`, and numbers that don't count up to the next multiple of [`LANES`] columns.
    pub right: &'a [f32],
    pub right_stride: usize,
    pub out: SharedOutput<'a>,
    pub columns: Range<usize>,
    /// Adds to what is there.
    pub add: bool,
}

impl Panel<'_> {
    /// Asserts that everything a kernel reads is there: rows `row..row + rows`, and whole blocks of columns.
    pub fn check(&self) {
        let (rows, blocks) = (self.out.rows(), self.columns.len().div_ceil(LANES));
        assert!(self.steps > 0 && (rows - 1) * self.left_stride + self.steps <= self.left.len());
        assert!((self.steps - 1) * self.right_stride + blocks * LANES <= self.right.len());
    }
}

/// The kernels that this processor can run, best first.
pub(super) fn available() -> &'static [Box<dyn Kernel>] {
    static AVAILABLE: LazyLock<Vec<Box<dyn Kernel>>> = LazyLock::new(|| {
        let table = [
            #[cfg(target_arch = "x86_64")]
            boxed(Avx512::new()),
            #[cfg(target_arch = "x86_64")]
            boxed(Avx2::new()),
            boxed(Some(Portable)),
        ];
        table.into_iter().flatten().collect()
    });
    &AVAILABLE
}

fn boxed<K: Kernel + 'static>(kernel: Option<K>) -> Option<Box<dyn Kernel>> {
    kernel.map(|kernel| Box::new(kernel) as Box<dyn Kernel>)
}

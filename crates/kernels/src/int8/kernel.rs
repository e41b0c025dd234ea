//! The table of kernels.

use std::ops::Range;
use std::sync::LazyLock;

use super::activations::{ActivationRow, Outliers};
use super::reference::Reference;
use super::shadow::ShadowColumns;
use super::{Int8Weight, QuantizedView};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512_vnni::Avx512Vnni};
#[cfg(target_arch = "aarch64")]
use super::{dotprod::DotProduct, i8mm::MatrixProduct, neon::Neon};
use crate::output::SharedOutput;
use crate::tier::{self, Tier};

/// One way to multiply. All kernels sum the same products in i32 and end each output in one order of
/// operations, [`output`]'s, so that all of them give the same bits.
pub(super) trait Kernel: Send + Sync {
    /// Instruction set and, after it, the instruction that multiplies.
    fn name(&self) -> &'static str;

    /// The tier that it belongs to.
    fn tier(&self) -> Tier;

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
pub(super) struct Rectangle<'a> {
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
pub(super) fn output(sum: i32, row_scale: f32, weight_scale: f32, bias: f32) -> f32 {
    sum as f32 * (row_scale * weight_scale) + bias
}

/// The kernels that this processor can run and that may be used, best first; the last is the reference.
pub(super) fn available() -> &'static [Box<dyn Kernel>] {
    static AVAILABLE: LazyLock<Vec<Box<dyn Kernel>>> = LazyLock::new(|| {
        let table = [
            #[cfg(target_arch = "x86_64")]
            boxed(Avx512Vnni::new()),
            #[cfg(target_arch = "x86_64")]
            boxed(Avx2::new()),
            #[cfg(target_arch = "aarch64")]
            boxed(MatrixProduct::new()),
            #[cfg(target_arch = "aarch64")]
            boxed(DotProduct::new()),
            #[cfg(target_arch = "aarch64")]
            boxed(Some(Neon)),
            boxed(Some(Reference)),
        ];
        table.into_iter().flatten().filter(|kernel| tier::may_be_used(kernel.tier())).collect()
    });
    &AVAILABLE
}

fn boxed<K: Kernel + 'static>(kernel: Option<K>) -> Option<Box<dyn Kernel>> {
    kernel.map(|kernel| Box::new(kernel) as Box<dyn Kernel>)
}

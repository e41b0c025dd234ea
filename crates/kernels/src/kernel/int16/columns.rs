//! The trait of INT16 kernels, and the columns of an output that they compute.

use std::ops::Range;

use half::f16;
use triad_blocks::BlockFormat;

#[cfg(target_arch = "x86_64")]
use super::steps::ByteStep;
use super::steps::Step;
use super::{Int16Rows, PART, check_int4};
use crate::int4::{GROUP, HALF};
use crate::output::SharedOutput;

/// One way to multiply rows of INT16 by weights in INT8 and INT4. A row gets the same bits whatever other rows are in
/// the batch.
///
/// With weights in INT8, a sum of products is exact, and its output is `sum as f32 * (unit * scale)`.
///
/// With weights in INT4, each step of four groups gives sixteen exact sums. These are converted to f32, multiplied by
/// their group's scale and added to sixteen sums of the row and column. The output is the total of these, adding one
/// half to the other repeatedly, times the row's unit.
///
/// With quantized blocks, each block gives sixteen exact sums of products of neighbouring pairs, which are added in the
/// same way. Super-blocks also have a minimum for every sixteen numbers, whose products are subtracted after these sums
/// are added. A format of blocks of 32 has two sets of sixteen sums, for blocks at odd and at even places, and NVFP4 has
/// two, for the first and the second 32 numbers of its blocks, where the halves of a set have a scale each. All others
/// have one set. Minimums of blocks of 32 likewise have one sum for even and one for odd places.
///
/// Kernels differ only in whether products are rounded before they are added: if a processor has an instruction that
/// rounds once, they are not.
pub(crate) trait Int16Kernel: Send + Sync {
    /// Returns the instruction set and, after it, the instruction that multiplies.
    fn name(&self) -> &'static str;

    /// Computes all rows of some columns of weights in INT8.
    fn multiply_int8(&self, columns: &Int8Columns);

    /// Computes all rows of some columns of weights in INT4.
    fn multiply_int4(&self, columns: &Int4Columns);

    /// Computes all rows of some columns of weights in quantized blocks.
    fn multiply_blocks(&self, columns: &BlockColumns);
}

/// Columns of an output matrix that only one task writes, with weights in INT8.
pub(crate) struct Int8Columns<'a> {
    pub x: &'a Int16Rows,
    /// `[columns, in_features]`.
    pub weights: &'a [i8],
    /// `[columns]`.
    pub scales: &'a [f32],
    pub columns: Range<usize>,
    pub out: SharedOutput<'a>,
}

/// Columns of an output matrix that only one task writes, with weights in INT4.
pub(crate) struct Int4Columns<'a> {
    /// Activations with the order that these weights need: [`Int16Rows::fill_steps`].
    pub x: &'a Int16Rows,
    /// `[columns, in_features / 2]`.
    pub weights: &'a [u8],
    /// `[columns, groups]`.
    pub scales: &'a [f16],
    pub columns: Range<usize>,
    pub out: SharedOutput<'a>,
}

/// Columns of an output matrix that only one task writes, with weights in quantized blocks.
pub(crate) struct BlockColumns<'a> {
    /// Activations with the sums of parts: [`Int16Rows::fill_sums`].
    pub x: &'a Int16Rows,
    pub format: BlockFormat,
    /// `[columns, in_features / elements of a block]` blocks.
    pub bytes: &'a [u8],
    pub columns: Range<usize>,
    pub out: SharedOutput<'a>,
}

impl Int8Columns<'_> {
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, kernel: &dyn Int16Kernel) {
        let (count, in_features) = (self.columns.len(), self.x.in_features);
        assert_eq!(
            self.weights.len(),
            count * in_features,
            "weights are [{count}, {in_features}]"
        );
        assert_eq!(self.scales.len(), count, "expected one scale per column");
        kernel.multiply_int8(self);
    }

    /// Returns the weights of one of these columns.
    pub(super) fn weights_of(&self, column: usize) -> &[i8] {
        &self.weights[column * self.x.in_features..][..self.x.in_features]
    }

    /// Writes the output of a row and one of these columns.
    #[inline]
    pub(super) fn write(&self, row: usize, column: usize, value: f32) {
        write(self.out, row, &self.columns, column, value);
    }
}

impl Int4Columns<'_> {
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, kernel: &dyn Int16Kernel) {
        check_int4(
            self.x.in_features,
            self.columns.len(),
            self.weights,
            self.scales,
        );
        assert_eq!(
            self.x.steps.len(),
            self.x.rows() * self.x.steps_of_row(),
            "expected the steps of all rows"
        );
        kernel.multiply_int4(self);
    }

    /// Returns the number of groups per column.
    pub(super) fn groups(&self) -> usize {
        self.x.in_features / GROUP
    }

    /// Returns the weights and scales of one of these columns.
    pub(super) fn column(&self, column: usize) -> (&[u8], &[f16]) {
        let groups = self.groups();
        (
            &self.weights[column * groups * HALF..][..groups * HALF],
            &self.scales[column * groups..][..groups],
        )
    }

    /// Returns the steps of a row.
    pub(super) fn steps(&self, row: usize) -> &[Step] {
        &self.x.steps[row * self.x.steps_of_row()..][..self.x.steps_of_row()]
    }

    /// Returns the steps in bytes of the only row.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn byte_steps(&self) -> &[ByteStep] {
        assert_eq!(
            self.x.byte_steps.len(),
            self.x.steps_of_row(),
            "expected the steps in bytes of one row"
        );
        &self.x.byte_steps
    }

    /// Does the same as [`Int8Columns::write`].
    #[inline]
    pub(super) fn write(&self, row: usize, column: usize, value: f32) {
        write(self.out, row, &self.columns, column, value);
    }
}

impl BlockColumns<'_> {
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, kernel: &dyn Int16Kernel) {
        let (count, column) = (self.columns.len(), self.column_bytes());
        assert_eq!(
            self.bytes.len(),
            count * column,
            "weights are [{count}, {}] in {}",
            self.x.in_features,
            self.format
        );
        assert_eq!(
            self.x.sums.len(),
            self.x.rows() * self.x.in_features / PART,
            "expected the sums of all rows"
        );
        kernel.multiply_blocks(self);
    }

    /// Returns the bytes per column.
    pub(super) fn column_bytes(&self) -> usize {
        self.format.bytes_for(self.x.in_features)
    }

    /// Returns the blocks of one of these columns.
    pub(super) fn column(&self, column: usize) -> &[u8] {
        &self.bytes[column * self.column_bytes()..][..self.column_bytes()]
    }

    /// Does the same as [`Int8Columns::write`].
    #[inline]
    pub(super) fn write(&self, row: usize, column: usize, value: f32) {
        write(self.out, row, &self.columns, column, value);
    }
}

#[inline]
fn write(out: SharedOutput, row: usize, columns: &Range<usize>, column: usize, value: f32) {
    let place = columns.start + column;
    assert!(place < columns.end, "expected a column of this task");
    // SAFETY: only this task writes these columns, and it has no other slice of them.
    #[allow(unsafe_code)]
    unsafe {
        out.row(row, place..place + 1)[0] = value;
    }
}

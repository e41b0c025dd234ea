//! Shared code of kernels whose tiles are some rows of one block of output channels. Such a kernel only defines how to
//! sum products.

use std::ops::Range;

use super::weight::{BLOCK, QUAD, STEP};
use super::{Rectangle, output};

/// The quads of some rows of activations.
pub(super) type Rows<'a, const ROWS: usize> = [&'a [[u8; QUAD]]; ROWS];

/// Sums of one block of output channels for some rows.
pub(super) type Sums<const ROWS: usize> = [[i32; BLOCK]; ROWS];

/// Computes a rectangle with `sum`, which receives the activations of [`Rows`] and all steps of a block, equal in
/// number.
#[inline(always)]
pub(super) fn multiply<const ROWS: usize>(
    rectangle: &Rectangle,
    sum: impl Fn(Rows<ROWS>, &[[i8; STEP]]) -> Sums<ROWS>,
) {
    for column in rectangle.columns.clone().step_by(BLOCK) {
        let columns = column..(column + BLOCK).min(rectangle.columns.end);
        let weights = rectangle.weight.block(column / BLOCK);
        for row in rectangle.rows.clone().step_by(ROWS) {
            let rows = row..(row + ROWS).min(rectangle.rows.end);
            let mut x: Rows<ROWS> = [&[]; ROWS];
            for (index, x) in x.iter_mut().enumerate() {
                // Missing rows are replaced by the last one, and not written.
                *x = rectangle.x.quads((row + index).min(rows.end - 1));
            }
            let sums = sum(x, weights);
            for (row, sums) in rows.zip(&sums) {
                write(rectangle, row, columns.clone(), sums);
            }
        }
    }
}

/// Writes the outputs of some columns of one row of a rectangle; `sums` may have more at the end.
#[inline(always)]
pub(super) fn write(rectangle: &Rectangle, row: usize, columns: Range<usize>, sums: &[i32]) {
    // SAFETY: only this task writes the rectangle.
    #[allow(unsafe_code)]
    let out = unsafe { rectangle.out.row(row, columns.clone()) };
    let row_scale = rectangle.x.scales()[row];
    for ((out, column), sum) in out.iter_mut().zip(columns).zip(sums) {
        let bias = rectangle.bias.map_or(0.0, |bias| bias[column]);
        *out = output(*sum, row_scale, rectangle.weight.scales[column], bias);
    }
}

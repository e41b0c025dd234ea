//! The plain kernel: the oracle of all others, and what processors without a kernel of their own run.

use super::kernel::{Kernel, Rectangle, output};
use super::layout::{BLOCK, QUAD};
use crate::vectorize::vectorize;

/// Rows that share one widening of the weights.
const ROWS: usize = 4;

/// Plain Rust, in the widest registers that the processor has.
pub(super) struct Reference;

impl Kernel for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        vectorize(
            #[inline(always)]
            || {
                for column in rectangle.columns.clone().step_by(BLOCK) {
                    for row in rectangle.rows.clone().step_by(ROWS) {
                        tile(rectangle, row, column);
                    }
                }
            },
        );
    }
}

/// Up to four rows of one block of output channels.
#[inline(always)]
fn tile(rectangle: &Rectangle, row: usize, column: usize) {
    let rows = row..(row + ROWS).min(rectangle.rows.end);
    let mut sums = [[0i32; BLOCK]; ROWS];
    // Where rows are missing, the last one is computed again and left out.
    let quads: [_; ROWS] = std::array::from_fn(|index| rectangle.x.quads((row + index).min(rows.end - 1)));
    for (step, weights) in rectangle.weight.block(column / BLOCK).iter().enumerate() {
        let (weights, _) = weights.as_chunks::<QUAD>();
        for place in 0..QUAD {
            let mut widened = [0; BLOCK];
            for (widened, quad) in widened.iter_mut().zip(weights) {
                // The byte at `place` with its sign: whole words and shifts vectorize, strided bytes do not.
                *widened = i32::from_le_bytes(quad.map(|byte| byte as u8)) << (24 - 8 * place) >> 24;
            }
            for (sums, x) in sums.iter_mut().zip(quads) {
                let x = i32::from(x[step][place]) - 128;
                for (sum, widened) in sums.iter_mut().zip(widened) {
                    *sum += x * widened;
                }
            }
        }
    }
    let columns = column..(column + BLOCK).min(rectangle.columns.end);
    for (row, sums) in rows.zip(&sums) {
        // SAFETY: the rectangle belongs to this task alone.
        #[allow(unsafe_code)]
        let out = unsafe { rectangle.out.row(row, columns.clone()) };
        for ((out, column), sum) in out.iter_mut().zip(columns.clone()).zip(sums) {
            let bias = rectangle.bias.map_or(0.0, |bias| bias[column]);
            *out = output(*sum, rectangle.x.scales()[row], rectangle.weight.scales[column], bias);
        }
    }
}

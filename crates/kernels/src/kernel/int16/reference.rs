//! The plain kernel: the oracle for all others, and the kernel of processors that have no other.

use half::f16;

use super::blocks::{self, Plain, Tiles, with_tiles};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::steps::{GROUPS, MASK, STEP, SUMS, Step};
use crate::dot::sum;
use crate::vectorize::{Fused, vectorize, vectorize_fused};

/// Plain Rust, in the widest registers that the processor has.
pub(in crate::kernel) struct Reference;

impl Int16Kernel for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply_int8(&self, columns: &Int8Columns) {
        vectorize(
            #[inline(always)]
            || {
                for column in 0..columns.columns.len() {
                    let weights = columns.weights_of(column);
                    for row in 0..columns.x.rows() {
                        let mut sum = 0;
                        // LLVM sums pairs of products of 16-bit numbers, as the kernels' instructions do.
                        for (x, weight) in columns.x.row(row).iter().zip(weights) {
                            sum += i32::from(*x) * i32::from(*weight);
                        }
                        let unit = columns.x.scales()[row] * columns.scales[column];
                        columns.write(row, column, sum as f32 * unit);
                    }
                }
            },
        );
    }

    fn multiply_int4(&self, columns: &Int4Columns) {
        vectorize_fused(
            #[inline(always)]
            |fused| {
                for column in 0..columns.columns.len() {
                    let (weights, scales) = columns.column(column);
                    for row in 0..columns.x.rows() {
                        let mut sums = [0.0f32; SUMS];
                        let of_steps = weights.chunks(STEP).zip(scales.chunks(GROUPS));
                        for (step, (weights, scales)) in columns.steps(row).iter().zip(of_steps) {
                            add_step(&mut sums, step, weights, scales, fused);
                        }
                        columns.write(row, column, sum(sums) * columns.x.scales()[row]);
                    }
                }
            },
        );
    }

    fn multiply_blocks(&self, columns: &BlockColumns) {
        with_tiles!(columns.format, tiles => multiply_blocks(columns, tiles));
    }
}

// A function for each layout: see [`Tiles`].
#[inline(never)]
fn multiply_blocks(columns: &BlockColumns, tiles: &impl Tiles) {
    vectorize(
        #[inline(always)]
        || blocks::multiply::<Plain>(columns, tiles),
    );
}

/// Adds the products of a step; the last step may have fewer groups.
#[inline(always)]
fn add_step(sums: &mut [f32; SUMS], step: &Step, weights: &[u8], scales: &[f16], fused: Fused) {
    let (mut words, mut wide) = ([0i32; SUMS], [0.0; GROUPS]);
    for (word, bytes) in words.iter_mut().zip(weights.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(*bytes);
    }
    for (wide, scale) in wide.iter_mut().zip(scales) {
        *wide = scale.to_f32();
    }
    let mut exact = step.offset;
    for (shift, x) in step.x.iter().enumerate() {
        for lane in 0..SUMS {
            let pair = (words[lane] >> (4 * shift)) & MASK;
            exact[lane] +=
                (pair & 15) * i32::from(x[2 * lane]) + (pair >> 16) * i32::from(x[2 * lane + 1]);
        }
    }
    for lane in 0..SUMS {
        sums[lane] = fused.multiply_add(exact[lane] as f32, wide[lane / 4], sums[lane]);
    }
}

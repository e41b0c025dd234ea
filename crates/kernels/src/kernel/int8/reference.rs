//! The plain kernel: the oracle for all others, and the kernel of processors that have no other.

use super::rows::signed;
use super::tile::{self, Rows, Sums};
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::vectorize::vectorize;

/// Rows that share one widening of the weights.
const ROWS: usize = 4;

/// Plain Rust, in the widest registers that the processor has.
pub(in crate::kernel) struct Reference;

impl Int8Kernel for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        vectorize(
            #[inline(always)]
            || tile::multiply(rectangle, sum),
        );
    }
}

#[inline(always)]
fn sum(x: Rows<ROWS>, weights: &[[i8; STEP]]) -> Sums<ROWS> {
    let mut sums = [[0i32; BLOCK]; ROWS];
    for (step, weights) in weights.iter().enumerate() {
        let (weights, _) = weights.as_chunks::<QUAD>();
        for place in 0..QUAD {
            let mut widened = [0; BLOCK];
            for (widened, quad) in widened.iter_mut().zip(weights) {
                // Extracts the byte at `place` with its sign: whole words and shifts vectorize, strided bytes do not.
                *widened =
                    i32::from_le_bytes(quad.map(|byte| byte as u8)) << (24 - 8 * place) >> 24;
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = i32::from(signed(x[step][place]));
                for (sum, widened) in sums.iter_mut().zip(widened) {
                    *sum += x * widened;
                }
            }
        }
    }
    sums
}

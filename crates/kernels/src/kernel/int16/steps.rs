//! Activations in the order in which weights in INT4 leave their bytes.
//!
//! Sixteen bytes of a group are four words of 32 bits. Shifted right by 0, 4, 8 and 12 bits and masked, each word leaves
//! a pair of numbers in words of 16 bits, whose products with the pair of activations at the same place go to one 32-bit
//! sum. So each group has four sums, each of eight products, and nothing has to be moved.

use super::INT4_OFFSET;
use crate::int4::{GROUP, HALF};
use crate::vectorize::vectorize;

/// Groups of a step.
pub(super) const GROUPS: usize = 4;
/// Sums of a step, four for each group.
pub(super) const SUMS: usize = 4 * GROUPS;
/// Bytes of weights of a step.
pub(super) const STEP: usize = GROUPS * HALF;
/// Pairs of numbers in a word of weights.
pub(super) const SHIFTS: usize = 4;
/// The two numbers of a shifted word of weights.
pub(super) const MASK: i32 = 0x000f_000f;

/// 128 activations of one row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Step {
    /// For each shift the pairs that meet the words of weights.
    pub x: [[i16; 2 * SUMS]; SHIFTS],
    /// What sums begin with: in the first of a group's four, −8 · Σ x, since weights are stored eight too large.
    pub offset: [i32; SUMS],
}

impl Step {
    /// Appends the steps of one row, whose groups are whole; what is missing of the last step is zero.
    pub(super) fn append(row: &[i16], steps: &mut Vec<Self>) {
        for numbers in row.chunks(GROUPS * GROUP) {
            let mut step = Self {
                x: [[0; 2 * SUMS]; SHIFTS],
                offset: [0; SUMS],
            };
            vectorize(
                #[inline(always)]
                || step.fill(numbers.as_chunks().0),
            );
            steps.push(step);
        }
    }

    #[inline(always)]
    fn fill(&mut self, groups: &[[i16; GROUP]]) {
        for (index, group) in groups.iter().enumerate() {
            for (shift, x) in self.x.iter_mut().enumerate() {
                // Odd shifts leave the upper four bits of a byte, which hold the second half of a group.
                let first = shift % 2 * HALF + shift / 2;
                for (pair, x) in x[2 * 4 * index..][..2 * 4].iter_mut().enumerate() {
                    *x = group[first + 2 * pair];
                }
            }
            self.offset[4 * index] = offset(group);
        }
    }
}

/// A [`Step`] whose activations are cut into bytes, `256 · high + low`, for instructions that multiply four pairs of
/// bytes at once: each byte of weights leaves two numbers, and the four products of a word go to the same sum as in a
/// step. A sum of products with the high bytes has 16 bits.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct ByteStep {
    /// Of what meets the lower, and the upper four bits of the bytes of weights; −127 to 127.
    pub high: [[i8; STEP]; 2],
    /// Of the same, −128 to 127.
    pub low: [[i8; STEP]; 2],
    /// As in a step.
    pub offset: [i32; SUMS],
}

#[cfg(target_arch = "x86_64")]
impl ByteStep {
    /// As [`Step::append`].
    pub(super) fn append(row: &[i16], steps: &mut Vec<Self>) {
        for numbers in row.chunks(GROUPS * GROUP) {
            let mut step = Self {
                high: [[0; STEP]; 2],
                low: [[0; STEP]; 2],
                offset: [0; SUMS],
            };
            vectorize(
                #[inline(always)]
                || step.fill(numbers.as_chunks().0),
            );
            steps.push(step);
        }
    }

    #[inline(always)]
    fn fill(&mut self, groups: &[[i16; GROUP]]) {
        for (index, group) in groups.iter().enumerate() {
            for (half, numbers) in group.as_chunks::<HALF>().0.iter().enumerate() {
                for (place, x) in numbers.iter().enumerate() {
                    let low = *x as i8;
                    self.low[half][HALF * index + place] = low;
                    self.high[half][HALF * index + place] = ((*x - i16::from(low)) >> 8) as i8;
                }
            }
            self.offset[4 * index] = offset(group);
        }
    }
}

/// What the weights of a group, stored too large, make of its sum.
#[inline(always)]
fn offset(group: &[i16; GROUP]) -> i32 {
    -INT4_OFFSET * group.iter().map(|x| i32::from(*x)).sum::<i32>()
}

//! Activations in the order in which INT4 weights are unpacked from their bytes.
//!
//! Sixteen bytes of a group are four words of 32 bits. Shifted right by 0, 4, 8 and 12 bits and masked, each word
//! yields a pair of 16-bit numbers, whose products with the pair of activations at the same place are added to one
//! 32-bit sum. So each group has four sums of eight products each, and nothing has to be shuffled.

use crate::int4::{GROUP, HALF};
use crate::vectorize::vectorize;

/// The offset that is added to a weight in INT4 to store it.
pub(super) const INT4_OFFSET: i32 = 8;
/// Groups per step.
pub(super) const GROUPS: usize = 4;
/// Sums per step, four for each group.
pub(super) const SUMS: usize = 4 * GROUPS;
/// Bytes of weights per step.
pub(super) const STEP: usize = GROUPS * HALF;
/// Pairs of numbers per word of weights.
pub(super) const SHIFTS: usize = 4;
/// Mask of the two numbers in a shifted word of weights.
pub(super) const MASK: i32 = 0x000f_000f;

/// 128 activations of one row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Step {
    /// For each shift, the pairs that are multiplied by the words of weights.
    pub x: [[i16; 2 * SUMS]; SHIFTS],
    /// Initial sums: the first of a group's four is −8 · Σ x, since weights are stored eight too large.
    pub offset: [i32; SUMS],
}

impl Step {
    /// Appends the steps of one row of whole groups; the last step is padded with zeros.
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
                // Odd shifts yield the upper four bits of a byte, which hold the second half of a group.
                let first = shift % 2 * HALF + shift / 2;
                for (pair, x) in x[2 * 4 * index..][..2 * 4].iter_mut().enumerate() {
                    *x = group[first + 2 * pair];
                }
            }
            self.offset[4 * index] = offset(group);
        }
    }
}

/// A [`Step`] whose activations are split into bytes, `256 · high + low`, for instructions that multiply four pairs of
/// bytes at once: each byte of weights yields two numbers, and the four products of a word go to the same sum as in a
/// step. A sum of products with the high bytes has 16 bits.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct ByteStep {
    /// High bytes that are multiplied by the lower and by the upper four bits of the bytes of weights; −127 to 127.
    pub high: [[i8; STEP]; 2],
    /// Low bytes in the same order, −128 to 127.
    pub low: [[i8; STEP]; 2],
    /// Initial sums, as in a step.
    pub offset: [i32; SUMS],
}

#[cfg(target_arch = "x86_64")]
impl ByteStep {
    /// Appends the steps of one row, as [`Step::append`] does.
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

/// Returns the correction of a group's sum for weights that are stored too large.
#[inline(always)]
fn offset(group: &[i16; GROUP]) -> i32 {
    -INT4_OFFSET * group.iter().map(|x| i32::from(*x)).sum::<i32>()
}

//! ARM with BF16 (ARMv8.6 and later): `bfmmla` adds the products of two rows of four numbers in bf16 by two others to
//! each of two by two sums in f32.

use std::arch::aarch64::{
    float32x4_t, uint32x4_t, vcombine_u32, vcreate_u32, vdupq_n_f32, vld1q_u32, vst1q_f32,
    vzip1q_u32, vzip2q_u32,
};
use std::ops::Range;

use half::bf16;

use super::{Bf16Kernel, LANES, Panel, PanelKernel, Powers, portable, powers_of_two};
use crate::arm::bfmmla;

/// Pairs of rows per tile: with [`PARTS`] they use 24 of 32 registers.
const PAIRS: usize = 3;
/// Registers with the sums of a block for two rows.
const PARTS: usize = LANES / 2;
/// Words per register.
const WIDTH: usize = 4;

/// The kernel, with pairs of bf16 as words. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct NeonBf16(());

impl NeonBf16 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("bf16").then_some(Self(()))
    }
}

impl PanelKernel for NeonBf16 {
    fn name(&self) -> &'static str {
        "neon-bfmmla"
    }

    fn multiply(&self, panel: &Panel) {
        panel.check();
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(panel);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        portable::transpose(from, from_stride, to, to_stride);
    }
}

impl Bf16Kernel for NeonBf16 {
    fn to_bf16(&self, row: &[f32], words: &mut [u32]) {
        assert_eq!(
            words.len(),
            row.len().div_ceil(2),
            "expected as many words as pairs"
        );
        let (pairs, rest) = row.as_chunks::<2>();
        for (word, [even, odd]) in words.iter_mut().zip(pairs) {
            *word = pair(*even, *odd);
        }
        if let ([even], Some(word)) = (rest, words.last_mut()) {
            *word = pair(*even, 0.0);
        }
    }

    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]) {
        assert!(
            even.len() == words.len() && odd.len() == words.len(),
            "expected as many words as pairs"
        );
        for ((word, even), odd) in words.iter_mut().zip(even).zip(odd) {
            *word = pair(*even, *odd);
        }
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> Powers {
        let powers = powers_of_two(exponents, visible, before);
        self.to_bf16(exponents, words);
        powers
    }
}

/// Rounds two numbers to a pair of bf16.
#[inline(always)]
fn pair(even: f32, odd: f32) -> u32 {
    u32::from(bf16::from_f32(even).to_bits()) | u32::from(bf16::from_f32(odd).to_bits()) << 16
}

/// Multiplies a panel that has been checked.
#[target_feature(enable = "neon,bf16")]
fn multiply(panel: &Panel) {
    let rows = panel.out.rows();
    for block in (0..panel.columns.len()).step_by(LANES) {
        for row in (0..rows).step_by(2 * PAIRS) {
            match (rows - row).div_ceil(2) {
                1 => tile::<1>(panel, row, block),
                2 => tile::<2>(panel, row, block),
                _ => tile::<PAIRS>(panel, row, block),
            }
        }
    }
}

/// Computes pairs of rows of one block; the last row may be missing. All sums stay in registers from the first step to
/// the last.
#[target_feature(enable = "neon,bf16")]
fn tile<const PAIRS: usize>(panel: &Panel, row: usize, block: usize) {
    // A missing row is replaced by the last one, and not written.
    let last = panel.out.rows() - 1;
    let mut left = [[&panel.left[..0]; 2]; PAIRS];
    for (pair, rows) in left.iter_mut().enumerate() {
        *rows = [0, 1].map(|half| {
            &panel.left[(row + 2 * pair + half).min(last) * panel.left_stride..][..panel.steps]
        });
    }
    let right = |step: usize| -> &[u32; LANES] {
        panel.right[step * panel.right_stride + block..]
            .first_chunk()
            .expect("every step has a whole block")
    };
    let mut sums = [[vdupq_n_f32(0.0); PARTS]; PAIRS];
    for step in (0..panel.steps - panel.steps % 2).step_by(2) {
        let rows = left.map(|rows| two_rows(rows.map(|row| [row[step], row[step + 1]])));
        add(&mut sums, rows, right(step), right(step + 1));
    }
    if panel.steps % 2 == 1 {
        let step = panel.steps - 1;
        let rows = left.map(|rows| two_rows(rows.map(|row| [row[step], 0])));
        add(&mut sums, rows, right(step), &[0; LANES]);
    }
    let columns =
        panel.columns.start + block..(panel.columns.start + block + LANES).min(panel.columns.end);
    for (pair, sums) in sums.into_iter().enumerate() {
        let mut values = [[0.0; LANES]; 2];
        for (part, sums) in sums.into_iter().enumerate() {
            let mut four = [0.0; WIDTH];
            // SAFETY: the array is as long as the register.
            #[allow(unsafe_code)]
            unsafe {
                vst1q_f32(four.as_mut_ptr(), sums);
            }
            values[0][2 * part..][..2].copy_from_slice(&four[..2]);
            values[1][2 * part..][..2].copy_from_slice(&four[2..]);
        }
        for (values, row) in values.iter().zip(row + 2 * pair..=last) {
            // SAFETY: only this task writes this panel's columns, and no other slice of them exists.
            #[allow(unsafe_code)]
            let out = unsafe { panel.out.row(row, columns.clone()) };
            for (out, value) in out.iter_mut().zip(values) {
                *out = if panel.add { *out + value } else { *value };
            }
        }
    }
}

/// Adds the products of two steps.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn add<const PAIRS: usize>(
    sums: &mut [[float32x4_t; PARTS]; PAIRS],
    rows: [uint32x4_t; PAIRS],
    first: &[u32; LANES],
    second: &[u32; LANES],
) {
    let ((first, _), (second, _)) = (first.as_chunks::<WIDTH>(), second.as_chunks::<WIDTH>());
    for (four, (first, second)) in first.iter().zip(second).enumerate() {
        // SAFETY: the arrays are as long as the registers.
        #[allow(unsafe_code)]
        let (first, second) = unsafe { (vld1q_u32(first.as_ptr()), vld1q_u32(second.as_ptr())) };
        // Four numbers for each of two columns.
        let (low, high) = (vzip1q_u32(first, second), vzip2q_u32(first, second));
        for (sums, rows) in sums.iter_mut().zip(rows) {
            sums[2 * four] = bfmmla(sums[2 * four], rows, low);
            sums[2 * four + 1] = bfmmla(sums[2 * four + 1], rows, high);
        }
    }
}

/// Combines two words of each of two rows.
#[inline]
#[target_feature(enable = "neon")]
fn two_rows(rows: [[u32; 2]; 2]) -> uint32x4_t {
    let [a, b] =
        rows.map(|[first, second]| vcreate_u32(u64::from(first) | u64::from(second) << 32));
    vcombine_u32(a, b)
}

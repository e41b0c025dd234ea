//! 8-bit matrix products (ARMv8.6 and later): `smmla` adds the products of two rows of eight bytes by two others to
//! each of two by two sums.

use std::arch::aarch64::{
    int8x16_t, int32x4_t, vcombine_s8, vcreate_s8, vdupq_n_s32, vld1q_s8, vreinterpretq_s8_s32,
    vreinterpretq_s32_s8, vst1q_s32, vzip1q_s32, vzip2q_s32,
};

use super::tile::{self, Rows, Sums};
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::arm::smmla;
use crate::isa::Isa;

/// Pairs of rows per tile: with [`PARTS`] they use 24 of 32 registers.
const PAIRS: usize = 3;
const ROWS: usize = 2 * PAIRS;
/// Registers with the sums of a block for two rows.
const PARTS: usize = BLOCK / 2;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct MatrixProduct(());

impl MatrixProduct {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::I8mm.is_supported().then_some(Self(()))
    }
}

impl Int8Kernel for MatrixProduct {
    fn name(&self) -> &'static str {
        "i8mm-smmla"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        tile::multiply(rectangle, |x, weights| unsafe { sum(x, weights) });
    }
}

#[target_feature(enable = "neon,i8mm")]
fn sum(x: Rows<ROWS>, weights: &[[i8; STEP]]) -> Sums<ROWS> {
    assert!(
        x.iter().all(|x| x.len() == weights.len()),
        "expected as many quads as steps"
    );
    let mut sums = [[vdupq_n_s32(0); PARTS]; PAIRS];
    let (pairs, rest) = weights.as_chunks::<2>();
    for (index, [first, second]) in pairs.iter().enumerate() {
        let quads = |row: usize| [x[row][2 * index], x[row][2 * index + 1]];
        let mut rows = [vreinterpretq_s8_s32(vdupq_n_s32(0)); PAIRS];
        for (pair, rows) in rows.iter_mut().enumerate() {
            *rows = two_rows(quads(2 * pair), quads(2 * pair + 1));
        }
        add(&mut sums, rows, first, second);
    }
    for weights in rest {
        let quads = |row: usize| [x[row][2 * pairs.len()], [0; QUAD]];
        let mut rows = [vreinterpretq_s8_s32(vdupq_n_s32(0)); PAIRS];
        for (pair, rows) in rows.iter_mut().enumerate() {
            *rows = two_rows(quads(2 * pair), quads(2 * pair + 1));
        }
        add(&mut sums, rows, weights, &[0; STEP]);
    }
    let mut out = [[0; BLOCK]; ROWS];
    for (pair, sums) in sums.into_iter().enumerate() {
        for (part, sums) in sums.into_iter().enumerate() {
            let mut four = [0; 4];
            // SAFETY: the array is as long as the register.
            #[allow(unsafe_code)]
            unsafe {
                vst1q_s32(four.as_mut_ptr(), sums);
            }
            out[2 * pair][2 * part..][..2].copy_from_slice(&four[..2]);
            out[2 * pair + 1][2 * part..][..2].copy_from_slice(&four[2..]);
        }
    }
    out
}

/// Adds the products of two steps.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn add(
    sums: &mut [[int32x4_t; PARTS]; PAIRS],
    rows: [int8x16_t; PAIRS],
    first: &[i8; STEP],
    second: &[i8; STEP],
) {
    let ((first, _), (second, _)) = (first.as_chunks::<16>(), second.as_chunks::<16>());
    for (four, (first, second)) in first.iter().zip(second).enumerate() {
        // SAFETY: the arrays are as long as the registers.
        #[allow(unsafe_code)]
        let (first, second) = unsafe { (vld1q_s8(first.as_ptr()), vld1q_s8(second.as_ptr())) };
        let (first, second) = (vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second));
        // Eight bytes for each of two channels.
        let low = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        let high = vreinterpretq_s8_s32(vzip2q_s32(first, second));
        for (sums, rows) in sums.iter_mut().zip(rows) {
            sums[2 * four] = smmla(sums[2 * four], rows, low);
            sums[2 * four + 1] = smmla(sums[2 * four + 1], rows, high);
        }
    }
}

/// Combines two quads of each of two rows.
#[inline]
#[target_feature(enable = "neon")]
fn two_rows(a: [[u8; QUAD]; 2], b: [[u8; QUAD]; 2]) -> int8x16_t {
    let eight = |quads: [[u8; QUAD]; 2]| {
        u64::from(u32::from_le_bytes(quads[0])) | u64::from(u32::from_le_bytes(quads[1])) << 32
    };
    vcombine_s8(vcreate_s8(eight(a)), vcreate_s8(eight(b)))
}

//! NEON (every aarch64): `smull` and `smlal` compute 16-bit products of two steps, `sadalp` adds neighbours to 32-bit
//! sums.

use std::arch::aarch64::{
    int8x8_t, vdup_n_s32, vdupq_n_s32, vget_high_s8, vget_low_s8, vld1q_s8, vmlal_s8, vmull_s8,
    vpadalq_s16, vpaddq_s32, vreinterpret_s8_s32, vst1q_s32,
};

use super::tile::{self, Rows, Sums};
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};

/// Rows per tile: with [`PARTS`] they use sixteen of 32 registers.
const ROWS: usize = 2;
/// Registers with the sums of a block: each holds two channels, two sums for each.
const PARTS: usize = BLOCK / 2;

/// The kernel, which every aarch64 processor can run.
pub(in crate::kernel) struct Neon;

impl Int8Kernel for Neon {
    fn name(&self) -> &'static str {
        "neon-smlal"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        tile::multiply(rectangle, sum);
    }
}

fn sum(x: Rows<ROWS>, weights: &[[i8; STEP]]) -> Sums<ROWS> {
    assert!(
        x.iter().all(|x| x.len() == weights.len()),
        "expected as many quads as steps"
    );
    // SAFETY: NEON is part of aarch64; every load and store covers one array.
    #[allow(unsafe_code)]
    unsafe {
        let mut sums = [[vdupq_n_s32(0); PARTS]; ROWS];
        let (pairs, rest) = weights.as_chunks::<2>();
        // Products of numbers up to 127 are at most 16129, so two of them fit in 16 bits.
        for (index, [first, second]) in pairs.iter().enumerate() {
            for part in (0..PARTS).step_by(2) {
                let (first, second) = (load(first, part), load(second, part));
                for (sums, x) in sums.iter_mut().zip(x) {
                    let (x0, x1) = (quad(x[2 * index]), quad(x[2 * index + 1]));
                    for half in 0..2 {
                        let products = vmlal_s8(vmull_s8(first[half], x0), second[half], x1);
                        sums[part + half] = vpadalq_s16(sums[part + half], products);
                    }
                }
            }
        }
        for weights in rest {
            for part in (0..PARTS).step_by(2) {
                let weights = load(weights, part);
                for (sums, x) in sums.iter_mut().zip(x) {
                    for half in 0..2 {
                        let products = vmull_s8(weights[half], quad(x[2 * pairs.len()]));
                        sums[part + half] = vpadalq_s16(sums[part + half], products);
                    }
                }
            }
        }
        let mut out = [[0; BLOCK]; ROWS];
        for (out, sums) in out.iter_mut().zip(sums) {
            let (out, _) = out.as_chunks_mut::<QUAD>();
            let (sums, _) = sums.as_chunks::<2>();
            for (out, [low, high]) in out.iter_mut().zip(sums) {
                vst1q_s32(out.as_mut_ptr(), vpaddq_s32(*low, *high));
            }
        }
        out
    }
}

/// Loads the quads of two times two channels.
#[inline(always)]
fn load(step: &[i8; STEP], part: usize) -> [int8x8_t; 2] {
    let (registers, _) = step.as_chunks::<16>();
    // SAFETY: NEON is part of aarch64; the array is as long as the register.
    #[allow(unsafe_code)]
    unsafe {
        let weights = vld1q_s8(registers[part / 2].as_ptr());
        [vget_low_s8(weights), vget_high_s8(weights)]
    }
}

/// Returns a quad of activations, repeated twice.
#[inline(always)]
fn quad(x: [u8; QUAD]) -> int8x8_t {
    // SAFETY: NEON is part of aarch64.
    #[allow(unsafe_code)]
    unsafe {
        vreinterpret_s8_s32(vdup_n_s32(i32::from_le_bytes(x)))
    }
}

//! Dot products (ARMv8.2 and later): `sdot` adds four products of bytes to each of four sums.

use std::arch::aarch64::{vdupq_n_s8, vdupq_n_s32, vld1q_s8, vreinterpretq_s8_s32, vst1q_s32};

use super::tile::{self, Rows, Sums};
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::arm::sdot;
use crate::isa::Isa;

/// Rows per tile: with [`PARTS`] they use 24 of 32 registers.
const ROWS: usize = 6;
/// Registers with the sums of a block.
const PARTS: usize = BLOCK / 4;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct DotProduct(());

impl DotProduct {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::Dotprod.is_supported().then_some(Self(()))
    }
}

impl Int8Kernel for DotProduct {
    fn name(&self) -> &'static str {
        "dotprod-sdot"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        tile::multiply(rectangle, |x, weights| unsafe { sum(x, weights) });
    }
}

#[target_feature(enable = "neon,dotprod")]
fn sum(x: Rows<ROWS>, weights: &[[i8; STEP]]) -> Sums<ROWS> {
    assert!(
        x.iter().all(|x| x.len() == weights.len()),
        "expected as many quads as steps"
    );
    let mut sums = [[vdupq_n_s32(0); PARTS]; ROWS];
    for (step, weights) in weights.iter().enumerate() {
        let mut parts = [vdupq_n_s8(0); PARTS];
        let (registers, _) = weights.as_chunks::<16>();
        for (part, weights) in parts.iter_mut().zip(registers) {
            // SAFETY: the array is as long as the register.
            #[allow(unsafe_code)]
            unsafe {
                *part = vld1q_s8(weights.as_ptr());
            }
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            let quad = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(x[step])));
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = sdot(*sum, part, quad);
            }
        }
    }
    let mut out = [[0; BLOCK]; ROWS];
    for (out, sums) in out.iter_mut().zip(sums) {
        let (out, _) = out.as_chunks_mut::<QUAD>();
        for (out, sum) in out.iter_mut().zip(sums) {
            // SAFETY: the array is as long as the register.
            #[allow(unsafe_code)]
            unsafe {
                vst1q_s32(out.as_mut_ptr(), sum);
            }
        }
    }
    out
}

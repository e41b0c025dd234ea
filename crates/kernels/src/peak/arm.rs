//! Timed rounds of ARM's products in registers.

use std::arch::aarch64::{vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vdupq_n_u32};
use std::hint::black_box;

use super::{ACCUMULATORS, ITERATIONS};
use crate::arm::{bfmmla, sdot, smmla};
use crate::isa::Isa;

/// Defines a round of an instruction with this many products.
macro_rules! round {
    ($name:ident, $features:literal, $products:literal, $sum:expr, $operand:expr, $instruction:expr) => {
        #[target_feature(enable = $features)]
        fn $name() -> f64 {
            let (a, b, mut sums) = ($operand, $operand, [$sum; ACCUMULATORS]);
            for _ in 0..ITERATIONS {
                for sum in &mut sums {
                    *sum = $instruction(*sum, a, b);
                }
            }
            black_box(sums);
            (2 * $products * ACCUMULATORS * ITERATIONS) as f64
        }
    };
}

round!(
    matrix_products,
    "neon,i8mm",
    32,
    vdupq_n_s32(black_box(0)),
    vdupq_n_s8(black_box(1)),
    smmla
);
round!(
    dot_products,
    "neon,dotprod",
    16,
    vdupq_n_s32(black_box(0)),
    vdupq_n_s8(black_box(1)),
    sdot
);
round!(
    bf16_products,
    "neon,bf16",
    16,
    vdupq_n_f32(black_box(0.0)),
    vdupq_n_u32(black_box(0x3f80_3f80)),
    bfmmla
);

/// Returns `None` with SME, whose outer products are not measured, and on processors with neither matrix nor dot
/// products.
pub(super) fn int8_round() -> Option<fn() -> f64> {
    if Isa::Sme.is_supported() {
        return None;
    }
    // SAFETY (of both closures): they exist only if the processor has the instructions.
    #[allow(unsafe_code)]
    match () {
        () if Isa::I8mm.is_supported() => Some(|| unsafe { matrix_products() }),
        () if Isa::Dotprod.is_supported() => Some(|| unsafe { dot_products() }),
        () => None,
    }
}

/// Returns `None`: an instruction has no more products of 16-bit numbers than of f32.
pub(super) fn int16_round() -> Option<fn() -> f64> {
    None
}

pub(super) fn bf16_round() -> Option<fn() -> f64> {
    std::arch::is_aarch64_feature_detected!("bf16").then_some(|| {
        // SAFETY: this closure exists only if the processor has the instructions.
        #[allow(unsafe_code)]
        unsafe {
            bf16_products()
        }
    })
}

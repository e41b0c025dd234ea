//! ARM instructions that have no stable intrinsics.

use std::arch::aarch64::{float32x4_t, int8x16_t, int32x4_t, uint32x4_t};
use std::arch::asm;

/// Defines a function for one instruction that adds products of two registers to sums.
macro_rules! instruction {
    ($(#[$documentation:meta])* $name:ident, $features:literal, $instruction:literal, $sums:ty, $operand:ty) => {
        $(#[$documentation])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn $name(mut sums: $sums, a: $operand, b: $operand) -> $sums {
            // SAFETY: one instruction on registers, which the target feature guarantees.
            #[allow(unsafe_code)]
            unsafe {
                asm!($instruction, sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sums
        }
    };
}

instruction!(
    /// Adds the products of two rows of eight bytes by two others to two by two sums.
    smmla,
    "neon,i8mm",
    "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
    int32x4_t,
    int8x16_t
);
instruction!(
    /// Adds the products of four pairs of bytes to each of four sums.
    sdot,
    "neon,dotprod",
    "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
    int32x4_t,
    int8x16_t
);
instruction!(
    /// Adds the products of two rows of four bf16 numbers, as pairs, by two others to two by two sums.
    bfmmla,
    "neon,bf16",
    "bfmmla {sums:v}.4s, {a:v}.8h, {b:v}.8h",
    float32x4_t,
    uint32x4_t
);

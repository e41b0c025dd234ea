//! Instructions of ARM whose intrinsics are not stable.

use std::arch::aarch64::{float32x4_t, int8x16_t, int32x4_t, uint32x4_t};
use std::arch::asm;

/// One instruction that adds products of two registers to sums.
macro_rules! instruction {
    ($(#[$documentation:meta])* $name:ident, $features:literal, $instruction:literal, $sums:ty, $operand:ty) => {
        $(#[$documentation])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn $name(mut sums: $sums, a: $operand, b: $operand) -> $sums {
            // SAFETY: one instruction on registers, which the target feature promises.
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
    /// Two by two sums and the products of two rows of eight bytes by two others.
    smmla,
    "neon,i8mm",
    "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
    int32x4_t,
    int8x16_t
);
instruction!(
    /// Each of four sums and the products of four pairs of bytes.
    sdot,
    "neon,dotprod",
    "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
    int32x4_t,
    int8x16_t
);
instruction!(
    /// Two by two sums and the products of two rows of four numbers in bf16, as pairs, by two others.
    bfmmla,
    "neon,bf16",
    "bfmmla {sums:v}.4s, {a:v}.8h, {b:v}.8h",
    float32x4_t,
    uint32x4_t
);

//! NEON; every aarch64 processor has its `fcvtl`.

use std::arch::aarch64::{
    float32x4_t, vdupq_n_f32, vfmaq_f32, vld1_u16, vld1q_f32, vpaddq_f32, vst1q_f32,
};
use std::arch::asm;

use half::f16;

use super::{Functions, Halves, KEYS, scores, weighted};
use crate::isa::Isa;

pub(super) fn functions() -> Functions {
    #[allow(unsafe_code)]
    Functions {
        isa: Isa::Neon,
        lanes: Quarter::LANES,
        scores: |strip, out| {
            // SAFETY: NEON is part of aarch64; the caller has checked lengths.
            unsafe { scores::<Quarter>(strip, out) }
        },
        weighted: |strip, out, stride| {
            // SAFETY: as above.
            unsafe { weighted::<Quarter>(strip, out, stride) }
        },
    }
}

/// Registers of 128 bits.
struct Quarter;

// SAFETY (of all functions): NEON is part of aarch64; otherwise as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Halves for Quarter {
    const LANES: usize = 4;
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn splat(number: f32) -> float32x4_t {
        vdupq_n_f32(number)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        vld1q_f32(from)
    }

    #[inline(always)]
    unsafe fn widen(from: *const f16) -> float32x4_t {
        let wide: float32x4_t;
        // By `asm!`, since the intrinsic's f16 type is recent.
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", halves = in(vreg) vld1_u16(from.cast()), wide = lateout(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
        wide
    }

    #[inline(always)]
    unsafe fn multiply_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    #[inline(always)]
    unsafe fn store(numbers: float32x4_t, to: *mut f32) {
        vst1q_f32(to, numbers);
    }

    #[inline(always)]
    unsafe fn totals([a, b, c, d]: [float32x4_t; KEYS]) -> [f32; KEYS] {
        let mut four = [0.0; KEYS];
        vst1q_f32(
            four.as_mut_ptr(),
            vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)),
        );
        four
    }
}

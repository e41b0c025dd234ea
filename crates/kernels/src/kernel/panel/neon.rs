//! NEON, which every aarch64 processor has.

use std::arch::aarch64::{float32x4_t, vdupq_n_f32, vfmaq_f32, vld1q_f32, vst1q_f32};

use super::portable;
use super::vector::{self, Vector};
use super::{LANES, Panel, PanelKernel};

/// Numbers per register.
const WIDTH: usize = 4;

pub(in crate::kernel) struct Neon;

impl PanelKernel for Neon {
    fn name(&self) -> &'static str {
        "neon"
    }

    fn multiply(&self, panel: &Panel) {
        // SAFETY: every aarch64 processor has NEON, and Triad is compiled for it there.
        #[allow(unsafe_code)]
        unsafe {
            vector::multiply::<float32x4_t, { LANES / WIDTH }>(panel);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        portable::transpose(from, from_stride, to, to_stride);
    }
}

#[allow(unsafe_code)]
impl Vector for float32x4_t {
    const WIDTH: usize = WIDTH;

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { vdupq_n_f32(*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { vst1q_f32(to, self) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: as the caller promises.
        unsafe { vfmaq_f32(sum, self, factor) }
    }
}

//! AVX2 with fused multiply-adds: the portable loops, compiled for it.

use super::kernel::{Kernel, Panel};
use super::portable;
use crate::tier::Tier;

/// The kernel; having one proves that the processor can run it.
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        Tier::Avx2.is_supported().then_some(Self(()))
    }
}

impl Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn tier(&self) -> Tier {
        Tier::Avx2
    }

    fn multiply(&self, panel: &Panel) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(panel);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            transpose(from, from_stride, to, to_stride);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
fn multiply(panel: &Panel) {
    portable::multiply::<true>(panel);
}

#[target_feature(enable = "avx2,fma")]
fn transpose(from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
    portable::transpose(from, from_stride, to, to_stride);
}

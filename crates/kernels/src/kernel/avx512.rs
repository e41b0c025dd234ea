//! AVX-512 helpers that kernels of several formats use.

use std::arch::x86_64::{__m512, __mmask16, _mm512_maskz_loadu_ps};

/// Returns the mask of the first `count` lanes, at most sixteen.
pub(super) fn lanes(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as u16
}

/// Loads at most sixteen numbers; the other lanes are zero.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(values: &[f32]) -> __m512 {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_maskz_loadu_ps(lanes(values.len()), values.as_ptr())
    }
}

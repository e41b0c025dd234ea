//! Scalar products of INT16 with INT8 by AVX-512 with VNNI: `vpdpwssd` adds two products of 16-bit numbers to each of
//! sixteen sums.

use std::arch::x86_64::{
    __m512i, _mm256_maskz_loadu_epi8, _mm512_add_epi32, _mm512_cvtepi8_epi16, _mm512_dpwssd_epi32,
    _mm512_maskz_loadu_epi16, _mm512_reduce_add_epi32, _mm512_setzero_si512,
};

use crate::tier::{self, Tier};

/// Numbers that an instruction takes.
const LANES: usize = 32;

/// Proves that the processor can run it, and that it may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512Vnni(());

impl Avx512Vnni {
    pub(super) fn new() -> Option<Self> {
        (Tier::has_vnni() && tier::may_be_used(Tier::Avx512)).then_some(Self(()))
    }

    /// Calls `each` with every column of `weights[columns, x.len()]` and its Σ x·w, modulo 2³².
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(super) fn dots(self, x: &[i16], weights: &[i8], each: impl FnMut(usize, i32)) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            dots(x, weights, each);
        }
    }
}

/// One column after the other: the processor fetches one stream ahead faster than several.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn dots(x: &[i16], weights: &[i8], mut each: impl FnMut(usize, i32)) {
    assert!(
        !x.is_empty() && weights.len().is_multiple_of(x.len()),
        "{} weights in columns of {}",
        weights.len(),
        x.len()
    );
    for (column, weights) in weights.chunks_exact(x.len()).enumerate() {
        let mut sums = [_mm512_setzero_si512(); 2];
        let (whole, rest) = x.as_chunks::<{ 2 * LANES }>();
        for (x, weights) in whole.iter().zip(weights.as_chunks::<{ 2 * LANES }>().0) {
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = add_products(*sum, &x[half * LANES..], &weights[half * LANES..], LANES);
            }
        }
        for first in (0..rest.len()).step_by(LANES) {
            let start = x.len() - rest.len() + first;
            sums[0] = add_products(sums[0], &x[start..], &weights[start..], (rest.len() - first).min(LANES));
        }
        each(column, _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1])));
    }
}

/// Adds the products of the first `count` of both, at most [`LANES`], to `sum`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_products(sum: __m512i, x: &[i16], weights: &[i8], count: usize) -> __m512i {
    assert!((1..=LANES).contains(&count) && x.len() >= count && weights.len() >= count);
    let mask = u32::MAX >> (LANES - count);
    // SAFETY: the mask leaves what lies beyond the numbers alone.
    #[allow(unsafe_code)]
    let (x, weights) =
        unsafe { (_mm512_maskz_loadu_epi16(mask, x.as_ptr()), _mm256_maskz_loadu_epi8(mask, weights.as_ptr())) };
    _mm512_dpwssd_epi32(sum, _mm512_cvtepi8_epi16(weights), x)
}

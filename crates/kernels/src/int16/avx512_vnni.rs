//! Scalar products of INT16 with INT8 by AVX-512 with VNNI: `vpdpwssd` adds two products of 16-bit numbers to each of
//! sixteen sums.

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_maskz_loadu_epi8, _mm512_cvtepi8_epi16, _mm512_dpwssd_epi32,
    _mm512_maskz_loadu_epi16, _mm512_reduce_add_epi32, _mm512_setzero_si512,
};

use crate::tier::{self, Tier};

/// Numbers that an instruction takes.
const LANES: usize = 32;
/// Columns computed at once.
const COLUMNS: usize = 4;

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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn dots(x: &[i16], weights: &[i8], mut each: impl FnMut(usize, i32)) {
    assert!(
        !x.is_empty() && weights.len().is_multiple_of(x.len()),
        "{} weights in columns of {}",
        weights.len(),
        x.len()
    );
    let count = weights.len() / x.len();
    let mut column = 0;
    while column < count {
        let rest = &weights[column * x.len()..];
        if count - column >= COLUMNS {
            let sums = columns::<COLUMNS>(x, rest);
            sums.into_iter().enumerate().for_each(|(index, sum)| each(column + index, sum));
            column += COLUMNS;
        } else {
            each(column, columns::<1>(x, rest)[0]);
            column += 1;
        }
    }
}

/// Some columns at once, which share the reading of `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn columns<const COLUMNS: usize>(x: &[i16], weights: &[i8]) -> [i32; COLUMNS] {
    assert!(weights.len() >= COLUMNS * x.len());
    let mut sums = [_mm512_setzero_si512(); COLUMNS];
    for first in (0..x.len()).step_by(LANES) {
        let mask = u32::MAX >> (LANES - (x.len() - first).min(LANES));
        // SAFETY: the mask leaves what lies beyond the numbers alone.
        #[allow(unsafe_code)]
        let numbers = unsafe { _mm512_maskz_loadu_epi16(mask, x.as_ptr().add(first)) };
        for (column, sums) in sums.iter_mut().enumerate() {
            let place = column * x.len() + first;
            // What the next columns have at this place.
            _mm_prefetch::<_MM_HINT_T0>(weights.as_ptr().wrapping_add(place + COLUMNS * x.len()));
            // SAFETY: as above, of this column.
            #[allow(unsafe_code)]
            let weights = unsafe { _mm256_maskz_loadu_epi8(mask, weights.as_ptr().add(place)) };
            *sums = _mm512_dpwssd_epi32(*sums, _mm512_cvtepi8_epi16(weights), numbers);
        }
    }
    sums.map(|sums| _mm512_reduce_add_epi32(sums))
}

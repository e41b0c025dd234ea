//! AVX-512 with BF16 (Cooper Lake, Zen 4 and later): `vdpbf16ps` adds two products to each of sixteen sums in f32.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
    _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_mask_storeu_epi32, _mm512_or_si512,
    _mm512_slli_epi32,
};

use std::ops::Range;

use super::avx512::{BLOCKS, ROWS, kernel, transpose};
use super::avx512_exp2::{self, load};
use super::{Bf16Kernel, LANES, Panel, PanelKernel, Powers, check_transpose};
use crate::kernel::avx512::lanes;

/// The kernel, with pairs of bf16 as words. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx512Bf16(());

impl Avx512Bf16 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        let supported = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        supported.then_some(Self(()))
    }
}

kernel!(
    Avx512Bf16,
    "avx512-bf16",
    "avx512f,avx512bw,avx512bf16",
    multiply_add
);

#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_add(x: __m512i, factors: __m512i, sums: __m512) -> __m512 {
    // SAFETY: both types are 512 bits.
    #[allow(unsafe_code)]
    let [x, factors] =
        [x, factors].map(|words| unsafe { std::mem::transmute::<__m512i, __m512bh>(words) });
    _mm512_dpbf16_ps(sums, x, factors)
}

impl Bf16Kernel for Avx512Bf16 {
    fn to_bf16(&self, row: &[f32], words: &mut [u32]) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            to_bf16(row, words);
        }
    }

    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            interleave(even, odd, words);
        }
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> Powers {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            exp2_and_sum(exponents, visible, before, words)
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn to_bf16(row: &[f32], words: &mut [u32]) {
    assert_eq!(
        words.len(),
        row.len().div_ceil(2),
        "expected as many words as pairs"
    );
    for (words, row) in words.chunks_mut(LANES).zip(row.chunks(2 * LANES)) {
        let (low, high) = row.split_at(row.len().min(LANES));
        store(words, load(low, 0.0), load(high, 0.0));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave(even: &[f32], odd: &[f32], words: &mut [u32]) {
    assert!(
        even.len() == words.len() && odd.len() == words.len(),
        "expected as many words as pairs"
    );
    for ((words, even), odd) in words
        .chunks_mut(LANES)
        .zip(even.chunks(LANES))
        .zip(odd.chunks(LANES))
    {
        store_words(
            words,
            _mm512_or_si512(halves(even), _mm512_slli_epi32::<16>(halves(odd))),
        );
    }
}

/// Rounds at most sixteen numbers to bf16, each in its own word.
#[target_feature(enable = "avx512f,avx512bf16")]
fn halves(numbers: &[f32]) -> __m512i {
    let halves = _mm512_cvtneps_pbh(load(numbers, 0.0));
    // SAFETY: both types are 256 bits.
    #[allow(unsafe_code)]
    _mm512_cvtepu16_epi32(unsafe { std::mem::transmute::<__m256bh, __m256i>(halves) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn exp2_and_sum(
    exponents: &mut [f32],
    visible: Range<usize>,
    before: f32,
    words: &mut [u32],
) -> Powers {
    assert_eq!(
        words.len(),
        exponents.len().div_ceil(2),
        "expected as many words as pairs"
    );
    let (powers, written) = avx512_exp2::exp2_and_sum(
        exponents,
        visible,
        before,
        |first, exponents, [low, high]| {
            store(
                &mut words[first / 2..][..exponents.len().div_ceil(2)],
                low,
                high,
            );
        },
    );
    words[..written.start / 2].fill(0);
    words[written.end.div_ceil(2)..].fill(0);
    powers
}

/// Rounds `words.len()` pairs and stores them.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn store(words: &mut [u32], low: __m512, high: __m512) {
    let rounded = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 512 bits.
    #[allow(unsafe_code)]
    store_words(words, unsafe {
        std::mem::transmute::<__m512bh, __m512i>(rounded)
    });
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_words(words: &mut [u32], values: __m512i) {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_mask_storeu_epi32(words.as_mut_ptr().cast(), lanes(words.len()), values);
    }
}

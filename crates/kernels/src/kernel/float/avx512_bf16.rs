//! AVX-512 with BF16 (Cooper Lake, Zen 4 and later): `vdpbf16ps` adds two products to each of sixteen sums in f32.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_add_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps,
    _mm512_mask_loadu_ps, _mm512_mask_storeu_epi32, _mm512_max_ps, _mm512_or_si512, _mm512_reduce_add_ps,
    _mm512_reduce_max_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_sub_ps,
};

use std::ops::Range;

use super::avx512::{BLOCKS, ROWS, kernel, transpose};
use super::{Bf16Kernel, FloatKernel, LANES, Panel, check_transpose};
use crate::kernel::avx512::lanes;

/// Numbers that become words of one register.
const STEP: usize = 2 * LANES;

/// The kernel, whose words are pairs of bf16; having one proves that the processor can run it.
pub(in crate::kernel) struct Avx512Bf16(());

impl Avx512Bf16 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        let supported = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        supported.then_some(Self(()))
    }
}

kernel!(Avx512Bf16, "avx512-bf16", "avx512f,avx512bw,avx512bf16", multiply_add);

#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_add(x: __m512i, factors: __m512i, sums: __m512) -> __m512 {
    // SAFETY: both types are 512 bits.
    #[allow(unsafe_code)]
    let [x, factors] = [x, factors].map(|words| unsafe { std::mem::transmute::<__m512i, __m512bh>(words) });
    _mm512_dpbf16_ps(sums, x, factors)
}

impl Bf16Kernel for Avx512Bf16 {
    fn to_bf16(&self, row: &[f32], words: &mut [u32]) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            to_bf16(row, words);
        }
    }

    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            interleave(even, odd, words);
        }
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        largest: f32,
        words: &mut [u32],
    ) -> (f32, f32) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            exp2_and_sum(exponents, visible, largest, words)
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn to_bf16(row: &[f32], words: &mut [u32]) {
    assert_eq!(words.len(), row.len().div_ceil(2), "as many words as pairs");
    for (words, row) in words.chunks_mut(LANES).zip(row.chunks(2 * LANES)) {
        let (low, high) = row.split_at(row.len().min(LANES));
        store(words, load(low, 0.0), load(high, 0.0));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave(even: &[f32], odd: &[f32], words: &mut [u32]) {
    assert!(even.len() == words.len() && odd.len() == words.len(), "as many words as pairs");
    for ((words, even), odd) in words.chunks_mut(LANES).zip(even.chunks(LANES)).zip(odd.chunks(LANES)) {
        store_words(words, _mm512_or_si512(halves(even), _mm512_slli_epi32::<16>(halves(odd))));
    }
}

/// At most sixteen numbers in bf16, each in a word of its own.
#[target_feature(enable = "avx512f,avx512bf16")]
fn halves(numbers: &[f32]) -> __m512i {
    let halves = _mm512_cvtneps_pbh(load(numbers, 0.0));
    // SAFETY: both types are 256 bits.
    #[allow(unsafe_code)]
    _mm512_cvtepu16_epi32(unsafe { std::mem::transmute::<__m256bh, __m256i>(halves) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn exp2_and_sum(exponents: &mut [f32], visible: Range<usize>, largest: f32, words: &mut [u32]) -> (f32, f32) {
    assert_eq!(words.len(), exponents.len().div_ceil(2), "as many words as pairs");
    assert!(visible.start <= visible.end && visible.end <= exponents.len(), "{visible:?} of {}", exponents.len());
    // Whole steps of two registers, from an index that does not depend on what is visible.
    let first = visible.start / STEP * STEP;
    let end = visible.end.next_multiple_of(STEP).min(exponents.len());
    exponents[first..visible.start].fill(f32::MIN);
    exponents[visible.end..end].fill(f32::MIN);
    words[..first / 2].fill(0);
    words[end.div_ceil(2)..].fill(0);
    let (whole, rest) = exponents[first..end].as_chunks::<STEP>();
    let (rest_low, rest_high) = rest.split_at(rest.len().min(LANES));
    // The power of a missing number is zero.
    let rest = [load(rest_low, f32::MIN), load(rest_high, f32::MIN)];
    let mut above = rest.map(|x| _mm512_max_ps(x, _mm512_set1_ps(largest)));
    for x in whole {
        for (half, above) in above.iter_mut().enumerate() {
            // Where the first operand is NaN, the instruction returns the second.
            *above = _mm512_max_ps(load(&x[half * LANES..][..LANES], f32::MIN), *above);
        }
    }
    let largest = _mm512_reduce_max_ps(_mm512_max_ps(above[0], above[1]));
    let relative = |x| power(_mm512_sub_ps(x, _mm512_set1_ps(largest)));
    let mut sums = [_mm512_setzero_ps(); 2];
    let (whole_words, rest_words) = words[first / 2..end.div_ceil(2)].split_at_mut(whole.len() * LANES);
    for (x, words) in whole.iter().zip(whole_words.chunks_exact_mut(LANES)) {
        let low = relative(load(&x[..LANES], f32::MIN));
        let high = relative(load(&x[LANES..], f32::MIN));
        sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
        store(words, low, high);
    }
    if !rest_words.is_empty() {
        let [low, high] = rest.map(relative);
        sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
        store(rest_words, low, high);
    }
    (largest, _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])))
}

/// 2ˣ = 2ⁿ · 2ʳ with |r| ≤ ½ and 2ʳ from the minimax polynomial of degree 3, whose largest relative error is 7.5e-5.
#[inline]
#[target_feature(enable = "avx512f")]
fn power(x: __m512) -> __m512 {
    // Bounded, since for minus infinity r would be NaN. NaN in the second operand is returned.
    let x = _mm512_max_ps(_mm512_set1_ps(-200.0), x);
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let r = _mm512_sub_ps(x, n);
    let mut series = _mm512_set1_ps(0.055_171_67);
    for coefficient in [0.242_611_13, 0.693_260_99, 0.999_928_07] {
        series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(coefficient));
    }
    _mm512_scalef_ps(series, n)
}

/// Loads at most sixteen numbers, and `rest` in the other lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(numbers: &[f32], rest: f32) -> __m512 {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_mask_loadu_ps(_mm512_set1_ps(rest), lanes(numbers.len()), numbers.as_ptr())
    }
}

/// Rounds as many pairs as there are `words`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn store(words: &mut [u32], low: __m512, high: __m512) {
    let rounded = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 512 bits.
    #[allow(unsafe_code)]
    store_words(words, unsafe { std::mem::transmute::<__m512bh, __m512i>(rounded) });
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

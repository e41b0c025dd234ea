//! AVX-512 with VNNI: `vpdpwssd` adds two products of 16-bit numbers to each of sixteen sums in i32.

use std::arch::x86_64::{
    __m512, __m512i, _mm256_storeu_si256, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi32_epi16, _mm512_cvtps_epi32, _mm512_dpwssd_epi32,
    _mm512_fmadd_ps, _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_add_ps,
    _mm512_reduce_max_epu32, _mm512_set1_ps,
};
use std::ops::Range;

use super::avx512::{BLOCKS, ROWS, kernel, transpose};
use super::pairs::{self, Purpose, ValueUnits};
use super::{LANES, PairKernel, Panel, PanelKernel, Powers, avx512_exp2, check_transpose};
use crate::isa::Isa;
use crate::kernel::avx512::{lanes, load};

/// Pairs per register of f32.
const PAIRS: usize = LANES / 2;

/// The kernel, with pairs of INT16 as words. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx512Pairs(());

impl Avx512Pairs {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::has_vnni().then_some(Self(()))
    }
}

kernel!(
    Avx512Pairs,
    "avx512-vpdpwssd",
    "avx512f,avx512vnni",
    multiply_add
);

/// Adds products to sums in i32.
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_add(x: __m512i, factors: __m512i, sums: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_dpwssd_epi32(_mm512_castps_si512(sums), x, factors))
}

impl PairKernel for Avx512Pairs {
    fn round(
        &self,
        rows: &[f32],
        width: usize,
        purpose: Purpose,
        words: &mut [u32],
        units: &mut Vec<f32>,
    ) {
        let rows = pairs::begin(rows, width, words, units);
        for ((row, words), unit) in rows
            .zip(words.chunks_exact_mut(width.div_ceil(2)))
            .zip(units)
        {
            // SAFETY: `new` has detected the instructions.
            #[allow(unsafe_code)]
            unsafe {
                *unit = round_row(row, purpose, words);
            }
        }
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        units: ValueUnits,
        words: &mut [u32],
    ) -> (Powers, f32) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            exp2_and_sum(exponents, visible, before, units, words)
        }
    }
}

#[target_feature(enable = "avx512f")]
fn exp2_and_sum(
    exponents: &mut [f32],
    visible: Range<usize>,
    before: f32,
    units: ValueUnits,
    words: &mut [u32],
) -> (Powers, f32) {
    assert!(
        words.len() == exponents.len().div_ceil(2) && exponents.len() <= units.each.len(),
        "expected words and units for all weights"
    );
    let (powers, written) =
        avx512_exp2::exp2_and_sum(exponents, visible, before, |_, exponents, powers| {
            for (numbers, powers) in exponents.chunks_mut(LANES).zip(powers) {
                avx512_exp2::store(numbers, powers);
            }
        });
    let unit = units.of_weights(&powers);
    if !unit.is_normal() {
        // NaN, or too small to contribute.
        words.fill(0);
        return (powers, unit);
    }
    words[..written.start / 2].fill(0);
    words[written.end.div_ceil(2)..].fill(0);
    round_weights(
        &exponents[written.clone()],
        &units.each[written.clone()],
        unit,
        &mut words[written.start / 2..],
    );
    (powers, unit)
}

/// Does the same as [`pairs::round_weights`], for as many words as there are pairs of weights.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_weights(weights: &[f32], units: &[f32], unit: f32, words: &mut [u32]) {
    let inverse = _mm512_set1_ps(unit.recip());
    let scaled = |weights, units| _mm512_mul_ps(load(weights), _mm512_mul_ps(load(units), inverse));
    let (whole, rest) = weights.as_chunks::<LANES>();
    let (whole_units, rest_units) = units.as_chunks::<LANES>();
    let (whole_words, rest_words) = words.split_at_mut(whole.len() * PAIRS);
    for ((words, weights), units) in whole_words
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(whole)
        .zip(whole_units)
    {
        store(words, scaled(weights, units));
    }
    store_some(
        &mut rest_words[..rest.len().div_ceil(2)],
        scaled(rest, rest_units),
    );
}

/// Does the same as [`pairs::round_row`].
#[target_feature(enable = "avx512f")]
fn round_row(row: &[f32], purpose: Purpose, words: &mut [u32]) -> f32 {
    let (whole, rest) = row.as_chunks::<LANES>();
    let rest = load(rest);
    let magnitude = |x| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX));
    let mut largest = magnitude(rest);
    for x in whole {
        largest = _mm512_max_epu32(largest, magnitude(load(x)));
    }
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    if !largest.is_normal() {
        return pairs::round_row(row, purpose, words);
    }
    let inverse = _mm512_set1_ps(largest.recip());
    let to = purpose.largest(row.len(), || {
        let square = |x, sum| {
            let x = _mm512_mul_ps(x, inverse);
            _mm512_fmadd_ps(x, x, sum)
        };
        // Independent sums, so that they do not wait for each other.
        let mut squares = [
            square(rest, _mm512_setzero_ps()),
            _mm512_setzero_ps(),
            _mm512_setzero_ps(),
            _mm512_setzero_ps(),
        ];
        let (fours, last) = whole.as_chunks::<4>();
        for four in fours {
            for (squares, x) in squares.iter_mut().zip(four) {
                *squares = square(load(x), *squares);
            }
        }
        for (squares, x) in squares.iter_mut().zip(last) {
            *squares = square(load(x), *squares);
        }
        let [a, b, c, d] = squares;
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)))
    });
    // Two factors, since their product may overflow f32.
    let scaled = |x| _mm512_mul_ps(_mm512_mul_ps(x, inverse), _mm512_set1_ps(to));
    let (whole_words, rest_words) = words.split_at_mut(whole.len() * PAIRS);
    for (words, x) in whole_words.as_chunks_mut().0.iter_mut().zip(whole) {
        store(words, scaled(load(x)));
    }
    store_some(rest_words, scaled(rest));
    largest / to
}

/// Stores the nearest integers; rounds ties to even.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(words: &mut [u32; PAIRS], numbers: __m512) {
    // SAFETY: both are 256 bits.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(
            words.as_mut_ptr().cast(),
            _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(numbers)),
        );
    }
}

/// Does the same as [`store`] for the first pairs.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_some(words: &mut [u32], numbers: __m512) {
    if !words.is_empty() {
        let mut all = [0; PAIRS];
        store(&mut all, numbers);
        words.copy_from_slice(&all[..words.len()]);
    }
}

//! Scalar products with INT4 by AVX-512 with VNNI: activations in INT16, as two bytes that `vpdpbusd` multiplies with the
//! same weights.
//!
//! A number is 256 · high + low, both from −128 to 127. A step is four groups of weights, 64 bytes: their low halves and
//! their high halves, each as 64 unsigned bytes whose products with the activations' bytes go to sixteen sums, four for a
//! group. What the weights' offset adds is in the sums from the start.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, _MM_HINT_T0, _mm_cvtph_ps, _mm_maskz_loadu_epi16, _mm_prefetch, _mm512_add_epi32,
    _mm512_and_si512, _mm512_castps128_ps512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_permutexvar_ps, _mm512_reduce_add_ps, _mm512_set1_epi8,
    _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi16,
};

use half::f16;

use super::{GROUP, HALF, OFFSET};
use crate::int16::Int16Rows;
use crate::tier::{self, Tier};
use crate::vectorize::vectorize;

/// Groups of a step.
const GROUPS: usize = 4;
/// Columns computed at once, where they are short.
const COLUMNS: usize = 4;
/// Bytes within which the processor takes what is read in turns for one stream, and fetches it ahead: columns that are
/// longer together are computed one by one.
const STREAM: usize = 4096;
/// Bytes of weights between what is computed and what is asked for: at 1 KiB, memory gave half as many a second.
const AHEAD: usize = 8192;
/// Bytes of weights of a step, and of one half of its activations.
const STEP: usize = GROUPS * HALF;

/// Rows of activations as the instruction wants them.
#[derive(Debug)]
pub(crate) struct SplitRows {
    steps: Vec<Step>,
    steps_of_row: usize,
    groups_of_row: usize,
    /// What one unit of a row is worth.
    scales: Vec<f32>,
}

/// 128 activations: those that meet weights in the low and in the high half of a byte.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Step {
    /// High bytes of both.
    high: [[i8; STEP]; 2],
    /// Low bytes of both.
    low: [[i8; STEP]; 2],
    /// What sums begin with: in the first of a group's four, −8 · Σ x.
    offset: [i32; 4 * GROUPS],
}

impl Step {
    /// Takes up to [`GROUPS`] groups.
    #[inline(always)]
    fn fill(&mut self, groups: &[[i16; GROUP]]) {
        for (index, group) in groups.iter().enumerate() {
            let mut sum = 0;
            for half in 0..2 {
                let bytes = index * HALF..(index + 1) * HALF;
                let numbers = &group[half * HALF..][..HALF];
                let (high, low) = (&mut self.high[half][bytes.clone()], &mut self.low[half][bytes]);
                for ((number, high), low) in numbers.iter().zip(high).zip(low) {
                    *low = *number as i8;
                    *high = ((number - i16::from(*low)) >> 8) as i8;
                    sum += i32::from(*number);
                }
            }
            self.offset[4 * index] = -i32::from(OFFSET) * sum;
        }
    }
}

impl SplitRows {
    /// None yet; `None` if this processor lacks the instructions or they may not be used.
    pub(crate) fn new() -> Option<Self> {
        let usable = Tier::has_vnni() && tier::may_be_used(Tier::Avx512);
        usable.then(|| Self { steps: Vec::new(), steps_of_row: 0, groups_of_row: 0, scales: Vec::new() })
    }

    /// Takes `rows` in place of what it held.
    pub(crate) fn fill(&mut self, rows: &Int16Rows) {
        self.groups_of_row = rows.in_features().div_ceil(GROUP);
        self.steps_of_row = rows.in_features().div_ceil(GROUPS * GROUP);
        self.scales.clear();
        self.scales.extend_from_slice(rows.scales());
        self.steps.clear();
        for row in 0..rows.scales().len() {
            for numbers in rows.row(row).chunks(GROUPS * GROUP) {
                let mut step = Step { high: [[0; STEP]; 2], low: [[0; STEP]; 2], offset: [0; 4 * GROUPS] };
                vectorize(
                    #[inline(always)]
                    || step.fill(numbers.as_chunks().0),
                );
                self.steps.push(step);
            }
        }
    }

    /// `out[columns]` = Σ x·w of a row with weights `[columns, in_features]` in whole groups.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(crate) fn dots(&self, row: usize, values: &[u8], scales: &[f16], out: &mut [f32]) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            dots(self, row, values, scales, out);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn dots(rows: &SplitRows, row: usize, values: &[u8], scales: &[f16], out: &mut [f32]) {
    let groups = scales.len() / out.len().max(1);
    assert_eq!(scales.len(), groups * out.len(), "weights of {} columns", out.len());
    assert_eq!(values.len(), scales.len() * HALF, "one scale for each group");
    assert_eq!(groups, rows.groups_of_row, "as many weights as activations in a row");
    let steps = &rows.steps[row * rows.steps_of_row..][..rows.steps_of_row];
    let of_column = |column: usize| (&values[column * groups * HALF..], &scales[column * groups..]);
    let together = if COLUMNS * groups * HALF < STREAM { out.len() / COLUMNS * COLUMNS } else { 0 };
    let (fours, rest) = out.split_at_mut(together);
    for (index, out) in fours.chunks_exact_mut(COLUMNS).enumerate() {
        let (values, scales) = of_column(index * COLUMNS);
        columns::<COLUMNS>(steps, values, scales, groups, rows.scales[row], out);
    }
    for (index, out) in rest.chunks_exact_mut(1).enumerate() {
        let (values, scales) = of_column(fours.len() + index);
        columns::<1>(steps, values, scales, groups, rows.scales[row], out);
    }
}

/// Some columns at once, which share the reading of activations. The order of each one's sum does not depend on how many.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn columns<const COLUMNS: usize>(
    steps: &[Step],
    values: &[u8],
    scales: &[f16],
    groups: usize,
    unit: f32,
    out: &mut [f32],
) {
    assert!(values.len() >= COLUMNS * groups * HALF && scales.len() >= COLUMNS * groups && out.len() == COLUMNS);
    let mut sums = [_mm512_setzero_ps(); COLUMNS];
    for (index, step) in steps.iter().enumerate() {
        let first = index * GROUPS;
        // Of the last step, the groups that there are.
        let left = (groups - first).min(GROUPS);
        let (bytes, halves) = (u64::MAX >> (64 - left * HALF), (1 << left) - 1);
        for (column, sums) in sums.iter_mut().enumerate() {
            let group = column * groups + first;
            _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(group * HALF + AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(scales.as_ptr().wrapping_add(group + AHEAD / HALF).cast());
            // SAFETY: the masks leave what lies beyond the column's groups alone.
            #[allow(unsafe_code)]
            let (values, scales) = unsafe {
                (
                    _mm512_maskz_loadu_epi8(bytes, values.as_ptr().add(group * HALF).cast()),
                    _mm_maskz_loadu_epi16(halves, scales.as_ptr().add(group).cast()),
                )
            };
            *sums = add(*sums, step, values, scales);
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = _mm512_reduce_add_ps(sums) * unit;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn add(sums: __m512, step: &Step, packed: __m512i, scales: __m128i) -> __m512 {
    // SAFETY: 64 bytes.
    #[allow(unsafe_code)]
    let offset = unsafe { _mm512_loadu_si512(step.offset.as_ptr().cast()) };
    let mask = _mm512_set1_epi8(15);
    let weights = [_mm512_and_si512(packed, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask)];
    let high = products(_mm512_setzero_si512(), weights, &step.high);
    let low = products(offset, weights, &step.low);
    let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let scales = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_cvtph_ps(scales)));
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, sums)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn products(sums: __m512i, weights: [__m512i; 2], numbers: &[[i8; STEP]; 2]) -> __m512i {
    // SAFETY: 64 bytes each.
    #[allow(unsafe_code)]
    let numbers = numbers.each_ref().map(|half| unsafe { _mm512_loadu_si512(half.as_ptr().cast()) });
    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, weights[0], numbers[0]), weights[1], numbers[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_column_agrees_with_the_definition(
            groups in 1usize..40, columns in 1usize..10, seed: u64, exponent in -20i32..20,
        ) {
            let Some(mut split) = SplitRows::new() else { return Ok(()) };
            let depth = groups * GROUP;
            let x: Vec<f32> = values(2 * depth, seed).iter().map(|x| x * 2f32.powi(exponent)).collect();
            let weight = values(columns * depth, seed ^ 1);
            let (mut packed, mut scales) = (vec![0; columns * depth / 2], vec![f16::ZERO; columns * groups]);
            super::super::quantize_int4(&weight, &mut packed, &mut scales);
            let mut wide = vec![0.0; columns * depth];
            super::super::widen(&packed, &scales, &mut wide);
            let mut rows = Int16Rows::default();
            rows.fill(&x, depth);
            split.fill(&rows);
            for (row, x) in rows.to_f32().chunks_exact(depth).enumerate() {
                let mut sums = vec![f32::NAN; columns];
                split.dots(row, &packed, &scales, &mut sums);
                for (sum, wide) in sums.iter().zip(wide.chunks_exact(depth)) {
                    let products = x.iter().zip(wide).map(|(x, weight)| f64::from(*x) * f64::from(*weight));
                    let expected = products.sum::<f64>();
                    let error = (f64::from(*sum) - expected).abs();
                    prop_assert!(error <= 1e-6 * 2f64.powi(exponent) * depth as f64, "{} is not {}", sum, expected);
                }
            }
        }
    }
}

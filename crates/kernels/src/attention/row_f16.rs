//! Scores and weighted sums of one query row with keys and values in f16, by AVX-512: they are widened in registers, once
//! for three heads of a group, and only scores and sums are written.

use std::arch::x86_64::{
    __m128, __m512, _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps256_ps128,
    _mm256_extractf128_ps, _mm256_hadd_ps, _mm256_loadu_si256, _mm512_castps_pd, _mm512_castps512_ps256,
    _mm512_cvtph_ps, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use half::f16;

use crate::Matrix;
use crate::tier::{self, Tier};

/// Numbers of a register.
const LANES: usize = 16;
/// Keys whose scores are summed at once.
const KEYS: usize = 4;

/// Keys and values of some positions, each `[positions, head_dim]`; having one proves that the processor can read them.
pub(super) struct F16Rows<'a> {
    keys: &'a [f16],
    values: &'a [f16],
    dim: usize,
}

impl<'a> F16Rows<'a> {
    /// `None` if they are no f16, if heads are no multiple of a register, or if the processor lacks the instructions.
    pub(super) fn new(keys: Matrix<'a>, values: Matrix<'a>, dim: usize) -> Option<Self> {
        let (Matrix::F16(keys), Matrix::F16(values)) = (keys, values) else { return None };
        let usable = Tier::Avx512.is_supported() && tier::may_be_used(Tier::Avx512);
        (usable && dim.is_multiple_of(LANES)).then_some(Self { keys, values, dim })
    }

    /// `scores[heads, positions]` = queries · keys, of `queries[heads, head_dim]`.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(super) fn scores(&self, queries: &[f32], scores: &mut [f32]) {
        let Self { keys, dim, .. } = *self;
        let (heads, count) = (queries.len() / dim, keys.len() / dim);
        assert!(keys.len() == count * dim && queries.len() == heads * dim && scores.len() == heads * count);
        let mut head = 0;
        while head < heads {
            let (queries, scores) = (&queries[head * dim..], &mut scores[head * count..]);
            // SAFETY: `new` has found the instructions.
            #[allow(unsafe_code)]
            unsafe {
                head += match heads - head {
                    1 => scores_of::<1>(queries, keys, dim, scores),
                    2 => scores_of::<2>(queries, keys, dim, scores),
                    _ => scores_of::<3>(queries, keys, dim, scores),
                };
            }
        }
    }

    /// The sums of the values times `weights[heads, positions]`: the first `head_dim` of each `stride` numbers of `out`, a
    /// head each.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(super) fn weighted(&self, weights: &[f32], out: &mut [f32], stride: usize) {
        let Self { values, dim, .. } = *self;
        let (heads, count) = (out.len() / stride, values.len() / dim);
        assert!(values.len() == count * dim && weights.len() == heads * count && stride >= dim);
        assert_eq!(out.len(), heads * stride, "heads of {stride} numbers");
        let mut head = 0;
        while head < heads {
            let (weights, out) = (&weights[head * count..], &mut out[head * stride..]);
            // SAFETY: `new` has found the instructions.
            #[allow(unsafe_code)]
            unsafe {
                head += match heads - head {
                    1 => weighted_of::<1>(weights, values, dim, out, stride),
                    2 => weighted_of::<2>(weights, values, dim, out, stride),
                    _ => weighted_of::<3>(weights, values, dim, out, stride),
                };
            }
        }
    }
}

/// Scores of the first heads. Returns their number.
#[target_feature(enable = "avx512f")]
fn scores_of<const HEADS: usize>(queries: &[f32], keys: &[f16], dim: usize, scores: &mut [f32]) -> usize {
    let count = keys.len() / dim;
    assert!(queries.len() >= HEADS * dim && scores.len() >= HEADS * count);
    for first in (0..count).step_by(KEYS) {
        let mut rows = [keys.as_ptr(); KEYS];
        for (key, row) in rows.iter_mut().enumerate() {
            // The last one again where there are no more.
            *row = keys[(first + key).min(count - 1) * dim..][..dim].as_ptr();
        }
        let mut sums = [[_mm512_setzero_ps(); KEYS]; HEADS];
        for lane in (0..dim).step_by(LANES) {
            let mut query = [_mm512_setzero_ps(); HEADS];
            for (head, query) in query.iter_mut().enumerate() {
                // SAFETY: `dim` is a multiple of a register's numbers, and there are so many for each head.
                #[allow(unsafe_code)]
                unsafe {
                    *query = _mm512_loadu_ps(queries.as_ptr().add(head * dim + lane));
                }
            }
            for (key, row) in rows.into_iter().enumerate() {
                // SAFETY: `dim` numbers, a multiple of a register's, begin at `row`.
                #[allow(unsafe_code)]
                let wide = unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(row.add(lane).cast())) };
                for (sums, query) in sums.iter_mut().zip(query) {
                    sums[key] = _mm512_fmadd_ps(query, wide, sums[key]);
                }
            }
        }
        for (head, sums) in sums.into_iter().enumerate() {
            let mut four = [0.0; KEYS];
            // SAFETY: four numbers.
            #[allow(unsafe_code)]
            unsafe {
                _mm_storeu_ps(four.as_mut_ptr(), sums_of_lanes(sums));
            }
            let left = KEYS.min(count - first);
            scores[head * count + first..][..left].copy_from_slice(&four[..left]);
        }
    }
    HEADS
}

/// The sum of each register.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_lanes(registers: [__m512; KEYS]) -> __m128 {
    let [a, b, c, d] = registers.map(|register| {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(register)));
        _mm256_add_ps(_mm512_castps512_ps256(register), high)
    });
    // Halves of the four sums.
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves))
}

/// Sums of the first heads. Returns their number.
#[target_feature(enable = "avx512f")]
fn weighted_of<const HEADS: usize>(
    weights: &[f32],
    values: &[f16],
    dim: usize,
    out: &mut [f32],
    stride: usize,
) -> usize {
    const WIDE: usize = 4;
    let mut lane = 0;
    while lane < dim {
        lane += LANES
            * if dim - lane >= WIDE * LANES {
                lanes_of::<HEADS, WIDE>(weights, &values[lane..], dim, &mut out[lane..], stride)
            } else {
                lanes_of::<HEADS, 1>(weights, &values[lane..], dim, &mut out[lane..], stride)
            };
    }
    HEADS
}

/// The first registers of the sums of some heads. Returns the number of registers. `values` begin with those of the first
/// key.
#[target_feature(enable = "avx512f")]
fn lanes_of<const HEADS: usize, const REGISTERS: usize>(
    weights: &[f32],
    values: &[f16],
    dim: usize,
    out: &mut [f32],
    stride: usize,
) -> usize {
    let count = values.len().div_ceil(dim);
    assert!(weights.len() >= HEADS * count);
    let mut sums = [[_mm512_setzero_ps(); REGISTERS]; HEADS];
    for key in 0..count {
        let mut wide = [_mm512_setzero_ps(); REGISTERS];
        for (register, wide) in wide.iter_mut().enumerate() {
            *wide = widen(&values[key * dim + register * LANES..]);
        }
        for (head, sums) in sums.iter_mut().enumerate() {
            let weight = _mm512_set1_ps(weights[head * count + key]);
            for (sum, wide) in sums.iter_mut().zip(wide) {
                *sum = _mm512_fmadd_ps(weight, wide, *sum);
            }
        }
    }
    for (head, sums) in sums.into_iter().enumerate() {
        for (register, sum) in sums.into_iter().enumerate() {
            let out = &mut out[head * stride + register * LANES..][..LANES];
            // SAFETY: sixteen numbers.
            #[allow(unsafe_code)]
            unsafe {
                _mm512_storeu_ps(out.as_mut_ptr(), sum);
            }
        }
    }
    REGISTERS
}

/// The first sixteen numbers in f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(numbers: &[f16]) -> __m512 {
    let numbers = &numbers[..LANES];
    // SAFETY: sixteen numbers.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_cvtph_ps(_mm256_loadu_si256(numbers.as_ptr().cast()))
    }
}

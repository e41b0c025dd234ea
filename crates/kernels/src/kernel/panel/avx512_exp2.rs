//! Powers of two with AVX-512.

use std::arch::x86_64::{
    __m512, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_add_ps,
    _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_mask_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_scalef_ps, _mm512_max_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps,
    _mm512_roundscale_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_ps,
};

use std::ops::Range;

use super::{LANES, Powers};
use crate::kernel::avx512::lanes;

/// Numbers per two registers.
const STEP: usize = 2 * LANES;

/// Calls `store` with 2^(x − m) for exponents x, two registers at a time: those in `visible`, and at most [`STEP`] − 1
/// on either side, whose powers are zero. m is the maximum of `before` and the visible exponents. `store` receives the
/// index of the first exponent, the exponents themselves, and two registers of powers, which are exact to 2⁻¹³. Returns
/// the range of all.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn exp2_and_sum(
    exponents: &mut [f32],
    visible: Range<usize>,
    before: f32,
    mut store: impl FnMut(usize, &mut [f32], [__m512; 2]),
) -> (Powers, Range<usize>) {
    assert!(
        visible.start <= visible.end && visible.end <= exponents.len(),
        "{visible:?} of {}",
        exponents.len()
    );
    // Whole steps, starting at an index that does not depend on `visible`.
    let first = visible.start / STEP * STEP;
    let end = visible.end.next_multiple_of(STEP).min(exponents.len());
    exponents[first..visible.start].fill(f32::MIN);
    exponents[visible.end..end].fill(f32::MIN);
    let exponents = &mut exponents[first..end];
    let (whole, rest) = exponents.as_chunks::<STEP>();
    let (rest_low, rest_high) = rest.split_at(rest.len().min(LANES));
    // The power of padding is zero.
    let last = [load(rest_low, f32::MIN), load(rest_high, f32::MIN)];
    let mut above = last.map(|x| _mm512_max_ps(x, _mm512_set1_ps(f32::MIN)));
    for x in whole {
        for (half, above) in above.iter_mut().enumerate() {
            // If the first operand is NaN, the instruction returns the second.
            *above = _mm512_max_ps(load(&x[half * LANES..][..LANES], f32::MIN), *above);
        }
    }
    let of_visible = _mm512_reduce_max_ps(_mm512_max_ps(above[0], above[1]));
    let largest = of_visible.max(before);
    let relative = |x| power(_mm512_sub_ps(x, _mm512_set1_ps(largest)));
    let mut sums = [_mm512_setzero_ps(); 2];
    let (whole, rest) = exponents.as_chunks_mut::<STEP>();
    for (index, x) in whole.iter_mut().enumerate() {
        let low = relative(load(&x[..LANES], f32::MIN));
        let high = relative(load(&x[LANES..], f32::MIN));
        sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
        store(first + index * STEP, x, [low, high]);
    }
    if !rest.is_empty() {
        let [low, high] = last.map(relative);
        sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
        store(end - rest.len(), rest, [low, high]);
    }
    let sum = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
    (
        Powers {
            of_visible,
            largest,
            sum,
        },
        first..end,
    )
}

/// Computes 2ˣ = 2ⁿ · 2ʳ with |r| ≤ ½ and 2ʳ by the minimax polynomial of degree 3, whose maximum relative error is
/// 7.5e-5. Returns zero below 2⁻¹²⁵.
#[inline]
#[target_feature(enable = "avx512f")]
fn power(x: __m512) -> __m512 {
    // Smaller results would be subnormal, which is slow on some processors. NaN is not less.
    let smallest = _mm512_set1_ps(-125.0);
    let is_not_less = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, smallest);
    // For minus infinity, r would be NaN. The instruction returns NaN if the second operand is NaN.
    let x = _mm512_max_ps(smallest, x);
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let r = _mm512_sub_ps(x, n);
    let mut series = _mm512_set1_ps(0.055_171_67);
    for coefficient in [0.242_611_13, 0.693_260_99, 0.999_928_07] {
        series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(coefficient));
    }
    _mm512_maskz_scalef_ps(is_not_less, series, n)
}

/// Loads at most sixteen numbers, and `rest` into the other lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(numbers: &[f32], rest: f32) -> __m512 {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_mask_loadu_ps(_mm512_set1_ps(rest), lanes(numbers.len()), numbers.as_ptr())
    }
}

/// Stores the first numbers of a register, at most sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(numbers: &mut [f32], register: __m512) {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_mask_storeu_ps(numbers.as_mut_ptr(), lanes(numbers.len()), register);
    }
}

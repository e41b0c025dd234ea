//! Scalar products, for matmuls with too few rows for packing to pay off.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::vectorize::Fused;

/// Number of independent partial sums. They fill four AVX-512 registers and are the same on every processor, so that
/// results differ at most by whether products are rounded before they are added.
const LANES: usize = 64;

/// Computes Σ a·b of two f32 slices of equal length.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32], fused: Fused) -> f32 {
    dot_with(a, b, fused, |b| b)
}

/// Computes Σ a·b with `b` in bf16.
#[inline(always)]
pub(crate) fn dot_bf16(a: &[f32], b: &[bf16], fused: Fused) -> f32 {
    dot_with(a, b, fused, |b| {
        f32::from_bits(u32::from(b.to_bits()) << 16)
    })
}

#[inline(always)]
fn dot_with<T: Copy>(a: &[f32], b: &[T], fused: Fused, widen: impl Fn(T) -> f32) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sums = [0.0f32; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] = fused.multiply_add(a[lane], widen(b[lane]), sums[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * widen(*b)).sum();
    sum(sums) + rest
}

/// Sums a power of two of numbers pairwise, adding one half to the other, so that the sums stay in vector registers as
/// long as possible.
#[inline(always)]
pub(crate) fn sum<const LANES: usize>(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}

/// Widens bf16 to f32.
#[inline(always)]
pub(crate) fn widen_bf16(from: &[bf16], to: &mut [f32]) {
    for (from, to) in from.iter().zip(to) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}

/// Widens f16 to f32.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn widen_f16(from: &[f16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "expected slices of equal length");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // The library converts eight at a time, each time by a function call.
        let (blocks, rest) = from.as_chunks::<16>();
        let (wide, wide_rest) = to.as_chunks_mut::<16>();
        // SAFETY: the processor has the instructions.
        #[allow(unsafe_code)]
        unsafe {
            widen_blocks(blocks, wide);
        }
        return rest.convert_to_f32_slice(wide_rest);
    }
    from.convert_to_f32_slice(to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn widen_blocks(from: &[[f16; 16]], to: &mut [[f32; 16]]) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
    for (from, to) in from.iter().zip(to) {
        // SAFETY: sixteen numbers each.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(
                to.as_mut_ptr(),
                _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())),
            );
        }
    }
}

/// Rounds f32 to f16, to nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
pub fn narrow_f16(from: &[f32], to: &mut [f16]) {
    assert_eq!(from.len(), to.len(), "expected slices of equal length");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // The library calls a function for every eight, as in `widen_f16`.
        let (blocks, rest) = from.as_chunks::<16>();
        let (narrow, narrow_rest) = to.as_chunks_mut::<16>();
        // SAFETY: the processor has the instructions.
        #[allow(unsafe_code)]
        unsafe {
            narrow_blocks(blocks, narrow);
        }
        return narrow_rest.convert_from_f32_slice(rest);
    }
    to.convert_from_f32_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn narrow_blocks(from: &[[f32; 16]], to: &mut [[f16; 16]]) {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm256_storeu_si256, _mm512_cvtps_ph, _mm512_loadu_ps,
    };
    for (from, to) in from.iter().zip(to) {
        // SAFETY: sixteen numbers each.
        #[allow(unsafe_code)]
        unsafe {
            let halves =
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from.as_ptr()));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_becomes_the_nearest_f16() {
        // Every sign and exponent with various fractions, below and above the range of f16, and ties between two f16
        // numbers.
        let fractions = (0..1u32 << 10)
            .flat_map(|high| [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| high << 13 | low));
        let fractions: Vec<u32> = fractions.step_by(7).collect();
        let bits = (0..1u32 << 9)
            .flat_map(|top| fractions.iter().map(move |fraction| top << 23 | fraction));
        let floats: Vec<f32> = bits.map(f32::from_bits).collect();
        for skipped in [0, 5] {
            let floats = &floats[skipped..];
            let mut narrow = vec![f16::ZERO; floats.len()];
            narrow_f16(floats, &mut narrow);
            for (float, narrow) in floats.iter().zip(narrow) {
                let expected = f16::from_f32_const(*float);
                let is_same =
                    narrow.to_bits() == expected.to_bits() || narrow.is_nan() && expected.is_nan();
                assert!(is_same, "{float:e} became {narrow}, not {expected}");
            }
        }
    }

    #[test]
    fn every_f16_is_widened_to_its_value() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for skipped in [0, 7] {
            let halves = &halves[skipped..];
            let mut widened = vec![0.0; halves.len()];
            widen_f16(halves, &mut widened);
            for (half, float) in halves.iter().zip(widened) {
                assert!(
                    float == half.to_f32() || float.is_nan() && half.is_nan(),
                    "{half} became {float}"
                );
            }
        }
    }
}

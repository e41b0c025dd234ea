//! Quantizes weights to INT8.

use crate::chunks::{chunks_mut, for_each_chunk, map};
use crate::kernel::int8::LARGEST;
use crate::magnitude::largest_magnitude;
use crate::vectorize::vectorize;

/// Quantizes `weight`, `[out_features, in_features]`, with one scale per output channel: the row's largest magnitude /
/// 127, or 1 for a row of zeros. Rounds half to even. A row with a number that is not finite gets the scale NaN.
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn quantize_weight_rows(
    weight: &[f32],
    in_features: usize,
    scales: &mut [f32],
    row_major: &mut [i8],
) {
    check(weight, in_features, scales, row_major);
    let rows = (chunks_mut(row_major, in_features), chunks_mut(scales, 1));
    for_each_chunk(rows, 1, |row, (quantized, scale)| {
        let weight = &weight[row * in_features..][..in_features];
        scale[0] = scale_for(largest_magnitude(weight));
        quantize(weight, scale[0], quantized);
    });
}

/// Does the same as [`quantize_weight_rows`] with one scale for the whole matrix, repeated in `scales`.
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn quantize_weight_tensor(
    weight: &[f32],
    in_features: usize,
    scales: &mut [f32],
    row_major: &mut [i8],
) {
    check(weight, in_features, scales, row_major);
    let row = |row: usize| &weight[row * in_features..][..in_features];
    let scale = scale_for(
        map(scales.len(), |index| largest_magnitude(row(index)))
            .into_iter()
            .fold(0.0, wider),
    );
    scales.fill(scale);
    for_each_chunk(chunks_mut(row_major, in_features), 1, |index, quantized| {
        quantize(row(index), scale, quantized);
    });
}

/// Computes the sum of each row of `row_major`, `[out_features, in_features]`, for
/// [`Int8Weight::sums`](super::Int8Weight::sums).
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn row_sums(row_major: &[i8], in_features: usize, sums: &mut [i32]) {
    assert_eq!(
        Some(row_major.len()),
        sums.len().checked_mul(in_features),
        "weight is [{}, {in_features}]",
        sums.len()
    );
    for (row, sum) in row_major.chunks_exact(in_features.max(1)).zip(sums) {
        *sum = row.iter().map(|value| i32::from(*value)).sum();
    }
}

fn check(weight: &[f32], in_features: usize, scales: &[f32], row_major: &[i8]) {
    assert!(in_features > 0, "expected at least one input feature");
    let out_features = scales.len();
    assert_eq!(
        Some(weight.len()),
        out_features.checked_mul(in_features),
        "weight is [{out_features}, {in_features}]"
    );
    assert_eq!(row_major.len(), weight.len(), "as many numbers as weights");
}

fn wider(a: f32, b: f32) -> f32 {
    f32::from_bits(a.to_bits().max(b.to_bits()))
}

/// Returns the scale that maps `largest` to 127. NaN if `largest` is not finite; 1 if it is too small to divide by, so
/// that all weights become zero.
pub(super) fn scale_for(largest: f32) -> f32 {
    let scale = largest / LARGEST;
    if !largest.is_finite() {
        f32::NAN
    } else if scale.is_normal() {
        scale
    } else {
        1.0
    }
}

fn quantize(weight: &[f32], scale: f32, quantized: &mut [i8]) {
    vectorize(
        #[inline(always)]
        || {
            for (weight, quantized) in weight.iter().zip(&mut *quantized) {
                *quantized = (weight / scale).round_ties_even().clamp(-LARGEST, LARGEST) as i8;
            }
        },
    );
}

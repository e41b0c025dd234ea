//! The largest magnitude of a row.

use crate::vectorize::vectorize;

/// Returns the largest magnitude; NaN if there is a NaN.
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    vectorize(
        #[inline(always)]
        || largest_magnitude_inline(values),
    )
}

/// Does the same as [`largest_magnitude`], for callers that are already vectorized.
#[inline(always)]
pub(crate) fn largest_magnitude_inline(values: &[f32]) -> f32 {
    // Magnitudes order as their bits do, with NaN above infinity; integers have a vector maximum.
    f32::from_bits(
        values
            .iter()
            .fold(0, |largest: u32, value| largest.max(value.abs().to_bits())),
    )
}

//! The largest magnitude of a row.

use crate::vectorize::vectorize;

/// The largest magnitude; NaN if there is one.
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    vectorize(
        #[inline(always)]
        || largest_magnitude_inline(values),
    )
}

/// As [`largest_magnitude`], for a loop that is vectorized.
#[inline(always)]
pub(crate) fn largest_magnitude_inline(values: &[f32]) -> f32 {
    // Magnitudes order as their bits do, with NaN above infinity; integers have a vector maximum.
    f32::from_bits(
        values
            .iter()
            .fold(0, |largest: u32, value| largest.max(value.abs().to_bits())),
    )
}

//! Rounds a row of activations to INT8.

use super::LARGEST;
use super::rows::{OFFSET, Outliers};
use crate::vectorize::vectorize;

/// Activations that are quantized together.
const LANES: usize = 64;
/// One row of activations to be quantized to INT8.
pub(crate) struct ActivationRow<'a> {
    pub x: &'a [f32],
    /// Factors that are applied to `x` first.
    pub smoothing: Option<&'a [f32]>,
    /// 1 / scale.
    pub inverse: f32,
    /// Magnitudes above this limit, and NaN, are outliers.
    pub limit: f32,
}

impl ActivationRow<'_> {
    /// Implements [`Int8Kernel::quantize`](super::Int8Kernel::quantize) in plain Rust.
    pub(crate) fn quantize(&self, numbers: &mut [u8], outliers: &mut Outliers) {
        let Self {
            x,
            smoothing,
            inverse,
            limit,
        } = *self;
        vectorize(
            #[inline(always)]
            || {
                let (whole, rest) = numbers.as_chunks_mut::<LANES>();
                let (whole_x, rest_x) = x.as_chunks::<LANES>();
                let first_of_rest = whole.len() * LANES;
                let (whole_smoothing, rest_smoothing) =
                    smoothing.map_or((&[][..], &[][..]), |all| all.as_chunks::<LANES>());
                for (index, (numbers, x)) in whole.iter_mut().zip(whole_x).enumerate() {
                    // Activations stay in registers; they are needed in memory only if one exceeds the limit.
                    let exceeds = match whole_smoothing.get(index) {
                        None => quantize_lanes(|lane| x[lane], inverse, limit, numbers),
                        Some(smoothing) => quantize_lanes(
                            |lane| x[lane] * smoothing[lane],
                            inverse,
                            limit,
                            numbers,
                        ),
                    };
                    if exceeds {
                        let x = whole_smoothing
                            .get(index)
                            .map_or(*x, |smoothing| smoothed(x, smoothing));
                        report(&x, limit, index * LANES, outliers);
                    }
                }
                if !rest.is_empty() {
                    let x = padded(rest_x);
                    let x = if smoothing.is_some() {
                        smoothed(&x, &padded(rest_smoothing))
                    } else {
                        x
                    };
                    let mut numbers = [0; LANES];
                    quantize_lanes(|lane| x[lane], inverse, limit, &mut numbers);
                    rest.copy_from_slice(&numbers[..rest.len()]);
                    report(&x[..rest.len()], limit, first_of_rest, outliers);
                }
            },
        );
    }
}

/// Appends the channels of `x` that exceed `limit`; `x` starts with channel `first`.
fn report(x: &[f32], limit: f32, first: usize, outliers: &mut Outliers) {
    for (lane, x) in x.iter().enumerate() {
        if exceeds(*x, limit) {
            outliers.push(first + lane, *x);
        }
    }
}

#[inline(always)]
fn smoothed(x: &[f32; LANES], smoothing: &[f32; LANES]) -> [f32; LANES] {
    let mut lanes = *x;
    for (x, smoothing) in lanes.iter_mut().zip(smoothing) {
        *x *= smoothing;
    }
    lanes
}

/// Returns the rest of a row, padded with zeros.
#[inline(always)]
fn padded(values: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// Writes the numbers of `x`, and returns whether any activation exceeds `limit`.
#[inline(always)]
fn quantize_lanes(
    x: impl Fn(usize) -> f32,
    inverse: f32,
    limit: f32,
    values: &mut [u8; LANES],
) -> bool {
    /// Adding 1.5 · 2²³ leaves the rounded number in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let mut any = false;
    for (lane, value) in values.iter_mut().enumerate() {
        let x = x(lane);
        any |= exceeds(x, limit);
        let scaled = x * inverse;
        let above = if scaled < -LARGEST { -LARGEST } else { scaled };
        let clipped = if above > LARGEST { LARGEST } else { above };
        *value = (clipped + ROUND).to_bits() as u8 ^ OFFSET;
    }
    any
}

/// Returns whether `x` exceeds `limit` or is NaN.
#[inline(always)]
fn exceeds(x: f32, limit: f32) -> bool {
    x.abs() > limit || x.is_nan()
}

//! Weights in INT4: symmetric, with one f16 scale for each group of 32 consecutive weights of a row.
//!
//! A group is sixteen bytes. Byte j holds element j in its low four bits and element j + 16 in its high four bits, so
//! that one mask or shift of sixteen bytes yields sixteen consecutive elements. Four bits hold the number plus eight;
//! numbers go from −8 to 7.
//!
//! [`quantize_int4`] chooses a group's scale by the squared error of its weights, [`quantize_int4_for`] by the squared
//! error of a layer's output (in `search`). [`quantize_int4_with_feedback`] also lets weights compensate for the errors of
//! others (in `feedback`). [`quantize_q5_0`] and [`quantize_q5_0_with_feedback`] do the same with five bits.

mod feedback;
mod q5_0;
mod search;

use half::f16;

use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::vectorize;

pub use feedback::{ErrorFeedback, quantize_int4_with_feedback, quantize_q5_0_with_feedback};
pub use q5_0::quantize_q5_0;

/// Consecutive weights of a row that share a scale.
pub const GROUP: usize = 32;
/// Bytes per group.
pub(crate) const HALF: usize = GROUP / 2;
/// Groups that a thread quantizes at a time.
const TASK_GROUPS: usize = 1024;
/// The offset that is added to a number to store it.
const OFFSET: u8 = 8;

/// Magnitudes to which a group's largest number is mapped in turn; the one with the least squared error is used.
const EXTREMES: [f32; 6] = [8.0, 7.75, 7.5, 7.25, 7.0, 6.75];

/// Quantizes `weight`, rows of a multiple of 32 numbers, into `values`, half as many bytes, and `scales`, one per
/// group. A number that is not finite makes the scale of its group NaN.
///
/// # Panics
/// If a slice's length contradicts the others.
pub fn quantize_int4(weight: &[f32], values: &mut [u8], scales: &mut [f16]) {
    quantize_groups(
        weight,
        values,
        scales,
        #[inline(always)]
        |_, weight| best_scale(weight),
    );
}

/// Quantizes `weight[out_features, in_features]` as [`quantize_int4`] does, but for activations with the mean squares
/// `mean_squares[in_features]` over some text. Each group gets the candidate scale with the least Σ `mean_squares[i]` ·
/// (w\[i\] − ŵ\[i\])², where ŵ is the quantized weight; the sum never exceeds that of the scale that [`quantize_int4`]
/// chooses. It is the expected squared error of an output, if errors of different channels are independent.
///
/// # Panics
/// If a slice's length contradicts the others, or `in_features` is no multiple of 32.
pub fn quantize_int4_for(
    mean_squares: &[f32],
    weight: &[f32],
    values: &mut [u8],
    scales: &mut [f16],
) {
    let (of_groups, rest) = mean_squares.as_chunks::<GROUP>();
    assert!(
        rest.is_empty() && !of_groups.is_empty(),
        "{} channels in groups of {GROUP}",
        mean_squares.len()
    );
    assert!(
        weight.len().is_multiple_of(mean_squares.len()),
        "{} weights for {} channels",
        weight.len(),
        mean_squares.len()
    );
    quantize_groups(
        weight,
        values,
        scales,
        #[inline(always)]
        |group, weight| search::best_scale(weight, &of_groups[group % of_groups.len()]),
    );
}

/// Quantizes each group with the scale that `scale_of` returns for its index and weights.
fn quantize_groups(
    weight: &[f32],
    values: &mut [u8],
    scales: &mut [f16],
    scale_of: impl Fn(usize, &[f32; GROUP]) -> f16 + Sync,
) {
    check(values, scales);
    assert_eq!(
        weight.len(),
        values.len() * 2,
        "expected two weights per byte"
    );
    let weight = weight.as_chunks::<GROUP>().0;
    for_each_chunk(
        (chunks_mut(values, HALF), chunks_mut(scales, 1)),
        TASK_GROUPS,
        |group, (values, scale)| {
            let (weight, scale) = (&weight[group], &mut scale[0]);
            vectorize(
                #[inline(always)]
                || {
                    *scale = scale_of(group, weight);
                    let inverse = inverse(*scale);
                    for (index, byte) in values.iter_mut().enumerate() {
                        *byte = nibble(weight[index] * inverse)
                            | nibble(weight[index + HALF] * inverse) << 4;
                    }
                },
            );
        },
    );
}

/// Returns the best of the scales that map the largest magnitude near ±8, by squared error.
#[inline(always)]
fn best_scale(weight: &[f32; GROUP]) -> f16 {
    let largest = largest(weight);
    if !weight.iter().all(|x| x.is_finite()) {
        return f16::NAN;
    }
    let error = |scale: f16| {
        let (wide, inverse) = (scale.to_f32(), inverse(scale));
        let errors = weight
            .iter()
            .map(|x| x - (f32::from(nibble(x * inverse)) - f32::from(OFFSET)) * wide);
        errors.map(|error| error * error).sum::<f32>()
    };
    // The largest number becomes −8, the only one without a positive counterpart, so its sign is that of −scale.
    let candidates = EXTREMES.map(|extreme| f16::from_f32(-largest / extreme));
    let errors = candidates.map(error);
    let best = (1..EXTREMES.len()).fold(0, |best, index| {
        if errors[index] < errors[best] {
            index
        } else {
            best
        }
    });
    candidates[best]
}

/// Returns the number with the largest magnitude, with its sign.
#[inline(always)]
fn largest(weight: &[f32; GROUP]) -> f32 {
    weight.iter().fold(
        0.0,
        |largest, x| if x.abs() > largest.abs() { *x } else { largest },
    )
}

/// Returns 1 / scale, or 0 for a scale of 0, where the group is all zeros.
#[inline(always)]
fn inverse(scale: f16) -> f32 {
    if scale.to_f32() == 0.0 {
        0.0
    } else {
        scale.to_f32().recip()
    }
}

#[inline(always)]
fn nibble(scaled: f32) -> u8 {
    (scaled.round_ties_even() + f32::from(OFFSET)).clamp(0.0, 15.0) as u8
}

/// Returns the low four bits of `numbers` with `offset` added, in the order of a group's bytes.
fn low_bits(numbers: &[i8; GROUP], offset: u8) -> [u8; HALF] {
    let low = |index: usize| numbers[index].wrapping_add_unsigned(offset) as u8 & 15;
    std::array::from_fn(|index| low(index) | low(index + HALF) << 4)
}

pub(crate) fn check(values: &[u8], scales: &[f16]) {
    assert_eq!(
        values.len(),
        scales.len() * HALF,
        "one scale for each group of {GROUP}"
    );
}

/// Widens whole groups to f32.
#[inline(always)]
pub(crate) fn widen(values: &[u8], scales: &[f16], wide: &mut [f32]) {
    let groups = values
        .as_chunks::<HALF>()
        .0
        .iter()
        .zip(wide.as_chunks_mut::<GROUP>().0)
        .zip(scales);
    for ((bytes, wide), scale) in groups {
        let scale = scale.to_f32();
        let (low, high) = halves(bytes);
        for lane in 0..HALF {
            wide[lane] = low[lane] * scale;
            wide[lane + HALF] = high[lane] * scale;
        }
    }
}

/// Returns the numbers of a group without their scale: low halves and high halves of the bytes.
#[inline(always)]
fn halves(bytes: &[u8; HALF]) -> ([f32; HALF], [f32; HALF]) {
    let (mut low, mut high) = ([0.0; HALF], [0.0; HALF]);
    for lane in 0..HALF {
        low[lane] = f32::from(bytes[lane] & 15) - f32::from(OFFSET);
        high[lane] = f32::from(bytes[lane] >> 4) - f32::from(OFFSET);
    }
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns one element, by the definition of the format.
    fn at(values: &[u8], scales: &[f16], index: usize) -> f32 {
        let (group, place) = (index / GROUP, index % GROUP);
        let byte = values[group * HALF + place % HALF];
        let nibble = if place < HALF { byte & 15 } else { byte >> 4 };
        (f32::from(nibble) - f32::from(OFFSET)) * scales[group].to_f32()
    }

    proptest! {
        #[test]
        fn no_weight_is_further_off_than_a_step(weight: [i16; GROUP], exponent in -12i32..4) {
            let weight = weight.map(|x| f32::from(x) * 2f32.powi(exponent - 8));
            let (mut values, mut scales) = ([0; HALF], [f16::ZERO]);
            quantize_int4(&weight, &mut values, &mut scales);
            let mut wide = [f32::NAN; GROUP];
            widen(&values, &scales, &mut wide);
            let largest = weight.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            for (index, (weight, wide)) in weight.iter().zip(wide).enumerate() {
                prop_assert!((weight - wide).abs() <= largest / 6.0 + 1e-6, "{} became {}", weight, wide);
                prop_assert_eq!(at(&values, &scales, index), wide);
            }
        }
    }

    #[test]
    fn numbers_from_minus_8_to_7_are_kept_as_they_are() {
        let weight: Vec<f32> = (0..GROUP as i32)
            .map(|i| (i % 16 - 8) as f32 * 0.25)
            .collect();
        let (mut values, mut scales) = ([0; HALF], [f16::ZERO]);
        quantize_int4(&weight, &mut values, &mut scales);
        assert_eq!(scales[0].to_f32(), 0.25);
        assert_eq!((values[0], values[15]), (0x00, 0xff));
        assert_eq!(
            (0..GROUP)
                .map(|i| at(&values, &scales, i))
                .collect::<Vec<_>>(),
            weight
        );
    }

    #[test]
    fn zeros_stay_zeros_and_a_number_that_is_not_finite_shows() {
        let (mut values, mut scales) = ([0; 3 * HALF], [f16::ZERO; 3]);
        let mut weight = [0.0; 3 * GROUP];
        (weight[GROUP], weight[2 * GROUP]) = (f32::NAN, f32::INFINITY);
        quantize_int4(&weight, &mut values, &mut scales);
        let mut wide = [1.0; 3 * GROUP];
        widen(&values, &scales, &mut wide);
        assert!(
            wide[..GROUP].iter().all(|x| *x == 0.0) && wide[GROUP..].iter().all(|x| x.is_nan())
        );
    }
}

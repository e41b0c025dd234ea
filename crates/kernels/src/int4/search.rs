//! Chooses a group's scale by the error of the layer's output: each weight's error is weighted by the mean square of
//! the activation that it is multiplied by.
//!
//! The error as a function of the scale has many local minima, since each change of it rounds some weights to other
//! numbers. So all scales of a grid are tried, and the best is improved by least squares: for fixed quantized numbers
//! the best scale has a closed form, and it may give other numbers in turn.

use std::array::from_fn;

use half::f16;

use super::{GROUP, HALF, OFFSET, inverse, largest, nibble};

/// The largest weight of a group is mapped to ±`EXTREMES[0]` to ±`EXTREMES[1]`, in steps of [`STEP`], and then clamped
/// to −8 to 7.
pub(super) const EXTREMES: [f32; 2] = [5.0, 12.0];
pub(super) const STEP: f32 = 0.25;
pub(super) const STEPS: usize = ((EXTREMES[1] - EXTREMES[0]) / STEP) as usize + 1;
/// Maximum number of least-squares improvements of a scale.
const ROUNDS: usize = 4;

/// Returns the scale with the least Σ `mean_squares` · (weight − quantized weight)² among many candidates, including
/// the scale of [`quantize_int4`](super::quantize_int4).
#[inline(always)]
pub(super) fn best_scale(weight: &[f32; GROUP], mean_squares: &[f32; GROUP]) -> f16 {
    let mut best = super::best_scale(weight);
    let mut least = error(weight, mean_squares, best);
    let largest = largest(weight);
    for step in 0..STEPS {
        let extreme = EXTREMES[0] + STEP * step as f32;
        for scale in [-largest / extreme, largest / extreme] {
            let scale = f16::from_f32(scale);
            let error = error(weight, mean_squares, scale);
            // Always false for weights that are not finite, whose scale is NaN.
            if error < least {
                (best, least) = (scale, error);
            }
        }
    }
    for _ in 0..ROUNDS {
        let scale = least_squares(weight, mean_squares, best);
        let error = error(weight, mean_squares, scale);
        if error < least {
            (best, least) = (scale, error);
        } else {
            break;
        }
    }
    best
}

/// Computes Σ `mean_squares` · (weight − quantized weight)² for this scale.
#[inline(always)]
fn error(weight: &[f32; GROUP], mean_squares: &[f32; GROUP], scale: f16) -> f32 {
    let numbers = numbers(weight, scale);
    let scale = scale.to_f32();
    sum(from_fn(|index| {
        let error = weight[index] - numbers[index] * scale;
        mean_squares[index] * error * error
    }))
}

/// Returns the scale with the least error for the quantized numbers of `scale`.
#[inline(always)]
fn least_squares(weight: &[f32; GROUP], mean_squares: &[f32; GROUP], scale: f16) -> f16 {
    let numbers = numbers(weight, scale);
    let products = sum(from_fn(|index| {
        mean_squares[index] * weight[index] * numbers[index]
    }));
    let squares = sum(from_fn(|index| {
        mean_squares[index] * numbers[index] * numbers[index]
    }));
    f16::from_f32(products / squares)
}

/// Returns the rounded number of each weight, from −8 to 7.
#[inline(always)]
fn numbers(weight: &[f32; GROUP], scale: f16) -> [f32; GROUP] {
    let inverse = inverse(scale);
    from_fn(|index| f32::from(nibble(weight[index] * inverse)) - f32::from(OFFSET))
}

/// Sums in lanes, so that the compiler vectorizes it.
#[inline(always)]
fn sum(terms: [f32; GROUP]) -> f32 {
    let mut lanes: [f32; HALF] = from_fn(|lane| terms[lane] + terms[lane + HALF]);
    let mut count = HALF / 2;
    while count > 0 {
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
        count /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{quantize_int4, quantize_int4_for, widen};
    use super::*;

    /// Computes the objective, in f64, for whole rows.
    fn objective(mean_squares: &[f32], weight: &[f32], values: &[u8], scales: &[f16]) -> f64 {
        let mut wide = vec![f32::NAN; weight.len()];
        widen(values, scales, &mut wide);
        let errors = weight.iter().zip(&wide).zip(mean_squares.iter().cycle());
        errors
            .map(|((weight, wide), square)| {
                f64::from(*square) * (f64::from(*weight) - f64::from(*wide)).powi(2)
            })
            .sum()
    }

    fn quantized(weight: &[f32], quantize: impl Fn(&mut [u8], &mut [f16])) -> (Vec<u8>, Vec<f16>) {
        let (mut values, mut scales) = (
            vec![0; weight.len() / 2],
            vec![f16::ZERO; weight.len() / GROUP],
        );
        quantize(&mut values, &mut scales);
        (values, scales)
    }

    proptest! {
        #[test]
        fn the_error_is_never_larger_than_with_scales_chosen_by_the_weights_alone(
            weight in prop::collection::vec(any::<i16>(), 6 * GROUP), exponent in -14i32..2,
            squares in prop::collection::vec(0f32..20.0, 2 * GROUP), largest in 0usize..2 * GROUP, outlier in 1f32..1e6,
        ) {
            // Three rows of two groups.
            let weight: Vec<f32> = weight.iter().map(|x| f32::from(*x) * 2f32.powi(exponent - 8)).collect();
            let mut squares: Vec<f32> = squares.iter().map(|x| x.exp2()).collect();
            squares[largest] *= outlier;
            let (values, scales) = quantized(&weight, |values, scales| quantize_int4(&weight, values, scales));
            let nearest = objective(&squares, &weight, &values, &scales);
            let (values, scales) =
                quantized(&weight, |values, scales| quantize_int4_for(&squares, &weight, values, scales));
            let searched = objective(&squares, &weight, &values, &scales);
            prop_assert!(searched <= nearest * (1.0 + 1e-5), "{} is more than {}", searched, nearest);
        }

        #[test]
        fn each_group_counts_the_channels_that_it_reads(
            weight in prop::collection::vec(any::<i16>(), 2 * GROUP), squares in prop::collection::vec(0f32..9.0, 2 * GROUP),
        ) {
            let weight: Vec<f32> = weight.iter().map(|x| f32::from(*x) / 256.0).collect();
            let together = quantized(&weight, |values, scales| quantize_int4_for(&squares, &weight, values, scales));
            for group in 0..2 {
                let part = group * GROUP..(group + 1) * GROUP;
                let (weight, squares) = (&weight[part.clone()], &squares[part]);
                let alone = quantized(weight, |values, scales| quantize_int4_for(squares, weight, values, scales));
                prop_assert_eq!(&together.0[group * HALF..][..HALF], &alone.0[..]);
                prop_assert_eq!(together.1[group], alone.1[0]);
            }
        }
    }

    #[test]
    fn a_weight_whose_channel_is_large_is_kept_more_exactly() {
        let mut weight: [f32; GROUP] = from_fn(|index| (index as f32 * 0.7).sin() * 0.3);
        weight[3] = 1.0;
        let mut squares = [1.0; GROUP];
        squares[11] = 1e4;
        let error_of_11 = |squares: &[f32]| {
            let (values, scales) = quantized(&weight, |values, scales| {
                quantize_int4_for(squares, &weight, values, scales);
            });
            let mut wide = [0.0; GROUP];
            widen(&values, &scales, &mut wide);
            (wide[11] - weight[11]).abs()
        };
        assert!(error_of_11(&squares) < error_of_11(&[1.0; GROUP]) / 4.0);
    }

    #[test]
    fn zeros_channels_without_activations_and_numbers_that_are_not_finite_are_as_without_the_search()
     {
        let mut weight = [0.0; 3 * GROUP];
        (weight[GROUP], weight[2 * GROUP + 1]) = (f32::NAN, 0.5);
        for squares in [[0.0; GROUP], [1.0; GROUP]] {
            let (values, scales) = quantized(&weight, |values, scales| {
                quantize_int4_for(&squares, &weight, values, scales);
            });
            let mut wide = [f32::NAN; 3 * GROUP];
            widen(&values, &scales, &mut wide);
            assert!(wide[..GROUP].iter().all(|x| *x == 0.0) && scales[1].is_nan());
            assert_eq!(wide[2 * GROUP + 1], 0.5);
        }
    }
}

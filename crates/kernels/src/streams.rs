//! Operators on several residual streams. A row of streams has the first one apart from the others, which follow each
//! other.

use crate::norm::{mean_square, sum};
use crate::vectorize::vectorize;

/// The least mean square of a vector that is brought to another one.
const MIN_MEAN_SQUARE: f32 = 1e-5;

/// The channels that are computed together.
const CHANNELS: usize = 64;

/// The most streams.
pub const MAX_STREAMS: usize = 16;

/// Adds to each stream a weighted sum of all streams, as they were before: `coefficients[to · streams + from]`.
///
/// # Panics
/// If there are more than [`MAX_STREAMS`] streams, or the lengths do not fit.
pub fn predict(first: &mut [f32], others: &mut [f32], coefficients: &[f32]) {
    let (hidden, count) = (first.len(), others.len() / first.len().max(1) + 1);
    assert!(count <= MAX_STREAMS, "at most {MAX_STREAMS} streams");
    assert_eq!(others.len(), (count - 1) * hidden, "whole streams");
    assert_eq!(
        coefficients.len(),
        count * count,
        "a coefficient of each pair"
    );
    vectorize(
        #[inline(always)]
        || {
            let mut before = [[0.0f32; CHANNELS]; MAX_STREAMS];
            for start in (0..hidden).step_by(CHANNELS) {
                let length = CHANNELS.min(hidden - start);
                before[0][..length].copy_from_slice(&first[start..][..length]);
                for (from, before) in before[1..count].iter_mut().enumerate() {
                    before[..length].copy_from_slice(&others[from * hidden + start..][..length]);
                }
                for to in 0..count {
                    let out = match to {
                        0 => &mut first[start..][..length],
                        _ => &mut others[(to - 1) * hidden + start..][..length],
                    };
                    for (from, before) in before[..count].iter().enumerate() {
                        let coefficient = coefficients[to * count + from];
                        for (out, before) in out.iter_mut().zip(before) {
                            *out += coefficient * before;
                        }
                    }
                }
            }
        },
    );
}

/// Adds to each stream the change of the first one, times a factor for each stream. `first` has been computed from
/// `predicted`, and becomes the first stream.
///
/// # Panics
/// If the lengths do not fit.
pub fn correct(first: &mut [f32], predicted: &[f32], others: &mut [f32], factors: &[f32]) {
    let hidden = first.len();
    assert_eq!(predicted.len(), hidden, "one stream");
    assert_eq!(
        others.len() + hidden,
        factors.len() * hidden,
        "a factor of each stream"
    );
    vectorize(
        #[inline(always)]
        || {
            for (other, factor) in others.chunks_exact_mut(hidden.max(1)).zip(&factors[1..]) {
                for ((other, first), predicted) in other.iter_mut().zip(&*first).zip(predicted) {
                    *other += (first - predicted) * factor;
                }
            }
            for (first, predicted) in first.iter_mut().zip(predicted) {
                *first = predicted + (*first - predicted) * factors[0];
            }
        },
    );
}

/// Brings `x` to the root mean square of `target`.
pub fn match_magnitude(x: &mut [f32], target: &[f32]) {
    vectorize(
        #[inline(always)]
        || {
            let factor = (mean_square(target) / mean_square(x).max(MIN_MEAN_SQUARE)).sqrt();
            for x in x.iter_mut() {
                *x *= factor;
            }
        },
    );
}

/// Adds two vectors to `x` and brings the sum to the power of one: `x = (x + y + z) / √2`.
///
/// # Panics
/// If the lengths differ.
pub fn add_layers(x: &mut [f32], y: &[f32], z: &[f32]) {
    assert_eq!((x.len(), x.len()), (y.len(), z.len()), "one shape");
    vectorize(
        #[inline(always)]
        || {
            for ((x, y), z) in x.iter_mut().zip(y).zip(z) {
                *x = (*x + (y + z)) * std::f32::consts::FRAC_1_SQRT_2;
            }
        },
    );
}

/// Subtracts from the gates of a row their mean and `deviations` times their standard deviation; those below 0 become 0.
pub fn cut_off(gates: &mut [f32], deviations: f32) {
    vectorize(
        #[inline(always)]
        || {
            let count = gates.len() as f32;
            let mean = sum(gates, |x| x) / count;
            let variance = sum(gates, |x| (x - mean) * (x - mean)) / count;
            let cutoff = mean + variance.sqrt() * deviations;
            for gate in gates.iter_mut() {
                let above = *gate - cutoff;
                // `f32::max` would turn a NaN into a number.
                *gate = if above < 0.0 { 0.0 } else { above };
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|at| ((at * 37 + seed * 11) % 29) as f32 / 29.0 - 0.4)
            .collect()
    }

    #[test]
    fn each_stream_gets_a_weighted_sum_of_the_streams_before() {
        let (hidden, count) = (70, 3);
        let (first, others) = (numbers(hidden, 1), numbers(hidden * 2, 2));
        let coefficients = numbers(count * count, 3);
        let all: Vec<f32> = first.iter().chain(&others).copied().collect();
        let (mut first, mut others) = (first, others);
        predict(&mut first, &mut others, &coefficients);
        let out: Vec<f32> = first.iter().chain(&others).copied().collect();
        for to in 0..count {
            for channel in 0..hidden {
                let of = |stream: usize| f64::from(all[stream * hidden + channel]);
                let added = (0..count)
                    .map(|from| f64::from(coefficients[to * count + from]) * of(from))
                    .sum::<f64>();
                let seen = f64::from(out[to * hidden + channel]);
                assert!((seen - (of(to) + added)).abs() < 1e-6, "{to} {channel}");
            }
        }
    }

    #[test]
    fn each_stream_gets_its_part_of_the_change_of_the_first() {
        let hidden = 5;
        let (mut first, predicted) = (numbers(hidden, 1), numbers(hidden, 2));
        let (mut others, factors) = (numbers(2 * hidden, 3), [0.5, 2.0, -1.0]);
        let (changed, before) = (first.clone(), others.clone());
        correct(&mut first, &predicted, &mut others, &factors);
        for channel in 0..hidden {
            let change = changed[channel] - predicted[channel];
            assert!((first[channel] - (predicted[channel] + 0.5 * change)).abs() < 1e-6);
            for (other, factor) in [(0, 2.0), (1, -1.0)] {
                let at = other * hidden + channel;
                assert!((others[at] - (before[at] + factor * change)).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn magnitudes_match_and_tiny_vectors_stay_finite() {
        let (mut x, target) = (numbers(100, 1), numbers(100, 5));
        match_magnitude(&mut x, &target);
        let root = |x: &[f32]| mean_square(x).sqrt();
        assert!((root(&x) - root(&target)).abs() < 1e-6);
        let mut zeros = vec![0.0; 100];
        match_magnitude(&mut zeros, &target);
        assert!(zeros.iter().all(|x| *x == 0.0));
    }

    #[test]
    fn gates_below_the_cutoff_are_0_and_the_others_lose_it() {
        let mut gates = vec![1.0, 2.0, 3.0, 6.0];
        // Mean 3, variance 3.5.
        cut_off(&mut gates, 0.5);
        let cutoff = 3.0 + 0.5 * 3.5f32.sqrt();
        assert_eq!(gates[..3], [0.0; 3]);
        assert!((gates[3] - (6.0 - cutoff)).abs() < 1e-6);
        let mut broken = vec![1.0, f32::NAN];
        cut_off(&mut broken, 0.5);
        assert!(broken.iter().all(|gate| gate.is_nan()));
    }
}

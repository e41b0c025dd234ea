//! Conversion of numbers to pairs of INT16. Each row has a unit (scale) such that no sum of products overflows 32 bits:
//! sums are exact, and rounded numbers are closer to the originals than in bf16.

use std::ops::Range;

use super::{PANEL, Powers};
use crate::dot::sum;
use crate::magnitude::largest_magnitude_inline;
use crate::vectorize::vectorize;

/// The largest magnitude of a number.
const LARGEST: f32 = i16::MAX as f32;
/// Maximum length of a row as a vector: the product of two such rows fits in 32 bits (Cauchy's inequality).
const LENGTH: f32 = 46_340.0;
/// The largest magnitude of a value: twelve bits. If all weights of a page are equal, they have eleven.
const LARGEST_VALUE: f32 = 4095.0;
/// The largest weight, in units: less than [`LARGEST`], since powers may be too large by 2⁻¹³.
const LARGEST_WEIGHT: f32 = 32_760.0;
/// Maximum number of weights per row.
pub(crate) const WEIGHTS: usize = 256;
/// Maximum sum of all weights of a row, in units. Rounding adds at most half a unit to each.
const SUM: f32 = i32::MAX as f32 / LARGEST_VALUE - WEIGHTS as f32;
/// Independent partial sums.
const LANES: usize = 16;

/// The use of rounded rows.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Scalar products of such rows with each other.
    Products,
    /// Values for a weighted sum.
    Values,
}

/// Does the same as [`PairKernel::round`](super::PairKernel::round).
pub(super) fn round(
    rows: &[f32],
    width: usize,
    purpose: Purpose,
    words: &mut [u32],
    units: &mut Vec<f32>,
) {
    let rows = begin(rows, width, words, units);
    vectorize(
        #[inline(always)]
        || {
            for ((row, words), unit) in rows
                .clone()
                .zip(words.chunks_exact_mut(width.div_ceil(2)))
                .zip(&mut *units)
            {
                *unit = round_row(row, purpose, words);
            }
        },
    );
}

/// Resizes the units of rows, and returns them.
pub(super) fn begin<'r>(
    rows: &'r [f32],
    width: usize,
    words: &[u32],
    units: &mut Vec<f32>,
) -> std::slice::ChunksExact<'r, f32> {
    assert_eq!(
        words.len(),
        rows.len() / width * width.div_ceil(2),
        "expected words for all rows"
    );
    units.resize(rows.len() / width, 0.0);
    rows.chunks_exact(width)
}

impl Purpose {
    /// Returns the integer of a row's largest magnitude. `squares` returns the sum of the squares of its `width`
    /// numbers relative to that magnitude.
    #[inline(always)]
    pub(super) fn largest(self, width: usize, squares: impl FnOnce() -> f32) -> f32 {
        match self {
            Self::Values => LARGEST_VALUE,
            Self::Products => {
                // Rounding adds at most half a unit to each number.
                let slack = (width as f32).sqrt();
                let largest = (LENGTH - slack) / squares().sqrt();
                if largest < LARGEST { largest } else { LARGEST }
            }
        }
    }
}

/// Rounds one row. Returns its unit.
#[inline(always)]
pub(super) fn round_row(row: &[f32], purpose: Purpose, words: &mut [u32]) -> f32 {
    let magnitude = largest_magnitude_inline(row);
    let numbers = bytemuck::cast_slice_mut::<u32, i16>(words);
    numbers[row.len()..].fill(0);
    if magnitude.is_infinite() {
        let sign = |x: &f32| {
            if x.is_infinite() {
                x.signum() as i16
            } else {
                0
            }
        };
        numbers
            .iter_mut()
            .zip(row)
            .for_each(|(number, x)| *number = sign(x));
        return magnitude;
    }
    if !magnitude.is_normal() {
        numbers.fill(0);
        return if magnitude.is_nan() { magnitude } else { 0.0 };
    }
    // Two factors, since their product may overflow f32.
    let inverse = magnitude.recip();
    let largest = purpose.largest(row.len(), || sum_of_squares(row, inverse));
    for (number, x) in numbers.iter_mut().zip(row) {
        *number = nearest(x * inverse * largest);
    }
    magnitude / largest
}

/// The units of values for a weighted sum.
#[derive(Clone, Copy)]
pub(crate) struct ValueUnits<'a> {
    /// The unit of each value.
    pub each: &'a [f32],
    /// The largest unit of the visible values, or NaN.
    pub largest: f32,
}

impl ValueUnits<'_> {
    /// Returns the unit of weights that are `powers`, each times the unit of its value. NaN if one of them is not
    /// finite.
    pub(super) fn of_weights(self, powers: &Powers) -> f32 {
        let largest = if powers.of_visible < powers.largest {
            (powers.of_visible - powers.largest).exp2()
        } else {
            1.0
        };
        let (by_sum, by_largest) = (powers.sum / SUM, largest / LARGEST_WEIGHT);
        // If a sum is NaN, the comparison is false.
        let unit = self.largest
            * if by_sum < by_largest {
                by_largest
            } else {
                by_sum
            };
        if unit.is_finite() { unit } else { f32::NAN }
    }
}

/// Rounds weights, each times the unit of its value, to pairs of consecutive weights; the last of an odd number is
/// paired with zero.
pub(super) fn round_weights(weights: &[f32], units: &[f32], unit: f32, words: &mut [u32]) {
    let numbers = bytemuck::cast_slice_mut::<u32, i16>(words);
    if !unit.is_normal() {
        // NaN, or too small to contribute.
        return numbers.fill(0);
    }
    let inverse = unit.recip();
    numbers[weights.len()..].fill(0);
    vectorize(
        #[inline(always)]
        || {
            for ((number, weight), of_value) in numbers.iter_mut().zip(weights).zip(units) {
                *number = nearest(weight * (of_value * inverse));
            }
        },
    );
}

/// Packs columns of rows of `words` words of pairs: pairs of two rows each, in panels `[rows / 2, PANEL]`.
pub(crate) fn interleave(rows: &[u32], words: usize, columns: Range<usize>, panel: &mut [u32]) {
    let rows = bytemuck::cast_slice::<u32, i16>(rows);
    vectorize(
        #[inline(always)]
        || {
            for (panel, rows) in panel
                .chunks_exact_mut(PANEL)
                .zip(rows.chunks_exact(4 * words))
            {
                let (even, odd) = rows.split_at(2 * words);
                for ((word, even), odd) in panel
                    .iter_mut()
                    .zip(&even[columns.clone()])
                    .zip(&odd[columns.clone()])
                {
                    *word = u32::from(*even as u16) | u32::from(*odd as u16) << 16;
                }
            }
        },
    );
}

/// Converts sums in i32, `[rows, columns]`, to f32 in place, with the units of each row and column.
pub(crate) fn scale(sums: &mut [f32], columns: usize, of_rows: &[f32], of_columns: &[f32]) {
    vectorize(
        #[inline(always)]
        || {
            for (sums, of_row) in sums.chunks_exact_mut(columns).zip(of_rows) {
                for (sum, of_column) in sums.iter_mut().zip(of_columns) {
                    *sum = sum.to_bits() as i32 as f32 * (of_row * of_column);
                }
            }
        },
    );
}

/// Adds sums in i32, `[rows, columns]`, times the unit of their row, to `out`.
pub(crate) fn add_scaled(sums: &[f32], columns: usize, of_rows: &[f32], out: &mut [f32]) {
    vectorize(
        #[inline(always)]
        || {
            for ((sums, out), unit) in sums
                .chunks_exact(columns)
                .zip(out.chunks_exact_mut(columns))
                .zip(of_rows)
            {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out += sum.to_bits() as i32 as f32 * unit;
                }
            }
        },
    );
}

/// Returns the nearest integer, ties to even, of a number of at most sixteen bits: the lowest bits of its sum with 1.5
/// · 2²³.
#[inline(always)]
fn nearest(x: f32) -> i16 {
    (x + 12_582_912.0).to_bits() as i16
}

/// Computes Σ (x · factor)².
#[inline(always)]
fn sum_of_squares(row: &[f32], factor: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += (x * factor) * (x * factor);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += (x * factor) * (x * factor);
    }
    sum(sums)
}

#[cfg(test)]
mod tests {
    use super::super::PairKernel;
    use super::*;
    use crate::kernel::tested;
    use proptest::prelude::*;

    fn numbers(words: &[u32]) -> &[i16] {
        bytemuck::cast_slice(words)
    }

    /// Returns the result of every kernel for one row, and its unit.
    fn rounded(row: &[f32], purpose: Purpose) -> Vec<(Vec<i16>, f32)> {
        let of = |round: &dyn Fn(&mut [u32], &mut Vec<f32>)| {
            let (mut words, mut units) = (vec![7; row.len().div_ceil(2)], Vec::new());
            round(&mut words, &mut units);
            assert!(
                numbers(&words)[row.len()..]
                    .iter()
                    .all(|number| *number == 0)
            );
            (numbers(&words)[..row.len()].to_vec(), units[0])
        };
        let kernels = tested().filter_map(|kernels| kernels.pairs);
        let of_kernel = |kernel: &dyn PairKernel| {
            of(&|words, units| kernel.round(row, row.len(), purpose, words, units))
        };
        let plain = of(&|words, units| round(row, row.len(), purpose, words, units));
        kernels.map(of_kernel).chain([plain]).collect()
    }

    /// Generates rows of which a few numbers are much larger than the others.
    fn row() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((-1f32..1.0, prop::bool::weighted(0.1)), 1..300).prop_map(|row| {
            row.into_iter()
                .map(|(x, large)| if large { 100.0 * x } else { x })
                .collect()
        })
    }

    fn are_nearest(numbers: &[i16], unit: f32, row: &[f32]) -> bool {
        numbers
            .iter()
            .zip(row)
            .all(|(number, x)| (f32::from(*number) * unit - x).abs() <= 0.505 * unit)
    }

    /// Returns whether no partial sum of the products overflows, in any order.
    fn fits(products: impl Iterator<Item = i64>) -> bool {
        let (above, below): (Vec<_>, Vec<_>) = products.partition(|product| *product > 0);
        above.iter().sum::<i64>() <= i32::MAX.into() && below.iter().sum::<i64>() >= i32::MIN.into()
    }

    proptest! {
        #[test]
        fn numbers_are_the_nearest_and_no_sum_of_products_overflows(row in prop::collection::vec(any::<bool>(), 1..300)) {
            // All magnitudes are equal, so the row has the maximum length.
            let row: Vec<f32> = row.into_iter().map(|x| if x { 1.0 } else { -1.0 }).collect();
            for (numbers, unit) in rounded(&row, Purpose::Products) {
                prop_assert!(are_nearest(&numbers, unit, &row));
                prop_assert!(fits(numbers.iter().map(|number| i64::from(*number).pow(2))));
            }
            for (numbers, _) in rounded(&row, Purpose::Values) {
                prop_assert!(numbers.iter().all(|number| f32::from(number.abs()) == LARGEST_VALUE));
            }
        }

        #[test]
        fn rows_with_outliers_are_the_nearest_too(row in row(), scale in -100i32..60) {
            let row: Vec<f32> = row.iter().map(|x| x * (scale as f32).exp2()).collect();
            let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let largest = row.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            // Fifteen bits for the largest number, or the unit that makes the root of the sum of squares 46,340.
            let finest = (f64::from(largest) / 32767.0).max(length / 46_300.0);
            for (numbers, unit) in rounded(&row, Purpose::Products) {
                prop_assert!(are_nearest(&numbers, unit, &row));
                prop_assert!(fits(numbers.iter().map(|number| i64::from(*number).pow(2))));
                prop_assert!(f64::from(unit) <= finest * 1.001, "{} is not {}", unit, finest);
            }
            for (numbers, unit) in rounded(&row, Purpose::Values) {
                prop_assert!(are_nearest(&numbers, unit, &row));
            }
        }

        #[test]
        fn weights_are_the_nearest_and_no_sum_of_weighted_values_overflows(
            exponents in prop::collection::vec(prop_oneof![Just(-200f32), Just(0f32), -12f32..0.0], 1..=WEIGHTS),
            // Starts at 2⁻¹⁰: proptest 1.12 panics once in millions of floats if a range's lower end isn't a multiple
            // of the distance between the floats at its upper end.
            units in prop::collection::vec(0.0009765625f32..10.0, WEIGHTS), alike: bool,
            before in prop_oneof![Just(-1f32), 0f32..40.0],
            ends: [usize; 2],
        ) {
            let units = if alike { vec![0.3; WEIGHTS] } else { units };
            let ends = ends.map(|end| end % (exponents.len() + 1));
            let visible = ends[0].min(ends[1])..ends[0].max(ends[1]);
            let seen = exponents[visible.clone()].iter().copied();
            let largest = seen.clone().fold(before, f32::max);
            let powers: Vec<f64> = exponents.iter().enumerate().map(|(index, x)| {
                if visible.contains(&index) && x - largest > -125.0 { f64::from(x - largest).exp2() } else { 0.0 }
            }).collect();
            let sum: f64 = powers.iter().sum();
            let largest_unit = units[..visible.end].iter().fold(0f32, |largest, unit| largest.max(*unit));
            let finest = powers.iter().fold(sum / 524_000.0, |finest, power| finest.max(power / 32_700.0)) * f64::from(largest_unit);
            for kernel in tested().filter_map(|kernels| kernels.pairs) {
                let mut words = vec![7; exponents.len().div_ceil(2)];
                let of_values = ValueUnits { each: &units, largest: largest_unit };
                let (found, unit) =
                    kernel.exp2_and_sum(&mut exponents.clone(), visible.clone(), before, of_values, &mut words);
                prop_assert_eq!(found.largest, largest);
                prop_assert_eq!(found.of_visible, seen.clone().fold(f32::MIN, f32::max));
                prop_assert!((f64::from(found.sum) - sum).abs() <= sum * 2f64.powi(-13), "{} is not {}", found.sum, sum);
                prop_assert!(f64::from(unit) <= finest * 1.001, "{} is not {}", unit, finest);
                let numbers = numbers(&words);
                for ((number, power), of_value) in numbers.iter().zip(&powers).zip(&units) {
                    let exact = power * f64::from(*of_value);
                    let distance = (f64::from(*number) * f64::from(unit) - exact).abs();
                    prop_assert!(distance <= 0.501 * f64::from(unit) + exact * 2f64.powi(-13), "{} of {}", distance, unit);
                }
                prop_assert!(numbers[exponents.len()..].iter().all(|number| *number == 0));
                prop_assert!(fits(numbers.iter().map(|number| i64::from(*number) * LARGEST_VALUE as i64)));
            }
        }
    }

    #[test]
    fn what_is_not_finite_has_a_unit_that_is_not() {
        for (numbers, unit) in rounded(&[1.0, f32::NAN, 2.0], Purpose::Products) {
            assert!(unit.is_nan() && numbers == [0; 3]);
        }
        for found in rounded(&[1.0, f32::NEG_INFINITY, 2.0], Purpose::Products) {
            assert_eq!(found, (vec![0, -1, 0], f32::INFINITY));
        }
        for kernel in tested().filter_map(|kernels| kernels.pairs) {
            for (exponent, largest) in [(f32::NAN, 1.0), (1.0, f32::NAN), (1.0, f32::INFINITY)] {
                let (mut words, units) = (
                    [7],
                    ValueUnits {
                        each: &[1.0, largest],
                        largest,
                    },
                );
                let (_, unit) =
                    kernel.exp2_and_sum(&mut [exponent, 0.5], 0..2, 0.0, units, &mut words);
                assert!(unit.is_nan() && words == [0], "{}", kernel.name());
            }
        }
    }

    #[test]
    fn rows_of_zeros_and_of_numbers_that_are_no_more_than_that_are_worth_nothing() {
        for x in [0.0, f32::from_bits(1)] {
            for purpose in [Purpose::Products, Purpose::Values] {
                assert!(
                    rounded(&[x; 3], purpose)
                        .into_iter()
                        .all(|found| found == (vec![0; 3], 0.0))
                );
            }
        }
    }
}

//! Activations in INT16, for scalar products with weights in INT8 and INT4: exact sums of integers, twice as fast as
//! widening every weight to a float, and closer to the activations than bf16.

#[cfg(target_arch = "x86_64")]
mod avx512_vnni;

use crate::int8::weight::largest_magnitude;
use crate::vectorize::vectorize;
#[cfg(target_arch = "x86_64")]
use avx512_vnni::Avx512Vnni;

/// Rows of activations, each with a scale so small that neither a number nor a sum of products overflows.
#[derive(Debug)]
pub(crate) struct Int16Rows {
    in_features: usize,
    /// `[rows, in_features]`.
    values: Vec<i16>,
    scales: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    kernel: Option<Avx512Vnni>,
}

/// The largest magnitude of a number: 256 times one byte's.
const LARGEST: f32 = 32512.0;
/// Features of a row: with more, rounding alone could make sums of products overflow.
const MOST_FEATURES: usize = 1 << 23;
/// The largest magnitude of a weight in INT8; one more than those that Triad makes.
const LARGEST_WEIGHT: f64 = 128.0;

impl Default for Int16Rows {
    fn default() -> Self {
        Self {
            in_features: 0,
            values: Vec::new(),
            scales: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            kernel: Avx512Vnni::new(),
        }
    }
}

impl Int16Rows {
    /// What multiplies it by INT8.
    pub(crate) fn kernel_name(&self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if self.kernel.is_some() {
            return "avx512-vpdpwssd";
        }
        "vectorized"
    }

    /// Takes `x`, `[rows, in_features]`, in place of what it held.
    ///
    /// # Panics
    /// If a row has so many features that their sums could overflow: more than eight million.
    pub(crate) fn fill(&mut self, x: &[f32], in_features: usize) {
        assert!(in_features <= MOST_FEATURES, "{in_features} input features");
        self.in_features = in_features;
        self.values.resize(x.len(), 0);
        self.scales.clear();
        for (x, values) in x.chunks_exact(in_features).zip(self.values.chunks_exact_mut(in_features)) {
            self.scales.push(quantize(x, values));
        }
    }

    /// The activations that the numbers stand for.
    #[cfg(test)]
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let rows = self.values.chunks_exact(self.in_features).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f32::from(*x) * scale)).collect()
    }

    /// `out[columns]` = Σ x·w · scale of a row with weights `[columns, in_features]` in INT8 and their `scales[columns]`.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(crate) fn dots_int8(&self, row: usize, weights: &[i8], scales: &[f32], out: &mut [f32]) {
        let (x, unit) = (self.row(row), self.scales[row]);
        assert_eq!(weights.len(), x.len() * out.len(), "weights are [{}, {}]", out.len(), x.len());
        assert_eq!(scales.len(), out.len(), "one scale for each column");
        #[cfg(target_arch = "x86_64")]
        if let Some(kernel) = self.kernel {
            return kernel.dots(x, weights, |column, sum| out[column] = sum as f32 * (unit * scales[column]));
        }
        vectorize(
            #[inline(always)]
            || {
                for ((out, scale), weights) in out.iter_mut().zip(scales).zip(weights.chunks_exact(x.len())) {
                    let mut sum = 0;
                    // LLVM sums pairs of products of 16-bit numbers, as the instructions do.
                    for (x, weight) in x.iter().zip(weights) {
                        sum += i32::from(*x) * i32::from(*weight);
                    }
                    *out = sum as f32 * (unit * scale);
                }
            },
        );
    }

    /// Features of a row.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn in_features(&self) -> usize {
        self.in_features
    }

    /// The numbers of a row, from −32512 to 32512: 127 · 256.
    pub(crate) fn row(&self, row: usize) -> &[i16] {
        &self.values[row * self.in_features..][..self.in_features]
    }

    /// What one unit is worth `[rows]`; NaN for a row with an activation that is not finite.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// The nearest numbers to one row, and what one unit is worth.
fn quantize(x: &[f32], values: &mut [i16]) -> f32 {
    let largest = largest_magnitude(x);
    if !largest.is_finite() {
        values.fill(0);
        return f32::NAN;
    }
    // Σ |q| · 128 < 2³¹, where rounding adds at most half a unit to each |q|.
    let sum = f64::from(i32::MAX) / LARGEST_WEIGHT - x.len() as f64;
    let total = if x.len() as f64 * f64::from(LARGEST) < sum { 0.0 } else { sum_of_magnitudes(x) };
    let scale = (largest / LARGEST).max((total / sum) as f32 * 1.000_001);
    if !scale.is_normal() {
        values.fill(0);
        return 1.0;
    }
    let inverse = scale.recip();
    vectorize(
        #[inline(always)]
        || {
            for (x, value) in x.iter().zip(&mut *values) {
                *value = (x * inverse).round_ties_even() as i16;
            }
        },
    );
    scale
}

/// Σ |x|.
fn sum_of_magnitudes(x: &[f32]) -> f64 {
    const LANES: usize = 16;
    vectorize(
        #[inline(always)]
        || {
            let mut sums = [0.0f64; LANES];
            let (blocks, rest) = x.as_chunks::<LANES>();
            for block in blocks {
                for (sum, x) in sums.iter_mut().zip(block) {
                    *sum += f64::from(x.abs());
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += f64::from(x.abs());
            }
            sums.iter().sum()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use proptest::prelude::*;

    /// Without a kernel, as on other processors, or with the one that this processor has.
    fn rows(portable: bool) -> Int16Rows {
        let rows = Int16Rows::default();
        #[cfg(target_arch = "x86_64")]
        let rows = Int16Rows { kernel: rows.kernel.filter(|_| !portable), ..rows };
        let _ = portable;
        rows
    }

    fn dot(rows: &Int16Rows, row: usize, weights: &[i8]) -> f32 {
        let mut out = [f32::NAN];
        rows.dots_int8(row, weights, &[1.0], &mut out);
        out[0]
    }

    proptest! {
        #[test]
        fn sums_are_those_of_numbers_within_half_a_unit(
            depth in 1usize..700, columns in 1usize..10, seed: u64, exponent in -30i32..30, outlier in 0f32..1e4,
            portable: bool,
        ) {
            let mut x: Vec<f32> = values(depth, seed).iter().map(|x| x * 2f32.powi(exponent)).collect();
            x[seed as usize % depth] *= outlier;
            let weights: Vec<i8> = values(columns * depth, seed ^ 1).iter().map(|x| (x * 128.0) as i8).collect();
            let mut rows = rows(portable);
            rows.fill(&x, depth);
            for (x, value) in x.iter().zip(rows.to_f32()) {
                prop_assert!((x - value).abs() <= 0.501 * rows.scales[0], "{} is not {}", value, x);
            }
            let scales = values(columns, seed ^ 2);
            let mut sums = vec![f32::NAN; columns];
            rows.dots_int8(0, &weights, &scales, &mut sums);
            for ((sum, scale), weights) in sums.iter().zip(&scales).zip(weights.chunks_exact(depth)) {
                let products = rows.values.iter().zip(weights).map(|(x, weight)| i64::from(*x) * i64::from(*weight));
                prop_assert_eq!(*sum, products.sum::<i64>() as f32 * (rows.scales[0] * scale));
            }
        }
    }

    #[test]
    fn no_sum_overflows_with_the_largest_numbers_of_all() {
        for depth in [1, 516, 517, 576, 2048, 65_536] {
            for sign in [1.0, -1.0] {
                for portable in [false, true] {
                    let mut rows = rows(portable);
                    rows.fill(&vec![sign * 3.0; depth], depth);
                    let sum = dot(&rows, 0, &vec![-128; depth]);
                    let expected = -384.0 * sign * depth as f32;
                    assert!((sum - expected).abs() < 1e-3 * expected.abs(), "{sum} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_not_finite_shows_and_zeros_are_zeros() {
        let mut rows = Int16Rows::default();
        rows.fill(&[1.0, f32::NAN, f32::INFINITY, 2.0, 0.0, -0.0, 1e-44, 0.0], 2);
        let sums: Vec<_> = (0..4).map(|row| dot(&rows, row, &[1, 1])).collect();
        assert!(sums[0].is_nan() && sums[1].is_nan());
        assert_eq!(sums[2..], [0.0, 0.0]);
    }
}

//! RMS norm and layer norm over rows.

use crate::vectorize::vectorize;

/// Computes `out = x / √(mean(x²) + ε) · weight` for every row of `weight.len()` values.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(
        x.len(),
        out.len(),
        "input and output must have the same shape"
    );
    vectorize(
        #[inline(always)]
        || {
            for (x, out) in x
                .chunks_exact(weight.len())
                .zip(out.chunks_exact_mut(weight.len()))
            {
                let factor = inverse_rms(x, epsilon);
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * factor * weight;
                }
            }
        },
    );
}

/// Computes [`rms_norm`] in place.
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], epsilon: f32) {
    vectorize(
        #[inline(always)]
        || {
            for x in x.chunks_exact_mut(weight.len()) {
                let factor = inverse_rms(x, epsilon);
                for (x, weight) in x.iter_mut().zip(weight) {
                    *x = *x * factor * weight;
                }
            }
        },
    );
}

/// Computes `out = (x − mean) / √(variance + ε) · weight + bias` for every row of `weight.len()` values.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(
        x.len(),
        out.len(),
        "input and output must have the same shape"
    );
    assert_eq!(
        weight.len(),
        bias.len(),
        "weight and bias must have the same shape"
    );
    vectorize(
        #[inline(always)]
        || {
            for (x, out) in x
                .chunks_exact(weight.len())
                .zip(out.chunks_exact_mut(weight.len()))
            {
                let mean = sum(x, |x| x) / x.len() as f32;
                let variance = sum(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
                let factor = 1.0 / (variance + epsilon).sqrt();
                for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                    *out = (x - mean) * factor * weight + bias;
                }
            }
        },
    );
}

#[inline(always)]
fn inverse_rms(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (mean_square(x) + epsilon).sqrt()
}

#[inline(always)]
pub(crate) fn mean_square(x: &[f32]) -> f32 {
    sum(x, |x| x * x) / x.len() as f32
}

/// Sums `term` over `x` in many partial sums: as fast as several vector registers, and more exact than one running sum.
#[inline(always)]
pub(crate) fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; 64];
    let (blocks, rest) = x.as_chunks::<64>();
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += term(*x);
        }
    }
    crate::dot::sum(sums) + rest.iter().map(|x| term(*x)).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_normed_row_has_unit_mean_square(x in prop::collection::vec(-10f32..10.0, 1..200)) {
            prop_assume!(x.iter().any(|x| x.abs() > 0.1));
            let mut out = vec![0.0; x.len()];
            rms_norm(&x, &vec![1.0; x.len()], 0.0, &mut out);
            let mean_square = out.iter().map(|x| f64::from(x * x)).sum::<f64>() / out.len() as f64;
            prop_assert!((mean_square - 1.0).abs() < 1e-5);
            let mut in_place = x.clone();
            rms_norm_in_place(&mut in_place, &vec![1.0; x.len()], 0.0);
            prop_assert_eq!(in_place, out);
        }

        #[test]
        fn a_layer_normed_row_has_the_bias_as_mean(x in prop::collection::vec(-10f32..10.0, 2..200), bias in -3f32..3.0) {
            prop_assume!(x.iter().any(|other| (other - x[0]).abs() > 0.1));
            let mut out = vec![0.0; x.len()];
            layer_norm(&x, &vec![2.0; x.len()], &vec![bias; x.len()], 0.0, &mut out);
            let mean = out.iter().map(|x| f64::from(*x)).sum::<f64>() / out.len() as f64;
            prop_assert!((mean - f64::from(bias)).abs() < 1e-4);
            let variance = out.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / out.len() as f64;
            prop_assert!((variance - 4.0).abs() < 1e-3);
        }
    }
}

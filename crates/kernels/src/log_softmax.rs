//! The normalizer that turns logits into log-probabilities.

use crate::activation::exp;
use crate::vectorize::{Fused, vectorize_fused};

/// Number of exponentials that are summed in f32; sums of blocks are added in f64. Small enough that the rounding of
/// sums stays below that of the exponentials.
const BLOCK: usize = 1024;
const LANES: usize = 16;

/// Computes ln Σ eˣ over `x`; a logit minus this is its log-probability. The result is not finite if a logit is
/// infinite or NaN.
pub fn log_sum_exp(x: &[f32]) -> f64 {
    vectorize_fused(
        #[inline(always)]
        |fused| {
            let largest = largest(x);
            let mut total = 0.0;
            for x in x.chunks(BLOCK) {
                total += f64::from(sum_exp(x, largest, fused));
            }
            f64::from(largest) + total.ln()
        },
    )
}

/// Returns the largest value that is not NaN; minus infinity if there is none.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (largest, x) in largest.iter_mut().zip(block) {
            *largest = if *x > *largest { *x } else { *largest };
        }
    }
    // Reduces by halves, in registers as long as possible; no lane is NaN.
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            largest[lane] = if largest[lane] > largest[lane + width] {
                largest[lane]
            } else {
                largest[lane + width]
            };
        }
    }
    rest.iter().copied().fold(largest[0], f32::max)
}

#[inline(always)]
fn sum_exp(x: &[f32], largest: f32, fused: Fused) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += exp(*x - largest, fused);
        }
    }
    let mut sum = sums.iter().sum();
    for x in rest {
        sum += exp(*x - largest, fused);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_logarithm_of_the_sum(x in prop::collection::vec(-60f32..60.0, 1..5000)) {
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = x.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).sum();
            prop_assert!((log_sum_exp(&x) - (f64::from(largest) + total.ln())).abs() < 1e-6);
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_not_hidden() {
        for place in [0, 5, 16, 40] {
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut x = [1.0; 41];
                x[place] = wrong;
                assert!(!log_sum_exp(&x).is_finite(), "{wrong} at {place}");
            }
        }
    }
}

//! Weights in GGUF's Q5_0: symmetric, with numbers from −16 to 15 and one f16 scale for each group of 32.

use half::f16;

use super::{EXTREMES, GROUP, HALF, inverse, largest, low_bits};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::vectorize;

/// Bytes of a block: the scale, the fifth bits, and four bits of each number.
pub(super) const BYTES: usize = 6 + HALF;
/// The offset that is added to a number to store it.
pub(super) const OFFSET: u8 = 16;
/// Blocks that a thread quantizes at a time.
const TASK_BLOCKS: usize = 1024;

/// Quantizes `weight`, rows of a multiple of 32 numbers, into `blocks` of Q5_0, with the scales that
/// [`quantize_int4`](super::quantize_int4) would choose for five bits. A number that is not finite makes the scale of its
/// block NaN.
///
/// # Panics
/// If the lengths contradict each other.
pub fn quantize_q5_0(weight: &[f32], blocks: &mut [u8]) {
    let weight = weight.as_chunks::<GROUP>();
    assert!(weight.1.is_empty(), "weights in groups of {GROUP}");
    assert_eq!(weight.0.len() * BYTES, blocks.len(), "bytes of blocks");
    for_each_chunk(chunks_mut(blocks, BYTES), TASK_BLOCKS, |index, bytes| {
        let weight = &weight.0[index];
        vectorize(
            #[inline(always)]
            || {
                let scale = best_scale(weight);
                bytes.copy_from_slice(&block(scale, &numbers(weight, scale)));
            },
        );
    });
}

/// Returns a block of these numbers, from −16 to 15.
pub(super) fn block(scale: f16, numbers: &[i8; GROUP]) -> [u8; BYTES] {
    let fifth = |index: usize| u32::from(numbers[index] >= 0) << index;
    let fifths: u32 = (0..GROUP).map(fifth).sum();
    let mut block = [0; BYTES];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..6].copy_from_slice(&fifths.to_le_bytes());
    block[6..].copy_from_slice(&low_bits(numbers, OFFSET));
    block
}

/// Returns the best of the scales that map the largest magnitude near ±16, by squared error.
#[inline(always)]
fn best_scale(weight: &[f32; GROUP]) -> f16 {
    if !weight.iter().all(|x| x.is_finite()) {
        return f16::NAN;
    }
    let largest = largest(weight);
    let mut best = (f16::ZERO, f32::INFINITY);
    for extreme in EXTREMES {
        // As in INT4, the largest number becomes the one without a positive counterpart.
        let scale = f16::from_f32(-largest / (2.0 * extreme));
        let errors = weight.iter().zip(numbers(weight, scale));
        let errors = errors.map(|(x, number)| x - f32::from(number) * scale.to_f32());
        let error = errors.map(|error| error * error).sum();
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

#[inline(always)]
fn numbers(weight: &[f32; GROUP], scale: f16) -> [i8; GROUP] {
    let (inverse, half) = (inverse(scale), f32::from(OFFSET));
    weight.map(|x| (x * inverse).round_ties_even().clamp(-half, half - 1.0) as i8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use triad_blocks::{BlockFormat, dequantize};

    use super::*;

    #[test]
    fn numbers_from_minus_16_to_15_are_kept_as_they_are() {
        let weight: Vec<f32> = (0..GROUP).map(|it| (it as f32 - 16.0) * 0.25).collect();
        let mut blocks = [0; BYTES];
        quantize_q5_0(&weight, &mut blocks);
        let mut wide = [f32::NAN; GROUP];
        dequantize(BlockFormat::Q5_0, &blocks, &mut wide);
        assert_eq!(wide[..], weight[..]);
    }

    #[test]
    fn zeros_stay_zeros_and_a_number_that_is_not_finite_shows() {
        let mut weight = [0.0; 2 * GROUP];
        weight[GROUP] = f32::INFINITY;
        let mut blocks = [0; 2 * BYTES];
        quantize_q5_0(&weight, &mut blocks);
        let mut wide = [1.0; 2 * GROUP];
        dequantize(BlockFormat::Q5_0, &blocks, &mut wide);
        assert!(wide[..GROUP].iter().all(|x| *x == 0.0));
        assert!(wide[GROUP..].iter().all(|x| x.is_nan()));
    }

    proptest! {
        #[test]
        fn no_weight_is_further_off_than_a_step(weight: [i16; GROUP], exponent in -12i32..4) {
            let weight = weight.map(|x| f32::from(x) * 2f32.powi(exponent - 8));
            let mut blocks = [0; BYTES];
            quantize_q5_0(&weight, &mut blocks);
            let mut wide = [f32::NAN; GROUP];
            dequantize(BlockFormat::Q5_0, &blocks, &mut wide);
            let largest = largest(&weight).abs();
            for (weight, wide) in weight.iter().zip(wide) {
                prop_assert!((weight - wide).abs() <= largest / 12.0 + 1e-6, "{} became {}", weight, wide);
            }
        }
    }
}

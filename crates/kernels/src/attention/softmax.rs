//! The online softmax: weights of one block of keys after the other, relative to the largest score so far.

use std::ops::Range;

use crate::activation::soft_cap;
use crate::product::Multiplier;
use crate::vectorize::vectorize;

/// Below every score: the largest of none, beside which nothing has been seen.
pub(super) const HIDDEN: f32 = f32::MIN;

/// What the blocks so far have come to, for one query of one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// The largest score.
    largest: f32,
    /// Sum of the weights, each 2 to the power of its score less the largest.
    sum: f32,
}

impl Default for Running {
    fn default() -> Self {
        Self { largest: HIDDEN, sum: 0.0 }
    }
}

/// Makes exponents of two of scores with a soft cap, which are of e.
pub(super) fn cap(scores: &mut [f32], cap: f32) {
    soft_cap(scores, cap);
    scores.iter_mut().for_each(|score| *score *= std::f32::consts::LOG2_E);
}

impl Running {
    /// Makes `weights` of a block's `scores`, of which those in `visible` count, and scales `output`, what earlier
    /// blocks have come to, to the largest score of all. Scores are exponents of two, but those with a soft cap, which
    /// are of e.
    pub(super) fn add(
        &mut self,
        scores: &mut [f32],
        visible: Range<usize>,
        cap: Option<f32>,
        multiplier: Multiplier,
        weights: &mut [u32],
        output: &mut [f32],
    ) {
        if visible.is_empty() {
            weights.fill(0);
            return;
        }
        if let Some(cap) = cap {
            self::cap(&mut scores[visible.clone()], cap);
        }
        let (largest, sum) = multiplier.powers(scores, visible, self.largest, weights);
        if largest == HIDDEN {
            // Nothing to be relative to: every score is minus infinity or not a number, and so is the mean no number.
            self.sum = f32::NAN;
        }
        if largest > self.largest {
            // Before the first block everything is zero.
            if self.largest > HIDDEN {
                let factor = (self.largest - largest).exp2();
                self.sum *= factor;
                vectorize(
                    #[inline(always)]
                    || output.iter_mut().for_each(|output| *output *= factor),
                );
            }
            self.largest = largest;
        }
        self.sum += sum;
    }

    /// The weighted mean of the values whose weighted sum is `output`.
    pub(super) fn finish(&self, output: &[f32], out: &mut [f32]) {
        let factor = self.sum.recip();
        vectorize(
            #[inline(always)]
            || out.iter_mut().zip(output).for_each(|(out, output)| *out = output * factor),
        );
    }
}

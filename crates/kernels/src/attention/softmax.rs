//! The online softmax: computes the weights of one block of keys after the other, relative to the largest score so far.

use std::ops::Range;

use crate::activation::soft_cap;
use crate::kernel::panel::Powers;
use crate::product::Operand;
use crate::vectorize::vectorize;

/// Less than every score: the largest score before the first block.
pub(super) const HIDDEN: f32 = f32::MIN;

/// The state of the softmax after some blocks, for one query of one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// The largest score.
    largest: f32,
    /// Sum of the weights, each 2^(score − largest).
    sum: f32,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            largest: HIDDEN,
            sum: 0.0,
        }
    }
}

/// Applies the soft cap to scores, which are exponents of e, and converts them to exponents of two.
pub(super) fn cap(scores: &mut [f32], cap: f32) {
    soft_cap(scores, cap);
    scores
        .iter_mut()
        .for_each(|score| *score *= std::f32::consts::LOG2_E);
}

/// Returns the weight of a sink, an exponent of two, relative to the largest score.
pub(super) fn sink_weight(sink: Option<f32>, largest: f32) -> f32 {
    sink.map_or(0.0, |sink| (sink - largest).exp2())
}

impl Running {
    /// Computes `weights` of `values` from a block's `scores` in `visible`, and rescales `output`, the weighted sum of
    /// earlier blocks, to the largest score so far. Scores are exponents of two, or of e if there is a soft cap.
    /// Returns the scale of the weights.
    pub(super) fn add(
        &mut self,
        scores: &mut [f32],
        visible: Range<usize>,
        cap: Option<f32>,
        values: &Operand,
        weights: &mut [u32],
        output: &mut [f32],
    ) -> f32 {
        if visible.is_empty() {
            weights.fill(0);
            return 0.0;
        }
        if let Some(cap) = cap {
            self::cap(&mut scores[visible.clone()], cap);
        }
        let (Powers { largest, sum, .. }, unit) =
            values.exp2_and_sum(scores, visible, self.largest, weights);
        if largest == HIDDEN {
            // Every score is minus infinity or NaN, so the mean is NaN.
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
        unit
    }

    /// Writes the weighted mean of the values, given their weighted sum `output`. `sink` is a score without a value.
    pub(super) fn finish(&self, sink: Option<f32>, output: &[f32], out: &mut [f32]) {
        let factor = (self.sum + sink_weight(sink, self.largest)).recip();
        vectorize(
            #[inline(always)]
            || {
                out.iter_mut()
                    .zip(output)
                    .for_each(|(out, output)| *out = output * factor);
            },
        );
    }
}

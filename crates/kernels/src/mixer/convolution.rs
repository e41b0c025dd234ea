//! The short causal convolution before a mixer's operator: each channel alone, then SiLU.

use crate::activation::silu;
use crate::vectorize::Fused;

/// A convolution over some columns of rows. Its state holds these columns of the latest positions, `[taps − 1, channels]`,
/// the earliest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution<'a> {
    /// Factors `[taps, channels]`, of the earliest position first.
    pub factors: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub channels: usize,
    /// The first of its columns in a row.
    pub first: usize,
    pub row_len: usize,
}

impl Convolution<'_> {
    fn taps(&self) -> usize {
        self.factors.len() / self.channels
    }

    /// Returns the number of values of its state.
    pub fn history(&self) -> usize {
        (self.taps() - 1) * self.channels
    }

    /// Computes the convolution at `rows[row]` and its activation.
    #[inline(always)]
    pub fn compute(
        &self,
        history: &[f32],
        rows: &[f32],
        row: usize,
        out: &mut [f32],
        fused: Fused,
    ) {
        let (channels, before) = (self.channels, self.taps() - 1);
        match self.bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (tap, factors) in self.factors.chunks_exact(channels).enumerate() {
            // Positions are counted from the first of the state.
            let x = match (row + tap).checked_sub(before) {
                None => &history[(row + tap) * channels..][..channels],
                Some(row) => &rows[row * self.row_len + self.first..][..channels],
            };
            for ((out, x), factor) in out.iter_mut().zip(x).zip(factors) {
                *out = fused.multiply_add(*x, *factor, *out);
            }
        }
        for out in out.iter_mut() {
            *out = silu(*out, fused);
        }
    }

    /// Brings the state from before `rows` to after them.
    pub fn remember(&self, history: &mut [f32], rows: &[f32]) {
        let (channels, row_len) = (self.channels, self.row_len);
        let count = rows.len() / row_len;
        let kept = (self.taps() - 1).saturating_sub(count);
        // The latest positions of the state come before the rows.
        let first = history.len() - kept * channels;
        history.copy_within(first.., 0);
        let new = &mut history[kept * channels..];
        let first = count - new.len() / channels;
        let rows = rows[first * row_len..].chunks_exact(row_len);
        for (new, row) in new.chunks_exact_mut(channels).zip(rows) {
            new.copy_from_slice(&row[self.first..][..channels]);
        }
    }
}

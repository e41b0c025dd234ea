//! The gated short convolution of LFM2: `c · conv(b · x)`, where `b`, `c` and `x` are the parts of a row.

use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::vectorize;

/// Rows that one task computes.
const TASK_ROWS: usize = 8;
/// Calls with fewer values than this run on the calling thread alone.
const PARALLEL: usize = 1 << 15;

/// The weights of a gated convolution over the last positions of each channel. A row `[3, channels]` has the parts `b`,
/// `c` and `x`. The state `[taps − 1, channels]` holds `b · x` of the latest positions, the earliest first.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    taps: &'a [f32],
    bias: Option<&'a [f32]>,
    channels: usize,
}

impl<'a> ShortConv<'a> {
    /// Creates the operator of factors `taps[taps, channels]`, of the earliest position first, and a bias `[channels]`.
    ///
    /// # Panics
    /// If a length is no multiple of the channels, or there are fewer than two taps.
    pub fn new(taps: &'a [f32], bias: Option<&'a [f32]>, channels: usize) -> Self {
        assert!(
            taps.len().is_multiple_of(channels) && taps.len() >= 2 * channels,
            "expected factors of two taps at least"
        );
        assert!(
            bias.is_none_or(|bias| bias.len() == channels),
            "expected a bias for each channel"
        );
        Self {
            taps,
            bias,
            channels,
        }
    }

    /// Returns the number of values of the state.
    pub fn state_len(&self) -> usize {
        self.taps.len() - self.channels
    }

    /// Computes the outputs `out[rows, channels]` of `rows[rows, 3, channels]`, which follow the positions of `state`.
    ///
    /// # Panics
    /// If a length differs.
    pub fn compute(&self, state: &[f32], rows: &[f32], out: &mut [f32]) {
        let channels = self.channels;
        assert_eq!(state.len(), self.state_len(), "expected a whole state");
        assert_eq!(rows.len(), 3 * out.len(), "expected an output for each row");
        let grain = if out.len() < PARALLEL { usize::MAX } else { 1 };
        for_each_chunk(chunks_mut(out, TASK_ROWS * channels), grain, |task, out| {
            vectorize(
                #[inline(always)]
                || {
                    for (index, out) in out.chunks_exact_mut(channels).enumerate() {
                        self.row(state, rows, task * TASK_ROWS + index, out);
                    }
                },
            );
        });
    }

    /// Computes the output of one row. Products are added from the earliest position on.
    #[inline(always)]
    fn row(&self, state: &[f32], rows: &[f32], row: usize, out: &mut [f32]) {
        let channels = self.channels;
        let before = self.taps.len() / channels - 1;
        match self.bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (tap, factors) in self.taps.chunks_exact(channels).enumerate() {
            // Positions are counted from the first of the state.
            match (row + tap).checked_sub(before) {
                None => {
                    let values = &state[(row + tap) * channels..][..channels];
                    for ((out, value), factor) in out.iter_mut().zip(values).zip(factors) {
                        *out += value * factor;
                    }
                }
                Some(row) => {
                    let (b, x) = gate_and_value(&rows[row * 3 * channels..], channels);
                    for (((out, b), x), factor) in out.iter_mut().zip(b).zip(x).zip(factors) {
                        *out += b * x * factor;
                    }
                }
            }
        }
        let c = &rows[row * 3 * channels + channels..][..channels];
        for (out, c) in out.iter_mut().zip(c) {
            *out *= c;
        }
    }

    /// Brings `state` from before `rows[rows, 3, channels]` to after them.
    ///
    /// # Panics
    /// If a length differs.
    pub fn advance(&self, state: &mut [f32], rows: &[f32]) {
        let channels = self.channels;
        assert_eq!(state.len(), self.state_len(), "expected a whole state");
        let kept = (state.len() / channels).saturating_sub(rows.len() / (3 * channels));
        // The latest positions of the state come before the rows.
        let first = state.len() - kept * channels;
        state.copy_within(first.., 0);
        let new = &mut state[kept * channels..];
        let first = rows.len() - new.len() * 3;
        for (row, new) in rows[first..]
            .chunks_exact(3 * channels)
            .zip(new.chunks_exact_mut(channels))
        {
            let (b, x) = gate_and_value(row, channels);
            for ((new, b), x) in new.iter_mut().zip(b).zip(x) {
                *new = b * x;
            }
        }
    }
}

/// Returns the parts `b` and `x` of the first row of `rows`.
#[inline(always)]
fn gate_and_value(rows: &[f32], channels: usize) -> (&[f32], &[f32]) {
    (&rows[..channels], &rows[2 * channels..][..channels])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pool::Pool;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0)
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_output_is_the_gated_sum_over_the_last_positions_however_rows_are_cut(
            channels in 1usize..70, taps in 2usize..8, pieces in prop::collection::vec(1usize..30, 1..5),
            has_bias in any::<bool>(), threads in 1usize..4,
        ) {
            let rows: usize = pieces.iter().sum();
            let (x, factors) = (numbers(rows * 3 * channels, 1), numbers(taps * channels, 2));
            let bias = has_bias.then(|| numbers(channels, 3));
            let conv = ShortConv::new(&factors, bias.as_deref(), channels);
            let part = |row: usize, part: usize, channel: usize| f64::from(x[(row * 3 + part) * channels + channel]);
            let mut whole = vec![0.0; rows * channels];
            let nothing = vec![0.0; conv.state_len()];
            Pool::new(threads).unwrap().install(|| conv.compute(&nothing, &x, &mut whole));
            for row in 0..rows {
                for channel in 0..channels {
                    let mut sum = bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                    for tap in 0..taps {
                        if let Some(at) = (row + tap).checked_sub(taps - 1) {
                            sum += part(at, 0, channel) * part(at, 2, channel)
                                * f64::from(factors[tap * channels + channel]);
                        }
                    }
                    let expected = sum * part(row, 1, channel);
                    let computed = f64::from(whole[row * channels + channel]);
                    prop_assert!((computed - expected).abs() < 1e-5, "{computed} for {expected}");
                }
            }
            let (mut state, mut row, mut cut) = (nothing, 0, Vec::new());
            for piece in pieces {
                let x = &x[row * 3 * channels..(row + piece) * 3 * channels];
                let mut out = vec![0.0; piece * channels];
                conv.compute(&state, x, &mut out);
                conv.advance(&mut state, x);
                cut.extend(out);
                row += piece;
            }
            prop_assert!(cut == whole, "pieces have the bits of the whole");
        }
    }
}

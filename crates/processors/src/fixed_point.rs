//! Feed-forwards with fixed-point intermediates, on CPU cores. Every other processor must return the same bits.

use triad_kernels::OutputMut;
use triad_kernels::fixed_point::FixedPoint;
use triad_kernels::int8::{QuantizedRows, QuantizedView, matmul_int8, matmul_sums};

use crate::error::Result;
use crate::subgraph::{DeviceSubgraph, FeedForward};

/// A feed-forward in which only the output of down is in f32. The sums of gate and up are in i32, and
/// [`triad_kernels::fixed_point`] computes the input of down from them.
pub struct FixedFeedForward {
    feed_forward: FeedForward,
    fixed: FixedPoint,
}

/// Scratch buffers of a [`FixedFeedForward`]. One run uses them at a time.
#[derive(Default)]
pub struct FixedScratch {
    /// Kernel output before it is converted to sums.
    numbers: Vec<f32>,
    /// `[rows, width]`.
    up: Vec<i32>,
    /// `[rows, width]`; only used by a gated feed-forward.
    gate: Vec<i32>,
    /// Input of down.
    inner: QuantizedRows,
}

impl FixedFeedForward {
    /// Creates a fixed-point feed-forward from a subgraph, regardless of the subgraph's own choice of arithmetic.
    ///
    /// # Errors
    /// If the parts of the subgraph contradict each other, fixed point does not support the activation, or a number is
    /// not finite.
    pub fn new(feed_forward: &FeedForward) -> Result<Self> {
        let feed_forward = FeedForward {
            fixed_point: true,
            ..feed_forward.clone()
        };
        DeviceSubgraph::FeedForward(feed_forward.clone()).check()?;
        Ok(Self {
            fixed: feed_forward.fixed_point()?,
            feed_forward,
        })
    }

    /// Computes `out[rows, hidden]` from `input[rows, hidden]`, on the installed pool.
    ///
    /// # Panics
    /// If the shapes are not those of the subgraph.
    pub fn run(&self, scratch: &mut FixedScratch, input: QuantizedView, out: OutputMut) {
        let FeedForward {
            up,
            gate,
            inner_scale,
            down,
            ..
        } = &self.feed_forward;
        let FixedScratch {
            numbers,
            up: up_sums,
            gate: gate_sums,
            inner,
        } = scratch;
        matmul_sums(input, up.weight(), numbers, up_sums);
        if let Some(gate) = gate {
            matmul_sums(input, gate.weight(), numbers, gate_sums);
        }
        inner.requantize(
            &self.fixed,
            (up_sums, gate_sums),
            *inner_scale,
            input.scales(),
        );
        matmul_int8(inner.view(), down.weight(), down.bias(), out);
    }
}

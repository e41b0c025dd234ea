//! Feed-forwards whose middle is in fixed point, on cores of the CPU: what every other processor must return, bit for bit.

use triad_kernels::OutputMut;
use triad_kernels::fixed_point::FixedPoint;
use triad_kernels::int8::{QuantizedRows, QuantizedView, matmul_int8, matmul_sums};

use crate::error::Result;
use crate::subgraph::{DeviceSubgraph, FeedForward};

/// A feed-forward of which only the products' outputs are in f32: gate and up end in i32, down reads what
/// [`triad_kernels::fixed_point`] makes of their sums.
pub struct FixedFeedForward {
    feed_forward: FeedForward,
    fixed: FixedPoint,
}

/// What a [`FixedFeedForward`] works in; any one that nobody else uses.
#[derive(Default)]
pub struct FixedScratch {
    /// What kernels write before it is a sum.
    numbers: Vec<f32>,
    /// `[rows, width]`.
    up: Vec<i32>,
    /// `[rows, width]`; of a gated feed-forward only.
    gate: Vec<i32>,
    /// What down reads.
    inner: QuantizedRows,
}

impl FixedFeedForward {
    /// Of a subgraph, whose own choice of arithmetic is of no consequence.
    ///
    /// # Errors
    /// If the parts of the subgraph contradict each other, fixed point has no such activation, or a number is not finite.
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

    /// Writes `out[rows, hidden]` from `input[rows, hidden]`, on the pool that is installed.
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

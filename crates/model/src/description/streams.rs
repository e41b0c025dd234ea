//! Several residual streams.

use serde::{Deserialize, Serialize};

/// Several residual streams, of which the blocks compute the first (AltUp), with a layer of low rank next to attention
/// (LAUREL). Gemma 3n.
///
/// With `x` the embedding, stream `i` begins as `projection_i(x)`, brought to the root mean square of `x`. In a block,
/// with `route(x) = tanh(router(norm(x) / hidden))`:
///
/// 1. Each stream `j` gets `Σ prediction(route(x_0))[j, i] · x_i` more.
/// 2. The block computes `y` from the first stream `x`. With `n` the norm that attention reads, its first half gives
///    `(x + attention + n + norm(right(left(n)))) / √2`.
/// 3. Each stream `i` gets `(1 + correction(route(y))[i]) · (y − x)` more, where `x` is the first stream before the block.
/// 4. The input by token, whose gate reads the first stream, is added to all other streams.
///
/// After the last block, the first stream is the mean of itself and of `output_i(x_i)`, brought to its root mean square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// Number of streams, with the first one.
    pub count: usize,
    /// Rank of the layers next to attention.
    pub rank: usize,
    /// Whether the gate of the input by token reads the first stream times a factor for each channel.
    pub scaled: bool,
}

impl Streams {
    /// Returns the parameters outside the blocks: of projections and outputs.
    pub(super) fn shared_parameters(&self, hidden: usize) -> usize {
        2 * (self.count - 1) * hidden * hidden
    }

    /// Returns the parameters of one block: of router, prediction and correction with the router's norm, of the layers
    /// next to attention with their norm, and the factors.
    pub(super) fn block_parameters(&self, hidden: usize) -> usize {
        let of_routes = (self.count + 1) * hidden + self.count.pow(3) + self.count.pow(2);
        let of_layers = (2 * self.rank + 1) * hidden;
        of_routes + of_layers + if self.scaled { hidden } else { 0 }
    }
}

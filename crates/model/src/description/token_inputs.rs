//! Inputs that a block reads from the token itself, next to the residual stream.

use serde::{Deserialize, Serialize};

use super::{Activation, Norm};

/// The inputs of all blocks by token (per-layer embeddings of Gemma 4). With `x` the scaled embedding of a token, block
/// `b` has the input `(norm(projection_b(x) / √hidden) + √width · table_b(token)) / √2`, and after its feed-forward
/// `x += norm(output(activation(gate(x)) · input))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenInputs {
    /// Width of the input of one block.
    pub width: usize,
    /// The nonlinearity after a block's gate.
    pub activation: Activation,
    /// The norm of each projection, as wide as the input, and of each block's output, as wide as the stream: an RMS norm.
    pub norm: Norm,
}

impl TokenInputs {
    /// Returns the parameters outside the blocks: of table, projection and norm.
    pub(super) fn shared_parameters(&self, vocab: usize, hidden: usize, blocks: usize) -> usize {
        (vocab + hidden) * blocks * self.width + self.width
    }

    /// Returns the parameters of one block: of gate, output and norm.
    pub(super) fn block_parameters(&self, hidden: usize) -> usize {
        2 * hidden * self.width + hidden
    }
}

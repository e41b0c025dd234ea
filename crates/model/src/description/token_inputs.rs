//! Inputs that a block reads from the token itself, next to the residual stream.

use serde::{Deserialize, Serialize};

use super::{Activation, Norm};

/// The inputs of all blocks by token (per-layer embeddings of Gemma 3n and 4). With `x` the scaled embedding of a token, block
/// `b` has the input `(norm(projection_b(x) / √hidden) + √width · table_b(token)) / √2`, and after its feed-forward
/// `x += norm(output(activation(gate(x)) · input))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenInputs {
    /// Width of the input of one block.
    pub width: usize,
    /// Rows of the table, if they are fewer than tokens: a token without one reads the first row (Gemma 3n).
    #[serde(default)]
    pub rows: Option<usize>,
    /// The nonlinearity after a block's gate.
    pub activation: Activation,
    /// The norm of each projection, as wide as the input, and of each block's output, as wide as the stream: an RMS norm.
    pub norm: Norm,
}

impl TokenInputs {
    /// Returns the parameters outside the blocks: of table, projection and norm.
    pub(super) fn shared_parameters(&self, vocab: usize, hidden: usize, blocks: usize) -> usize {
        (self.table_rows(vocab) + hidden) * blocks * self.width + self.width
    }

    /// Returns the rows of the table in a model with so many tokens.
    pub fn table_rows(&self, vocab: usize) -> usize {
        self.rows.unwrap_or(vocab)
    }

    /// Returns the parameters of one block: of gate, output and norm.
    pub(super) fn block_parameters(&self, hidden: usize) -> usize {
        2 * hidden * self.width + hidden
    }
}

//! The weights of the input of a head that predicts one more token.

use super::{Norm, WeightMatrix};

/// The weights that make the first value of the residual stream of two rows: of the embedding and of a hidden state.
#[derive(Clone)]
pub struct JoinedInput {
    /// Norm of the embedding.
    pub embedding_norm: Norm,
    /// Norm of the state.
    pub state_norm: Norm,
    /// `[hidden, 2 · hidden]`, the columns of the embedding first.
    pub projection: WeightMatrix,
}

impl JoinedInput {
    /// Returns the bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.projection.bytes()
    }
}

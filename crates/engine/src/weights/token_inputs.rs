//! The weights of inputs by token.

use triad_model::Result;
use triad_model::description::{ModelDescription, Norm as NormDescription};
use triad_model::tensor_map::{TokenInputTensors, TokenInputsTensors};

use super::{Embedding, Norm, Reader, WeightMatrix};

/// The weights of inputs by token outside the blocks. None of them is quantized: they stay as they are stored.
#[derive(Clone)]
pub struct TokenInputs {
    /// `[rows, blocks · width]`, of which a token reads one row.
    pub table: Embedding,
    /// Rows of the table.
    pub rows: usize,
    /// `[blocks · width, hidden]`.
    pub projection: WeightMatrix,
    /// The norm of each projection.
    pub norm: Norm,
}

/// The weights of a block that add its input by token.
#[derive(Clone)]
pub struct TokenInput {
    /// `[width, hidden]`.
    pub gate: WeightMatrix,
    /// `[hidden, width]`.
    pub output: WeightMatrix,
    /// The norm of the output.
    pub norm: Norm,
}

impl TokenInputs {
    /// Returns the bytes of one row of the table.
    pub(super) fn row_bytes(&self) -> usize {
        self.table.row_bytes(self.rows)
    }

    /// Returns the bytes of the matrices.
    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.projection.bytes()
    }
}

impl TokenInput {
    /// Returns the bytes of the matrices.
    pub fn bytes(&self) -> usize {
        self.gate.bytes() + self.output.bytes()
    }
}

impl Reader<'_> {
    pub(super) fn token_inputs(
        &self,
        description: &ModelDescription,
        tensors: Option<&TokenInputsTensors>,
    ) -> Result<Option<TokenInputs>> {
        let (Some(described), Some(tensors)) = (description.token_inputs, tensors) else {
            return Ok(None);
        };
        let all = description.blocks.len() * described.width;
        Ok(Some(TokenInputs {
            table: self.rows(&tensors.table)?,
            rows: described.table_rows(description.vocab),
            projection: self.matrix(&tensors.projection, all, description.hidden)?,
            norm: self.norm(&tensors.norm, &described.norm)?,
        }))
    }

    pub(super) fn token_input(
        &self,
        description: &ModelDescription,
        tensors: Option<&TokenInputTensors>,
    ) -> Result<Option<TokenInput>> {
        let (Some(described), Some(tensors)) = (description.token_inputs, tensors) else {
            return Ok(None);
        };
        let (width, hidden) = (described.width, description.hidden);
        Ok(Some(TokenInput {
            gate: self.matrix(&tensors.gate, width, hidden)?,
            output: self.matrix(&tensors.output, hidden, width)?,
            norm: self.norm(&tensors.norm, &described.norm)?,
        }))
    }
}

/// Returns weights that `float` makes at random, for numbers of rows and columns.
pub(super) fn random(
    description: &ModelDescription,
    float: &mut dyn FnMut(usize, usize) -> WeightMatrix,
    norm: impl Fn(&NormDescription, usize) -> Norm,
) -> Option<TokenInputs> {
    let described = description.token_inputs?;
    let all = description.blocks.len() * described.width;
    Some(TokenInputs {
        table: Embedding::Matrix(float(described.table_rows(description.vocab), all)),
        rows: described.table_rows(description.vocab),
        projection: float(all, description.hidden),
        norm: norm(&described.norm, described.width),
    })
}

/// Returns the weights of a block as [`random`] does.
pub(super) fn random_of_block(
    description: &ModelDescription,
    float: &mut dyn FnMut(usize, usize) -> WeightMatrix,
    norm: impl Fn(&NormDescription, usize) -> Norm,
) -> Option<TokenInput> {
    let (described, hidden) = (description.token_inputs?, description.hidden);
    Some(TokenInput {
        gate: float(described.width, hidden),
        output: float(hidden, described.width),
        norm: norm(&described.norm, hidden),
    })
}

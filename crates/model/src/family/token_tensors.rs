//! The tensors of inputs by token, and those of keys that no block reads.

use super::names::Names;
use super::tensors::Mapper;
use crate::description::{Attention, BlockDescription, ModelDescription, TokenInputs};
use crate::error::Result;
use crate::tensor_map::{TensorSlice, TokenInputTensors, TokenInputsTensors};

impl Mapper<'_> {
    /// Returns the tensors of inputs by token outside the blocks.
    pub(super) fn token_inputs(&mut self) -> Result<Option<TokenInputsTensors>> {
        let ModelDescription { hidden, vocab, .. } = *self.description;
        let Some(inputs) = self.description.token_inputs else {
            return Ok(None);
        };
        let TokenInputs { width, norm, .. } = inputs;
        let rows = inputs.table_rows(vocab);
        let (names, root) = (self.names.token_inputs, self.root);
        let all = self.description.blocks.len() * width;
        Ok(Some(TokenInputsTensors {
            table: self.whole(&format!("{root}{}.weight", names.table), &[rows, all])?,
            projection: self.whole(
                &format!("{root}{}.weight", names.projection),
                &[all, hidden],
            )?,
            norm: self.norm(&format!("{root}{}", names.projection_norm), &norm, width)?,
        }))
    }

    /// Returns the tensors of a block that add its input by token.
    pub(super) fn token_input(&mut self, prefix: &str) -> Result<Option<TokenInputTensors>> {
        let hidden = self.description.hidden;
        let Some(TokenInputs { width, norm, .. }) = self.description.token_inputs else {
            return Ok(None);
        };
        let names = self.names.token_inputs;
        Ok(Some(TokenInputTensors {
            gate: self.whole(&format!("{prefix}{}.weight", names.gate), &[width, hidden])?,
            output: self.whole(
                &format!("{prefix}{}.weight", names.output),
                &[hidden, width],
            )?,
            norm: self.norm(&format!("{prefix}{}", names.norm), &norm, hidden)?,
        }))
    }

    /// Finds a tensor by its name, as a whole.
    pub(super) fn whole(&mut self, name: &str, shape: &[usize]) -> Result<TensorSlice> {
        Ok(TensorSlice::whole(self.tensor(name, shape)?))
    }

    /// Marks the layers of keys and values of a block that reads those of another one: files may have them all the same.
    pub(super) fn skip_keys(&mut self, prefix: &str, block: &BlockDescription) {
        if block.attention().and_then(Attention::shared_from).is_none() {
            return;
        }
        let Names {
            key,
            value,
            key_norm,
            ..
        } = self.names;
        for name in [key, value, key_norm] {
            self.used.insert(format!("{prefix}{name}.weight"));
        }
    }
}

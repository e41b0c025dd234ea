//! Reading of layers, norms and embeddings from a checkpoint.

use std::sync::Arc;

use triad_kernels::BlockArithmetic;
use triad_model::Result;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{Norm as NormDescription, NormKind};
use triad_model::tensor_map::{LinearTensors, NormTensors, TensorSlice};

use super::{Embedding, Linear, Norm, Weight};

/// Reads the weights of a checkpoint.
pub(super) struct Reader<'a> {
    pub(super) checkpoint: &'a Arc<Checkpoint>,
    pub(super) block_arithmetic: BlockArithmetic,
}

impl Reader<'_> {
    pub(super) fn linear(
        &self,
        tensors: &LinearTensors,
        out_features: usize,
        in_features: usize,
    ) -> Result<Linear> {
        let bias = tensors
            .bias
            .as_ref()
            .map(|bias| self.vector(bias))
            .transpose()?;
        let weight = Weight::Float(self.matrix(&tensors.weight, out_features, in_features)?);
        Ok(Linear {
            weight,
            decode_weight: None,
            bias,
        })
    }

    pub(super) fn norm(
        &self,
        tensors: &NormTensors,
        description: &NormDescription,
    ) -> Result<Norm> {
        let read = |name: &String| self.vector(&TensorSlice::whole(name));
        let mut weight = read(&tensors.weight)?;
        weight
            .iter_mut()
            .for_each(|weight| *weight += description.weight_offset);
        let bias = match (&tensors.bias, description.kind) {
            (Some(bias), _) => Some(read(bias)?),
            (None, NormKind::Centered) => Some(vec![0.0; weight.len()]),
            (None, NormKind::Rms | NormKind::Layer) => None,
        };
        Ok(Norm {
            weight,
            bias,
            epsilon: description.epsilon,
        })
    }

    /// Reads the embedding; it shares the values of the output matrix if both are one quantized tensor.
    pub(super) fn embedding(
        &self,
        tensor: &TensorSlice,
        output_tensor: &TensorSlice,
        output: &Linear,
    ) -> Result<Embedding> {
        match &output.weight {
            Weight::Float(matrix)
                if tensor == output_tensor
                    && self.checkpoint.quantized().contains_key(&tensor.name) =>
            {
                Ok(Embedding::Matrix(matrix.clone()))
            }
            _ => self.rows(tensor),
        }
    }

    /// Reads a matrix of which single rows are used.
    pub(super) fn rows(&self, tensor: &TensorSlice) -> Result<Embedding> {
        if let Some(matrix) = self.quantized(tensor) {
            return Ok(Embedding::Matrix(matrix));
        }
        let info = self.checkpoint.tensor(&tensor.name)?;
        Ok(Embedding::Stored {
            bytes: self.checkpoint.mapped(info),
            row_bytes: info.bytes.len() / info.shape[0],
            format: info.format,
        })
    }
}

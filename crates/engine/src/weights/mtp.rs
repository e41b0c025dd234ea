//! The weights of a head that predicts one more token: those of a model of one block, which shares the embedding and the
//! output matrix with the model that it belongs to.

use std::sync::Arc;

use triad_kernels::BlockArithmetic;
use triad_model::Result;
use triad_model::checkpoint::Checkpoint;

use super::reader::Reader;
use super::{Block, EncoderWeights, JoinedInput, Norm, Weights};

impl Weights {
    /// Reads the head of `checkpoint`, whose model has the weights `model`, on the installed threads. Returns `None` if it
    /// has no head.
    pub(crate) fn load_mtp(
        checkpoint: &Arc<Checkpoint>,
        block_arithmetic: BlockArithmetic,
        model: &Self,
    ) -> Result<Option<Self>> {
        let description = checkpoint.description();
        let tensors = checkpoint.tensor_map().mtp.as_deref();
        let (Some(mtp), Some(tensors)) = (description.mtp.as_deref(), tensors) else {
            return Ok(None);
        };
        let reader = Reader {
            checkpoint,
            block_arithmetic,
        };
        let hidden = description.hidden;
        let joined_input = JoinedInput {
            embedding_norm: reader.norm(&tensors.embedding_norm, &mtp.norm)?,
            state_norm: reader.norm(&tensors.state_norm, &mtp.norm)?,
            projection: reader.matrix(&tensors.projection, hidden, 2 * hidden)?,
        };
        let block = reader.block(description, &mtp.block, &tensors.block)?;
        let output_norm = reader.norm(&tensors.output_norm, &mtp.norm)?;
        Ok(Some(Self::of_head(model, block, output_norm, joined_input)))
    }

    /// Returns the weights of a head that shares the embedding and the output matrix of `model`.
    pub(crate) fn of_head(
        model: &Self,
        block: Block,
        output_norm: Norm,
        joined_input: JoinedInput,
    ) -> Self {
        Self {
            embedding: model.embedding.clone(),
            blocks: vec![block],
            output_norm,
            output: model.output.clone(),
            expert_memory: None,
            token_inputs: None,
            streams: None,
            joined_input: Some(joined_input),
            encoder: EncoderWeights::default(),
        }
    }

    /// Returns the weights of this head with the embedding and the output matrix of `model`.
    pub(crate) fn of_head_for(&self, model: &Self) -> Self {
        Self {
            embedding: model.embedding.clone(),
            output: model.output.clone(),
            blocks: self.blocks.clone(),
            output_norm: self.output_norm.clone(),
            joined_input: self.joined_input.clone(),
            expert_memory: None,
            token_inputs: None,
            streams: None,
            encoder: EncoderWeights::default(),
        }
    }
}

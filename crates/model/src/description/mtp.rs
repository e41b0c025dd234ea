//! A head that predicts one more token than the model (multi-token prediction, MTP).

use serde::{Deserialize, Serialize};

use super::{AddedInputs, BlockDescription, ModelDescription, Norm};

/// The head of a model that predicts the token after the next one
/// ([DeepSeek-V3](https://arxiv.org/abs/2412.19437), section 2.2). One block reads a projection of two normed rows: the
/// embedding of the next token, and the hidden state of the model at the position before it, after the last norm. A norm
/// and the output matrix of the model follow. The hidden state of the head stands for that of the model one position later,
/// so that the head predicts further tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mtp {
    /// The block, with attention and keys and values of its own.
    pub block: BlockDescription,
    /// The kind of the three norms outside the block: of the embedding, of the state, and before the output matrix.
    pub norm: Norm,
}

impl ModelDescription {
    /// Returns the parameters of the [head](Mtp), without the embedding and the output matrix that it shares; 0 if there is
    /// none.
    pub fn mtp_parameters(&self) -> usize {
        let Some(head) = self.mtp_model() else {
            return 0;
        };
        let output = if head.tied_output { 1 } else { 2 };
        let bias = if head.output_bias { head.vocab } else { 0 };
        let shared = output * head.vocab * head.hidden + bias;
        let joined = 2 * head.output_norm.parameters(self.hidden) + 2 * self.hidden * self.hidden;
        head.parameters() - shared + joined
    }

    /// Returns the description of the [head](Mtp) as a model of one block.
    pub fn mtp_model(&self) -> Option<Self> {
        let mtp = self.mtp.as_deref()?;
        Some(Self {
            blocks: vec![mtp.block.clone()],
            output_norm: mtp.norm,
            token_inputs: None,
            streams: None,
            added_inputs: AddedInputs::default(),
            head: None,
            picture_rope: None,
            mtp: None,
            ..self.clone()
        })
    }
}

//! The role of each stored tensor: the second result of [`crate::family`], next to the description.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::description::{Linear, MixerWeight};

/// A stored tensor, or some of its rows where a file keeps several parts in one tensor (Phi-3's
/// query, key and value).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    /// Name in the file.
    pub name: String,
    /// Rows of the tensor as a matrix, whose columns are its last dimension; `None`: all of them.
    pub rows: Option<Range<usize>>,
}

/// Returns the rows of a tensor as a matrix, whose columns are its last dimension.
pub fn rows_of(shape: &[usize]) -> usize {
    let outer = shape.split_last().map_or(&[][..], |(_, outer)| outer);
    outer.iter().product()
}

/// Weight `[out_features, in_features]` and bias `[out_features]` of one linear layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearTensors {
    /// The weight.
    pub weight: TensorSlice,
    /// The bias; present exactly if the description has one.
    pub bias: Option<TensorSlice>,
}

/// Weight and bias of one norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormTensors {
    /// The weight's name in the file.
    pub weight: String,
    /// The bias's name in the file; present exactly for a layer norm.
    pub bias: Option<String>,
}

/// A weight of a mixer's operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixerTensor {
    /// Name in the file.
    pub name: String,
    /// How the file has it.
    pub stored: StoredAs,
}

/// How a file has a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// As it is.
    Itself,
    /// With its two dimensions in the other order.
    Transposed,
    /// As the logarithm of its negative.
    Logarithm,
}

/// The tensors that choose among experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterTensors {
    /// Weight `[experts, hidden]`, and its bias.
    pub linear: LinearTensors,
    /// Summands of the scores for the choice, `[experts]`.
    pub correction: Option<TensorSlice>,
    /// Weight of the shared expert's gate, `[1, hidden]` or `[hidden]`.
    pub shared_gate: Option<TensorSlice>,
}

/// The tensors of the inputs by token outside the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInputsTensors {
    /// Table `[vocab, blocks · width]`.
    pub table: TensorSlice,
    /// Projection of the embedding `[blocks · width, hidden]`.
    pub projection: TensorSlice,
    /// Norm of each projection.
    pub norm: NormTensors,
}

/// The tensors of a block that add its input by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInputTensors {
    /// Gate `[width, hidden]`.
    pub gate: TensorSlice,
    /// Output `[hidden, width]`.
    pub output: TensorSlice,
    /// Norm of the output.
    pub norm: NormTensors,
}

/// The tensors of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTensors {
    /// Norm before attention; with a parallel residual, also before the feed-forward.
    pub attention_norm: Option<NormTensors>,
    /// Norm on attention's output.
    pub attention_post_norm: Option<NormTensors>,
    /// Norm before the feed-forward.
    pub feed_forward_norm: Option<NormTensors>,
    /// Norm on the feed-forward's output.
    pub feed_forward_post_norm: Option<NormTensors>,
    /// Norm on queries, of the first width of [`crate::description::Attention::qk_norm_widths`].
    pub query_norm: Option<NormTensors>,
    /// Norm on keys, of the second width.
    pub key_norm: Option<NormTensors>,
    /// The choice of experts, if the block has them.
    pub router: Option<RouterTensors>,
    /// One entry for each of [`crate::description::BlockDescription::linears`].
    pub linears: BTreeMap<Linear, LinearTensors>,
    /// One entry for each of [`crate::description::Mixer::weights`].
    pub mixer: BTreeMap<MixerWeight, MixerTensor>,
    /// The input by token, if the model has them.
    pub token_input: Option<TokenInputTensors>,
    /// The factor on the residual stream after the block, one number.
    pub scale: Option<TensorSlice>,
}

/// The tensors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Embedding `[vocab, hidden]`.
    pub embedding: TensorSlice,
    /// The blocks, first to last.
    pub blocks: Vec<BlockTensors>,
    /// Norm between the last block and the output matrix.
    pub output_norm: NormTensors,
    /// Output matrix `[vocab, hidden]`; the embedding itself if tied.
    pub output: LinearTensors,
    /// The inputs of blocks by token.
    pub token_inputs: Option<TokenInputsTensors>,
    /// Names of tensors that the model does not use: for images, or to predict more than one token.
    pub unused: Vec<String>,
}

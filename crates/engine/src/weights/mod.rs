//! The weights of a model in the format used for compute.
//!
//! Matrices are used in place, from the file's bytes, in the format in which they are stored. Float matrices that are
//! not aligned there are widened to f32 at load. Quantized safetensors are converted at load ([`from_quantized`]).

mod block;
mod embedding;
mod encoder;
mod expert_memory;
mod fingerprint;
mod from_quantized;
mod int8;
mod joined_input;
mod linear;
mod matrix;
mod mixer;
mod mtp;
mod norm;
mod quantized;
mod random;
mod reader;
mod router;
mod slice;
mod streams;
mod token_inputs;

use std::sync::Arc;

use triad_kernels::BlockArithmetic;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{Experts, ModelDescription, Norm as NormDescription};
use triad_model::tensor_map::{
    BlockTensors, BranchTensors, NormTensors, RouterTensors, TensorSlice,
};
use triad_model::{Error, ErrorKind, Result, description};

pub use block::Block;
pub use embedding::Embedding;
pub use encoder::{DenseWeights, EncoderWeights};
pub use expert_memory::{ExpertMemory, ExpertUse};
pub use int8::Int8Matrix;
pub use joined_input::JoinedInput;
pub use linear::{Linear, Weight};
pub use matrix::WeightMatrix;
pub use mixer::MixerWeights;
pub use norm::Norm;
pub(crate) use quantized::quantize_blocks;
pub use quantized::{
    linear_to_bits, linear_to_int4, linear_to_q5_0, quantize_linear, quantize_output,
};
use reader::Reader;
pub use router::{Branch, Router, RouterPart};
pub use streams::{BlockStreams, Streams};
pub use token_inputs::{TokenInput, TokenInputs};

/// All weights of a model.
pub struct Weights {
    /// Embedding `[vocab, hidden]`.
    pub embedding: Embedding,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Norm between the last block and the output matrix.
    pub output_norm: Norm,
    /// Output matrix `[vocab, hidden]`.
    pub output: Linear,
    /// The experts in memory, if not all of them stay there.
    pub expert_memory: Option<ExpertMemory>,
    /// Inputs of the blocks by token.
    pub token_inputs: Option<TokenInputs>,
    /// Several residual streams.
    pub streams: Option<Streams>,
    /// In a head that predicts one more token: the weights that join an embedding and a state.
    pub joined_input: Option<JoinedInput>,
    /// The weights that only encoders have, and the layers after pooling.
    pub encoder: EncoderWeights,
}

impl Weights {
    /// Returns whether linear layers read INT8 activations.
    pub fn is_int8(&self) -> bool {
        self.blocks.iter().any(|block| block.inputs.is_some())
    }

    /// Returns whether linear layers round their input: to INT8, or to 16 bits if their weights are in INT4 or
    /// quantized blocks.
    pub fn rounds_activations(&self) -> bool {
        self.blocks.iter().any(Block::rounds_activations)
    }

    /// Returns the bytes of matrices that decoding one token reads.
    pub fn bytes_per_token(&self) -> usize {
        let of_linear = |linear: &Linear| {
            linear
                .decode_weight
                .as_ref()
                .map_or(linear.weight.bytes(), WeightMatrix::bytes)
        };
        let of_block = |block: &Block| {
            let router = block.router.as_ref();
            let linears = block.linears.iter().map(|(name, linear)| match router {
                // A token reads the experts that its router chooses.
                Some(Router { experts, .. }) if name.is_of_expert() => {
                    of_linear(linear) * experts.used / experts.count
                }
                _ => of_linear(linear),
            });
            let token_input = block.token_input.as_ref();
            let streams = block.streams.as_ref();
            linears.sum::<usize>()
                + mixer::bytes(&block.mixer)
                + router.map_or(0, Router::bytes)
                + token_input.map_or(0, TokenInput::bytes)
                + streams.map_or(0, BlockStreams::bytes)
        };
        let token_inputs = self.token_inputs.as_ref();
        let streams = self.streams.as_ref();
        self.blocks.iter().map(of_block).sum::<usize>()
            + of_linear(&self.output)
            + token_inputs.map_or(0, |inputs| inputs.projection.bytes())
            + self.joined_input.as_ref().map_or(0, JoinedInput::bytes)
            + streams.map_or(0, Streams::bytes)
    }
}

impl Weights {
    /// Reads all weights of `checkpoint`, on the installed threads.
    pub(crate) fn load(
        checkpoint: &Arc<Checkpoint>,
        block_arithmetic: BlockArithmetic,
    ) -> Result<Self> {
        let reader = Reader {
            checkpoint,
            block_arithmetic,
        };
        let description = checkpoint.description();
        let map = checkpoint.tensor_map();
        let blocks = description.blocks.iter().zip(&map.blocks);
        checkpoint.log_quantized(block_arithmetic == BlockArithmetic::Rounded);
        let output = reader.linear(&map.output, description.vocab, description.hidden)?;
        Ok(Self {
            blocks: blocks
                .map(|(block, tensors)| reader.block(description, block, tensors))
                .collect::<Result<_>>()?,
            output_norm: reader.norm(&map.output_norm, &description.output_norm)?,
            embedding: reader.embedding(&map.embedding, &map.output.weight, &output)?,
            token_inputs: reader.token_inputs(description, map.token_inputs.as_ref())?,
            streams: reader.streams(description.hidden, map.streams.as_ref())?,
            joined_input: None,
            encoder: reader.encoder(description, map)?,
            output,
            expert_memory: None,
        })
    }

    /// Writes the embedding of `token` to `out[hidden]`. The token must be within the vocabulary.
    pub(crate) fn embed(&self, token: u32, out: &mut [f32]) {
        match (&self.embedding, &self.output.weight) {
            (Embedding::Output, Weight::Float(matrix)) => matrix.row(token as usize, out),
            (embedding, _) => embedding.row(token, out),
        }
    }

    /// Returns the bytes of a token's embedding, and of its row of inputs.
    pub(crate) fn embedding_row_bytes(&self) -> usize {
        let rows = self.output.weight.out_features();
        let embedding = match &self.embedding {
            Embedding::Output => self.output.weight.bytes() / rows,
            embedding => embedding.row_bytes(rows),
        };
        let inputs = self.token_inputs.as_ref();
        embedding + inputs.map_or(0, TokenInputs::row_bytes)
    }

    /// Returns the bytes of all matrices in the format used for compute, with the embedding as stored.
    pub fn bytes(&self) -> usize {
        let linears = self.blocks.iter().flat_map(|block| block.linears.values());
        let of_blocks = self
            .blocks
            .iter()
            .filter_map(|block| block.token_input.as_ref());
        let token_inputs = of_blocks.map(TokenInput::bytes).sum::<usize>()
            + self.token_inputs.as_ref().map_or(0, TokenInputs::bytes);
        let of_blocks = self
            .blocks
            .iter()
            .filter_map(|block| block.streams.as_ref());
        let streams = of_blocks.map(BlockStreams::bytes).sum::<usize>()
            + self.streams.as_ref().map_or(0, Streams::bytes);
        let bytes = |linear: &Linear| {
            linear.weight.bytes() + linear.decode_weight.as_ref().map_or(0, WeightMatrix::bytes)
        };
        let mixers = self.blocks.iter().map(|block| mixer::bytes(&block.mixer));
        linears.chain([&self.output]).map(bytes).sum::<usize>()
            + mixers.sum::<usize>()
            + self.embedding.bytes()
            + token_inputs
            + self.encoder.bytes()
            + streams
    }
}

impl Reader<'_> {
    fn block(
        &self,
        model: &ModelDescription,
        description: &description::BlockDescription,
        tensors: &BlockTensors,
    ) -> Result<Block> {
        let hidden = model.hidden;
        let norm = |tensors: &Option<NormTensors>, description: &NormDescription| {
            tensors
                .as_ref()
                .map(|tensors| self.norm(tensors, description))
                .transpose()
        };
        let qk_norm = match description.qk_norms()[0] {
            Some((norm, _)) => norm,
            None => description.norm,
        };
        let linears = description.linears(hidden).into_iter().map(|shape| {
            let tensors = tensors.linears.get(&shape.linear).ok_or_else(|| {
                Error::new(
                    ErrorKind::Missing,
                    format!("no tensor for the {:?} linear layer", shape.linear),
                )
            })?;
            Ok((
                shape.linear,
                self.linear(tensors, shape.out_features, shape.in_features)?,
            ))
        });
        Ok(Block {
            attention_norm: norm(&tensors.attention_norm, &description.norm)?,
            attention_post_norm: norm(&tensors.attention_post_norm, &description.norm)?,
            feed_forward_norm: norm(&tensors.feed_forward_norm, &description.norm)?,
            feed_forward_post_norm: norm(&tensors.feed_forward_post_norm, &description.norm)?,
            query_norm: norm(&tensors.query_norm, &qk_norm)?,
            key_norm: norm(&tensors.key_norm, &qk_norm)?,
            value_norm: Norm::of_values(description),
            inputs: None,
            router: match (&description.feed_forward.experts, &tensors.router) {
                (Some(experts), Some(tensors)) => {
                    Some(self.router(experts, tensors, (hidden, &description.norm))?)
                }
                _ => None,
            },
            linears: linears.collect::<Result<_>>()?,
            mixer: self.mixer(&description.mixer, tensors)?,
            token_input: self.token_input(model, tensors.token_input.as_ref())?,
            streams: self.block_streams(model, description, tensors.streams.as_ref())?,
            scale: match &tensors.scale {
                Some(scale) => self.vector(scale)?.first().copied(),
                None => None,
            },
        })
    }

    fn router(
        &self,
        experts: &Experts,
        tensors: &RouterTensors,
        (hidden, norm): (usize, &NormDescription),
    ) -> Result<Router> {
        let vector = |slice: &Option<TensorSlice>| {
            let vector = slice.as_ref().map(|slice| self.vector(slice));
            vector.transpose()
        };
        Ok(Router {
            bias: vector(&tensors.linear.bias)?,
            experts: *experts,
            weight: self.matrix(&tensors.linear.weight, experts.count, hidden)?,
            correction: vector(&tensors.correction)?,
            shared_gate: vector(&tensors.shared_gate)?,
            branch: match &tensors.branch {
                Some(tensors) => Some(self.branch(tensors, hidden, norm)?),
                None => None,
            },
        })
    }

    fn branch(
        &self,
        tensors: &BranchTensors,
        hidden: usize,
        norm: &NormDescription,
    ) -> Result<Branch> {
        let mut channels = self.vector(&tensors.channels)?;
        let root = (hidden as f32).sqrt();
        channels.iter_mut().for_each(|factor| *factor /= root);
        Ok(Branch {
            router_norm: Norm {
                weight: channels,
                bias: None,
                epsilon: norm.epsilon,
            },
            factors: self.vector(&tensors.factors)?,
            dense_norm: self.norm(&tensors.dense_norm, norm)?,
            norm: self.norm(&tensors.norm, norm)?,
            post_norm: self.norm(&tensors.post_norm, norm)?,
        })
    }
}

//! How much memory a run needs, before it needs it.

use std::ops::Range;

use serde::Serialize;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{LinearShape, ModelDescription};

use triad_model::tensor::Format;
use triad_model::tensor_map::TensorSlice;

use crate::forward::Buffers;
use crate::kv_cache::KvFormat;

/// Bytes that a run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Weights in the format used for compute.
    pub weights: usize,
    /// Keys and values of the whole context.
    pub kv_cache: usize,
    /// Activations of one chunk and logits of one token.
    pub activations: usize,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.kv_cache + self.activations
    }
}

/// What a session of `context` tokens in chunks of `chunk` adds to `weights` bytes of weights.
pub fn of_session(
    description: &ModelDescription,
    weights: usize,
    context: usize,
    chunk: usize,
    format: KvFormat,
) -> Memory {
    Memory {
        weights,
        kv_cache: description.kv_bytes_per_token(format.bytes()) * context,
        activations: Buffers::bytes_per_row(description) * chunk.min(context) + description.vocab * size_of::<f32>(),
    }
}

/// Bytes of the weights of an opened model in the format used for compute, without loading them. As
/// [`Weights::bytes`](crate::weights::Weights::bytes).
pub fn of_weights(checkpoint: &Checkpoint) -> usize {
    let map = checkpoint.tensor_map();
    // Floats are used as they are stored, quantized numbers widened.
    let compute = |slice: &TensorSlice| {
        checkpoint.tensor(&slice.name).map_or(0, |info| {
            let rows = slice.rows.as_ref().map_or(info.shape[0], Range::len);
            let per_element = match info.format {
                Format::F16 | Format::Bf16 => 2,
                _ => 4,
            };
            rows * info.shape.iter().skip(1).product::<usize>() * per_element
        })
    };
    let linears = map.blocks.iter().flat_map(|block| block.linears.values()).chain([&map.output]);
    let embedding = checkpoint.tensor(&map.embedding.name).map_or(0, |info| info.bytes.len());
    linears.map(|linear| compute(&linear.weight)).sum::<usize>() + embedding
}

/// Bytes of random bf16 weights in the shapes of `description`.
pub fn of_random_weights(description: &ModelDescription) -> usize {
    let block = |block: &triad_model::description::BlockDescription| -> usize {
        block.linears(description.hidden).iter().map(|shape: &LinearShape| shape.out_features * shape.in_features).sum()
    };
    let matrices = if description.tied_output { 1 } else { 2 };
    let embedding = matrices * description.vocab * description.hidden;
    (description.blocks.iter().map(block).sum::<usize>() + embedding) * 2
}

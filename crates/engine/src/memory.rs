//! How much memory a run needs, before it needs it.

use std::ops::Range;

use serde::Serialize;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{BlockDescription, ModelDescription};
use triad_model::tensor::Format;
use triad_model::tensor_map::TensorSlice;

use crate::execute::ProcessorOptions;
use crate::forward::Buffers;
use crate::kv::KvFormat;

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
        kv_cache: description.kv_bytes_per_token(|head_dim| format.bytes(head_dim)) * context,
        activations: Buffers::bytes_per_row(description) * chunk.min(context) + description.vocab * size_of::<f32>(),
    }
}

/// What several processors add: buffers for every chunk in flight but one and, where one of them is an NPU, for the shadows
/// of each.
pub fn of_chunks_in_flight(
    description: &ModelDescription,
    context: usize,
    chunk: usize,
    chunks_in_flight: usize,
    processors: &[ProcessorOptions],
) -> usize {
    let chunk = chunk.min(context);
    if processors.len() < 2 || chunk == 0 {
        return 0;
    }
    let shadows_apart = processors.iter().any(|processor| processor.description.multiplies_alone());
    let chunks = chunks_in_flight.min(context.div_ceil(chunk));
    let shadows = if shadows_apart { Buffers::shadow_bytes_per_row(description) } else { 0 };
    chunk * (Buffers::bytes_per_row(description) * chunks.saturating_sub(1) + shadows * chunks)
}

/// Bytes of the weights of an opened model, by where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Used in place, from the mapped file: what does not fit in memory is read again.
    pub mapped: usize,
    /// Widened to f32, in memory of their own: what does not fit cannot run.
    pub widened: usize,
}

impl WeightBytes {
    /// All of them, as [`Weights::bytes`](crate::weights::Weights::bytes) counts them.
    pub fn total(&self) -> usize {
        self.mapped + self.widened
    }
}

/// What the weights of an opened model will take, without loading them. (Floats that are not aligned in
/// their file are widened, too, and not counted as such here.)
pub fn of_weights(checkpoint: &Checkpoint) -> WeightBytes {
    let map = checkpoint.tensor_map();
    let mut bytes = WeightBytes::default();
    let linears = map.blocks.iter().flat_map(|block| block.linears.values()).chain([&map.output]);
    for TensorSlice { name, rows } in linears.map(|linear| &linear.weight) {
        let Ok(info) = checkpoint.tensor(name) else { continue };
        let rows = rows.as_ref().map_or(info.shape[0], Range::len);
        let elements = rows * info.shape.iter().skip(1).product::<usize>();
        match info.format {
            Format::F32 => bytes.mapped += 4 * elements,
            Format::F16 | Format::Bf16 => bytes.mapped += 2 * elements,
            _ => bytes.widened += 4 * elements,
        }
    }
    bytes.mapped += checkpoint.tensor(&map.embedding.name).map_or(0, |info| info.bytes.len());
    bytes
}

/// Bytes of random bf16 weights in the shapes of `description`.
pub fn of_random_weights(description: &ModelDescription) -> usize {
    let block = |block: &BlockDescription| -> usize {
        block.linears(description.hidden).iter().map(|shape| shape.out_features * shape.in_features).sum()
    };
    let matrices = if description.tied_output { 1 } else { 2 };
    let embedding = matrices * description.vocab * description.hidden;
    (description.blocks.iter().map(block).sum::<usize>() + embedding) * 2
}

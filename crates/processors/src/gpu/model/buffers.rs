//! The buffers that the steps of a model share.

use triad_model::description::{BlockDescription, ModelDescription};
use wgpu::BufferUsages as Usage;

use super::super::context::Context;
use super::description::attention_of;
use crate::error::Result;
use crate::model::{DeviceModel, DeviceWeight};

/// Purpose of a buffer. In its shapes, `rows` is the number of rows of a chunk and `outputs` the number of rows whose
/// logits are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Residual stream `[rows, hidden]`.
    Stream,
    /// Normed residual stream `[rows, hidden]`.
    Normed,
    /// Queries, keys and values `[rows, heads + 2 · kv_heads, head_dim]`.
    Heads,
    /// Output of attention `[rows, heads, head_dim]`.
    Attended,
    /// Output of attention or the feed-forward that is normed before it is added `[rows, hidden]`.
    Projected,
    /// `[rows, width]`, twice if there is a gate.
    GateUp,
    /// Activated inner values of the feed-forward `[rows, width]`.
    Inner,
    /// INT8 input of W8A8 layers, `[rows, in_features]`, four numbers per word; then the scale of each row.
    Quantized,
    /// Scale and outliers of each row of the INT8 input, `[rows, 1 + in_features, 2]`.
    Outliers,
    /// `[outputs, vocab]`.
    Logits,
    /// Cosines and sines of each rotation, `[rows, pairs, 2]`.
    Angles,
    /// Keys and values of the chunk in each layer, `[2, rows, kv_heads, head_dim]` in f16.
    Returned,
    /// Norm weights and biases.
    Parameters,
    /// Table of a call, described in `call.wgsl`.
    Table,
    /// Partial attention results of each split.
    Parts,
    /// Outputs of a product that another processor computed.
    Computed,
    /// Staging buffer from which the CPU reads.
    Staging,
}

/// Number of places.
const PLACES: usize = 17;
/// Bytes of an f32 or u32 number.
pub(super) const WORD: usize = 4;
/// Numbers in a quad.
pub(super) const QUAD: usize = 4;

impl Place {
    fn describe(self) -> (&'static str, Usage) {
        let storage = Usage::STORAGE | Usage::COPY_DST | Usage::COPY_SRC;
        match self {
            Self::Parameters => ("norms and biases", storage),
            Self::Table => ("the table of a chunk", storage),
            Self::Parts => ("parts of attention", storage),
            Self::Logits => ("logits", storage),
            Self::Staging => ("outputs", Usage::MAP_READ | Usage::COPY_DST),
            _ => ("activations", storage),
        }
    }
}

/// The buffers. Those whose size depends on the length of sequences grow.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Number of times that a buffer was replaced by a larger one.
    pub generation: u64,
    list: Vec<wgpu::Buffer>,
}

impl Buffers {
    /// Allocates buffers for chunks of up to `rows` rows and logits of up to `outputs` of them.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn new(
        context: &Context,
        model: &DeviceModel,
        parameters: &[f32],
        (rows, outputs): (usize, usize),
    ) -> Result<Self> {
        let description = model.description;
        let hidden = rows * description.hidden;
        let widest = |width: &dyn Fn(&BlockDescription) -> usize| {
            rows * description.blocks.iter().map(width).max().unwrap_or(0)
        };
        let post_norms = model
            .blocks
            .iter()
            .any(|block| block.attention_post_norm.is_some());
        let linears = model.blocks.iter().flat_map(|block| &block.linears);
        let widest_int8 = linears.filter_map(|(_, layer)| match layer.weight {
            DeviceWeight::Int8(weight, _) => Some(weight.in_features),
            DeviceWeight::Float(_) => None,
        });
        let widest_int8 = widest_int8.max().unwrap_or(0);
        let words = |place: Place| match place {
            Place::Stream | Place::Normed => hidden,
            Place::Projected if post_norms => hidden,
            Place::Heads => widest(&|block| {
                (attention_of(block).heads + 2 * attention_of(block).kv_heads)
                    * attention_of(block).head_dim
            }),
            Place::Attended => {
                widest(&|block| attention_of(block).heads * attention_of(block).head_dim)
            }
            Place::GateUp => widest(&|block| {
                block.feed_forward.width * if block.feed_forward.gated { 2 } else { 1 }
            }),
            Place::Inner => widest(&|block| block.feed_forward.width),
            Place::Quantized => rows * (widest_int8 / QUAD + 1),
            Place::Outliers if widest_int8 > 0 => 2 * rows * (1 + widest_int8),
            Place::Logits => outputs * description.vocab,
            Place::Angles => {
                rows * model
                    .rotations
                    .iter()
                    .map(|one| 2 * one.frequencies.len())
                    .sum::<usize>()
            }
            Place::Returned => returned_words(description, rows),
            Place::Parameters => parameters.len(),
            Place::Projected
            | Place::Outliers
            | Place::Table
            | Place::Parts
            | Place::Computed
            | Place::Staging => 0,
        };
        let list = ALL.map(|place| {
            let (what, usage) = place.describe();
            context.buffer(what, (words(place) * WORD) as u64, usage)
        });
        let list = list.into_iter().collect::<Result<Vec<_>>>()?;
        let buffers = Self {
            generation: 0,
            list,
        };
        context.queue.write_buffer(
            buffers.get(Place::Parameters),
            0,
            bytemuck::cast_slice(parameters),
        );
        Ok(buffers)
    }

    /// Grows a buffer to at least `words` words, and somewhat more, so that growing is rare.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn reserve(&mut self, context: &Context, place: Place, words: usize) -> Result<()> {
        let bytes = (words * WORD) as u64;
        if self.get(place).size() < bytes {
            let (what, usage) = place.describe();
            let more = (bytes + bytes / 2).min(context.most_bytes()).max(bytes);
            self.list[place as usize] = context.buffer(what, more, usage)?;
            self.generation += 1;
        }
        Ok(())
    }

    pub fn get(&self, place: Place) -> &wgpu::Buffer {
        &self.list[place as usize]
    }
}

/// Returns the number of words of the keys and values of `rows` rows in all layers.
pub(super) fn returned_words(description: &ModelDescription, rows: usize) -> usize {
    let of_block =
        |block: &BlockDescription| attention_of(block).kv_heads * attention_of(block).head_dim;
    rows * description.blocks.iter().map(of_block).sum::<usize>()
}

const ALL: [Place; PLACES] = [
    Place::Stream,
    Place::Normed,
    Place::Heads,
    Place::Attended,
    Place::Projected,
    Place::GateUp,
    Place::Inner,
    Place::Quantized,
    Place::Outliers,
    Place::Logits,
    Place::Angles,
    Place::Returned,
    Place::Parameters,
    Place::Table,
    Place::Parts,
    Place::Computed,
    Place::Staging,
];

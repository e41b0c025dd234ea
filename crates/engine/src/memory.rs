//! Estimates of the memory that a run needs.

use serde::Serialize;
use triad_kernels::attention::PAGE;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{BlockDescription, ModelDescription};
use triad_model::tensor_map::{Part, TensorSlice, rows_of};

use crate::forward::Buffers;
use crate::kv::{KvFormat, checkpoint_bytes, state_bytes};
use crate::session::WAITING_ROWS;

/// The bytes that a run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Weights in the format used for compute.
    pub weights: usize,
    /// Keys and values of the whole context, and the states of mixers, with those of a head that predicts one more token.
    pub kv_cache: usize,
    /// Activations of one chunk, or of the longest text of an encoder, and logits of one token; those of a head, and the
    /// hidden states that wait for it.
    pub activations: usize,
}

impl Memory {
    /// Returns the total bytes.
    pub fn total(&self) -> usize {
        self.weights + self.kv_cache + self.activations
    }
}

/// Returns the memory of a session of `context` tokens in chunks of `chunk`, with `weights` bytes of weights.
pub fn of_session(
    description: &ModelDescription,
    weights: usize,
    context: usize,
    chunk: usize,
    format: KvFormat,
) -> Memory {
    // An encoder reads a text as a whole.
    let rows = match description.is_encoder() {
        true => chunk.max(context),
        false => chunk.min(context),
    };
    let head = description.mtp_model().map(|head| {
        let of_head = of_session(&head, 0, context, chunk, format);
        let waiting = WAITING_ROWS * description.hidden * size_of::<f32>();
        (of_head.kv_cache, of_head.activations + waiting)
    });
    let (kv_of_head, activations_of_head) = head.unwrap_or_default();
    Memory {
        weights,
        kv_cache: kv_of_head
            + description.kv_bytes_per_token(|head_dim| format.bytes(head_dim)) * context
            + checkpoint_bytes(description) * context.div_ceil(PAGE)
            + state_bytes(description),
        activations: Buffers::bytes_per_row(description) * rows
            + description.vocab * size_of::<f32>()
            + activations_of_head,
    }
}

/// Returns the bytes of an opened model's weights in the format used for compute, without loading them. If they stay
/// mapped, parts that do not fit in memory are read again when needed.
pub fn of_weights(checkpoint: &Checkpoint) -> usize {
    let map = checkpoint.tensor_map();
    let linears = map
        .blocks
        .iter()
        .flat_map(|block| block.linears.values())
        .chain([&map.output]);
    let bytes_of = |slice: &TensorSlice| {
        if let Some(tensor) = checkpoint.quantized().get(&slice.name) {
            let [rows, columns] = tensor.shape();
            return tensor.representation().bytes([slice.rows(rows), columns]);
        }
        let Ok(info) = checkpoint.tensor(&slice.name) else {
            return 0;
        };
        if let Some(Part::Columns { rows, columns }) = &slice.part {
            return info.bytes.len() / info.elements().max(1) * rows.len() * columns.len();
        }
        let rows = rows_of(&info.shape).max(1);
        info.bytes.len() / rows * slice.rows(rows)
    };
    let of_blocks = map
        .blocks
        .iter()
        .filter_map(|block| block.token_input.as_ref());
    let token_inputs = map.token_inputs.iter();
    let of_streams = map.blocks.iter().filter_map(|block| block.streams.as_ref());
    let streams = map.streams.iter();
    let head = map.mtp.iter();
    let head = head.flat_map(|it| {
        let linears = it.block.linears.values();
        linears.map(|linear| &linear.weight).chain([&it.projection])
    });
    linears
        .map(|linear| &linear.weight)
        .chain([&map.embedding])
        .chain(&map.added_inputs.positions)
        .chain(&map.added_inputs.token_types)
        .chain(map.head.iter().map(|layer| &layer.linear.weight))
        .chain(of_blocks.flat_map(|input| [&input.gate, &input.output]))
        .chain(token_inputs.flat_map(|inputs| [&inputs.table, &inputs.projection]))
        .chain(of_streams.flat_map(|it| [&it.router, &it.left, &it.right]))
        .chain(streams.flat_map(|it| it.projections.iter().chain(&it.outputs)))
        .chain(head)
        .map(bytes_of)
        .sum::<usize>()
        + of_mixers(checkpoint.description())
}

/// Returns the bytes of the weights of mixers, which are in f32.
fn of_mixers(description: &ModelDescription) -> usize {
    let weights = description.blocks.iter().flat_map(|it| it.mixer.weights());
    let values = weights.map(|(_, shape)| shape.iter().product::<usize>());
    values.sum::<usize>() * size_of::<f32>()
}

/// Returns the bytes of weights of which at most `limit` bytes of experts stay in memory; all of them have `bytes`.
pub fn of_limited_experts(description: &ModelDescription, bytes: u64, limit: u64) -> u64 {
    let shapes = description
        .blocks
        .iter()
        .flat_map(|block| block.linears(description.hidden));
    let (mut experts, mut others) = (0.0, (description.vocab * description.hidden) as f64);
    for shape in shapes {
        let parameters = shape.parameters() as f64;
        if shape.linear.is_of_expert() {
            experts += parameters;
        } else {
            others += parameters;
        }
    }
    let of_experts = (bytes as f64 * experts / (experts + others)) as u64;
    bytes - of_experts + of_experts.min(limit)
}

/// Returns the bytes of random bf16 weights in the shapes of `description`.
pub fn of_random_weights(description: &ModelDescription) -> usize {
    let block = |block: &BlockDescription| -> usize {
        block
            .linears(description.hidden)
            .iter()
            .map(|shape| shape.out_features * shape.in_features)
            .sum()
    };
    let matrices = if description.tied_output { 1 } else { 2 };
    let embedding = matrices * description.vocab * description.hidden;
    let token_inputs = description.token_inputs.map_or(0, |inputs| {
        let rows = inputs.table_rows(description.vocab);
        let of_block = inputs.width * (rows + 3 * description.hidden);
        description.blocks.len() * of_block
    });
    let streams = description.streams.map_or(0, |streams| {
        let of_block = (streams.count + 2 * streams.rank) * description.hidden;
        let shared = 2 * (streams.count - 1) * description.hidden * description.hidden;
        description.blocks.len() * of_block + shared
    });
    (description.blocks.iter().map(block).sum::<usize>() + embedding + token_inputs + streams) * 2
        + of_mixers(description)
}

//! The six subgraphs of a block ([`Role`]), cut where the number format changes: a float one ends by quantizing what
//! the INT8 one behind it reads. Each works on the buffers of one chunk; attention on the cache of its block, too.

use std::ops::Range;

use smallvec::SmallVec;
use triad_kernels::Phase;
use triad_kernels::activation::{Activation, activate, activate_and_multiply, add};
use triad_kernels::attention::{Precision, Row, Shape};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_model::description::{self, Linear, ModelDescription, Residual, RopePairing};
use triad_plan::graph::Role;

use super::{Buffers, Rotation, Segment};
use crate::error::Result;
use crate::linear::{Multiplier, Observer};
use crate::linear_input::LinearInput;
use crate::weights::{Block, Norm, Weights};

/// Sequences that decode together without an allocation.
const DECODED_TOGETHER: usize = 16;
/// Rows handled by one task of an elementwise operator.
const TASK_ROWS: usize = 16;

/// What all chunks of a forward pass have in common.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) description: &'a ModelDescription,
    pub(crate) weights: &'a Weights,
    pub(crate) rotation: &'a Rotation,
    pub(crate) phase: Phase,
}

impl Pass<'_> {
    /// Fills the residual stream with the embedding of `tokens`, which `segments` cover in order.
    pub(crate) fn begin(&self, tokens: &[u32], segments: &[Segment], buffers: &mut Buffers) {
        for (token, x) in tokens.iter().zip(buffers.x.chunks_exact_mut(self.description.hidden)) {
            self.weights.embed(*token, x);
            x.iter_mut().for_each(|x| *x *= self.description.embedding_scale);
        }
        buffers.angles.resize_with(self.rotation.distinct.len(), Angles::default);
        for (angles, (frequencies, factor)) in buffers.angles.iter_mut().zip(&self.rotation.distinct) {
            angles.fill(segments.iter().flat_map(Segment::positions), frequencies, *factor);
        }
    }

    /// Adds what the last block says to the residual stream of a chunk of `rows` tokens.
    pub(crate) fn end(&self, rows: usize, buffers: &mut Buffers) {
        if let Some(last) = self.weights.blocks.last() {
            self.add_projected(last.feed_forward_post_norm.as_ref(), rows, buffers);
        }
    }

    /// One subgraph of `block` on the chunk in `buffers`, which has begun and has been through all subgraphs before
    /// this one.
    ///
    /// # Errors
    /// If the products fail. The buffers then hold nothing that anyone could go on with.
    #[allow(clippy::too_many_arguments, reason = "a subgraph, a chunk, and what both meet")]
    pub(crate) fn subgraph(
        &self,
        block: usize,
        role: Role,
        segments: &[Segment],
        buffers: &mut Buffers,
        multiplier: &mut Multiplier,
        observer: &mut Option<Observer>,
    ) -> Result<()> {
        let rows = segments.last().map_or(0, |segment| segment.rows.end);
        match role {
            Role::AttentionNorm => self.attention_norm(block, rows, buffers, observer),
            Role::QueryKeyValue => self.query_key_value(block, rows, buffers, multiplier)?,
            Role::Attention => self.attention(block, segments, buffers, observer),
            Role::AttentionOutput => self.attention_output(block, rows, buffers, multiplier)?,
            Role::FeedForwardNorm => self.feed_forward_norm(block, rows, buffers, observer),
            Role::FeedForward => self.feed_forward(block, rows, buffers, multiplier, observer)?,
        }
        Ok(())
    }

    /// Residual of the block before; norm; quantize.
    fn attention_norm(&self, index: usize, rows: usize, buffers: &mut Buffers, observer: &mut Option<Observer>) {
        if let Some(before) = index.checked_sub(1) {
            self.add_projected(self.weights.blocks[before].feed_forward_post_norm.as_ref(), rows, buffers);
        }
        let block = &self.weights.blocks[index];
        let Buffers { x, normed, quantizer, .. } = buffers;
        let normed = &mut normed[..rows * self.description.hidden];
        normalize(&block.attention_norm, &x[..normed.len()], normed);
        observe(observer, index, LinearInput::Attention, normed);
        quantizer.read(block, LinearInput::Attention, normed, rows, self.phase);
    }

    /// From the quantized norm to queries, keys and values.
    fn query_key_value(
        &self,
        index: usize,
        rows: usize,
        buffers: &mut Buffers,
        multiplier: &mut Multiplier,
    ) -> Result<()> {
        let [query, key_value] = self.attention_widths(index);
        let Buffers { normed, queries, keys, values, quantizer, .. } = buffers;
        let outs = &mut [
            (Linear::Query, &mut queries[..rows * query]),
            (Linear::Key, &mut keys[..rows * key_value]),
            (Linear::Value, &mut values[..rows * key_value]),
        ];
        let normed = &normed[..rows * self.description.hidden];
        quantizer.apply((index, self.block(index)), LinearInput::Attention, normed, rows, multiplier, outs)
    }

    /// RoPE; keys and values to the cache; attention; quantize.
    fn attention(&self, index: usize, segments: &[Segment], buffers: &mut Buffers, observer: &mut Option<Observer>) {
        let (description, weights) = (&self.description.blocks[index].attention, self.block(index));
        let (head_dim, heads, kv_heads) = (description.head_dim, description.heads, description.kv_heads);
        let [query, key_value] = self.attention_widths(index);
        let rows = segments.last().map_or(0, |segment| segment.rows.end);
        let Buffers { queries, keys, values, attended, angles, quantizer, .. } = buffers;
        let (queries, attended) = (&mut queries[..rows * query], &mut attended[..rows * query]);
        let (keys, values) = (&mut keys[..rows * key_value], &values[..rows * key_value]);
        let angles = &angles[self.rotation.of_block[index]];
        let pairing = match description.rope.pairing {
            RopePairing::Halves => Pairing::Halves,
            RopePairing::Adjacent => Pairing::Adjacent,
        };
        let rotate = |x: &mut [f32], heads: usize, norm: Option<&Norm>| {
            for_each_chunk(chunks_mut(x, TASK_ROWS * heads * head_dim), 1, |task, x| {
                if let Some(norm) = norm {
                    rms_norm_in_place(x, &norm.weight, norm.epsilon);
                }
                rope(x, head_dim, heads, angles, task * TASK_ROWS, pairing);
            });
        };
        rotate(queries, heads, weights.query_norm.as_ref());
        rotate(keys, kv_heads, weights.key_norm.as_ref());
        let shape = Shape {
            heads,
            kv_heads,
            head_dim,
            scale: description.scale,
            window: description.window,
            soft_cap: description.soft_cap,
            // Where linear layers round to INT8, attention need not be more exact than bf16.
            precision: if weights.inputs.is_some() { Precision::Fast } else { Precision::Exact },
        };
        let of_keys = |rows: &Range<usize>| rows.start * key_value..rows.end * key_value;
        match self.phase {
            Phase::Prefill => {
                for Segment { cache, rows, position } in segments {
                    let mut cache = cache.block(index);
                    cache.write(&keys[of_keys(rows)], &values[of_keys(rows)], *position);
                    let of_queries = rows.start * query..rows.end * query;
                    let (queries, attended) = (&queries[of_queries.clone()], &mut attended[of_queries]);
                    triad_kernels::attention(queries, *position, &*cache, &shape, attended);
                }
            }
            // All rows at once, each of which reads the cache of its own sequence.
            Phase::Decode => {
                let caches: SmallVec<[_; DECODED_TOGETHER]> = segments
                    .iter()
                    .map(|Segment { cache, rows, position }| {
                        let mut cache = cache.block(index);
                        cache.write(&keys[of_keys(rows)], &values[of_keys(rows)], *position);
                        cache
                    })
                    .collect();
                let rows: SmallVec<[_; DECODED_TOGETHER]> = segments
                    .iter()
                    .zip(&caches)
                    .flat_map(|(segment, cache)| segment.positions().map(|position| Row { cache: &**cache, position }))
                    .collect();
                triad_kernels::attention_of_rows(queries, &rows, &shape, attended);
            }
        }
        observe(observer, index, LinearInput::AttentionOutput, attended);
        quantizer.read(weights, LinearInput::AttentionOutput, attended, rows, self.phase);
    }

    /// From what the heads found to what is added to the residual stream.
    fn attention_output(
        &self,
        index: usize,
        rows: usize,
        buffers: &mut Buffers,
        multiplier: &mut Multiplier,
    ) -> Result<()> {
        let [query, _] = self.attention_widths(index);
        let Buffers { attended, projected, quantizer, .. } = buffers;
        let outs = &mut [(Linear::AttentionOutput, &mut projected[..rows * self.description.hidden])];
        let attended = &attended[..rows * query];
        quantizer.apply((index, self.block(index)), LinearInput::AttentionOutput, attended, rows, multiplier, outs)
    }

    /// Residual; norm, unless attention's serves both halves; quantize.
    fn feed_forward_norm(&self, index: usize, rows: usize, buffers: &mut Buffers, observer: &mut Option<Observer>) {
        let block = self.block(index);
        self.add_projected(block.attention_post_norm.as_ref(), rows, buffers);
        let Buffers { x, normed, quantizer, .. } = buffers;
        let normed = &mut normed[..rows * self.description.hidden];
        if let Some(norm) = &block.feed_forward_norm {
            normalize(norm, &x[..normed.len()], normed);
        }
        let is_parallel = self.description.blocks[index].residual == Residual::Parallel;
        debug_assert_eq!(block.feed_forward_norm.is_none(), is_parallel);
        observe(observer, index, LinearInput::FeedForward, normed);
        quantizer.read(block, LinearInput::FeedForward, normed, rows, self.phase);
    }

    /// Gate and up; activation; requantize; down.
    fn feed_forward(
        &self,
        index: usize,
        rows: usize,
        buffers: &mut Buffers,
        multiplier: &mut Multiplier,
        observer: &mut Option<Observer>,
    ) -> Result<()> {
        let (feed_forward, block) = (&self.description.blocks[index].feed_forward, self.block(index));
        let width = feed_forward.width;
        let Buffers { normed, gate, up, projected, quantizer, .. } = buffers;
        let normed = &normed[..rows * self.description.hidden];
        let (gate, up) = (&mut gate[..rows * width], &mut up[..rows * width]);
        let projected = &mut projected[..rows * self.description.hidden];
        if quantizer.feed_forward((index, block), rows, multiplier, up, projected)? {
            return Ok(());
        }
        let activation = activation(feed_forward.activation);
        let task = TASK_ROWS * width;
        let read = LinearInput::FeedForward;
        let inner = if feed_forward.gated {
            let outs = &mut [(Linear::Up, &mut *up), (Linear::Gate, &mut *gate)];
            quantizer.apply((index, block), read, normed, rows, multiplier, outs)?;
            for_each_chunk(chunks_mut(gate, task), 1, |index, gate| {
                activate_and_multiply(gate, &up[index * task..][..gate.len()], activation);
            });
            gate
        } else {
            quantizer.apply((index, block), read, normed, rows, multiplier, &mut [(Linear::Up, &mut *up)])?;
            for_each_chunk(chunks_mut(up, task), 1, |_, up| activate(up, activation));
            up
        };
        observe(observer, index, LinearInput::Down, inner);
        quantizer.read(block, LinearInput::Down, inner, rows, self.phase);
        let outs = &mut [(Linear::Down, projected)];
        quantizer.apply((index, block), LinearInput::Down, inner, rows, multiplier, outs)
    }

    /// Adds what half a block says to the residual stream, normed where its family does that.
    fn add_projected(&self, norm: Option<&Norm>, rows: usize, buffers: &mut Buffers) {
        let size = rows * self.description.hidden;
        let (x, projected) = (&mut buffers.x[..size], &mut buffers.projected[..size]);
        if let Some(norm) = norm {
            let task = TASK_ROWS * norm.weight.len();
            // Always an RMS norm.
            for_each_chunk(chunks_mut(projected, task), 1, |_, x| rms_norm_in_place(x, &norm.weight, norm.epsilon));
        }
        add_rows(x, projected);
    }

    fn block(&self, index: usize) -> &Block {
        &self.weights.blocks[index]
    }

    /// Widths of all query heads and of all key heads.
    fn attention_widths(&self, index: usize) -> [usize; 2] {
        let attention = &self.description.blocks[index].attention;
        [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim)
    }
}

/// The kernel of an activation.
pub(crate) fn activation(described: description::Activation) -> Activation {
    match described {
        description::Activation::Silu => Activation::Silu,
        description::Activation::GeluTanh => Activation::GeluTanh,
        description::Activation::Gelu => Activation::Gelu,
    }
}

fn observe(observer: &mut Option<Observer>, block: usize, input: LinearInput, x: &[f32]) {
    if let Some(observer) = observer {
        observer(block, input, x);
    }
}

pub(super) fn normalize(norm: &Norm, x: &[f32], out: &mut [f32]) {
    let task = TASK_ROWS * norm.weight.len();
    for_each_chunk(chunks_mut(out, task), 1, |index, out| {
        let x = &x[index * task..][..out.len()];
        match &norm.bias {
            None => rms_norm(x, &norm.weight, norm.epsilon, out),
            Some(bias) => layer_norm(x, &norm.weight, bias, norm.epsilon, out),
        }
    });
}

fn add_rows(x: &mut [f32], y: &[f32]) {
    const TASK: usize = 1 << 14;
    for_each_chunk(chunks_mut(x, TASK), 1, |index, x| add(x, &y[index * TASK..][..x.len()]));
}

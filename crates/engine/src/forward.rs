//! One forward pass: the tokens of a chunk through all blocks.
//!
//! The buffers are allocated once a session, for the longest chunk; the pass itself allocates nothing that
//! grows with the model.

use std::ops::Range;

use triad_kernels::activation::{Activation, activate, activate_and_multiply, add, soft_cap};
use triad_kernels::attention::{Precision, Shape};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_kernels::{attention, matmul};
use triad_model::description::{self, BlockDescription, ModelDescription, Residual, Rope, RopePairing, RopeScaling};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::kv_cache::KvCache;
use crate::linear::{Observer, Phase, Quantizer};
use crate::linear_input::LinearInput;
use crate::weights::{Norm, Weight, Weights};

/// Rows handled by one task of an elementwise operator.
const TASK_ROWS: usize = 16;

/// Activations of one chunk. Shapes with `rows` the tokens of the chunk.
pub(crate) struct Buffers {
    /// Residual stream `[rows, hidden]`.
    x: Vec<f32>,
    /// Its norm `[rows, hidden]`.
    normed: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    queries: Vec<f32>,
    /// `[rows, kv_heads, head_dim]`.
    keys: Vec<f32>,
    /// `[rows, kv_heads, head_dim]`.
    values: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    attended: Vec<f32>,
    /// Output of attention and of the feed-forward `[rows, hidden]`.
    projected: Vec<f32>,
    /// `[rows, width]`.
    gate: Vec<f32>,
    /// `[rows, width]`.
    up: Vec<f32>,
    /// RoPE of the chunk's positions, one for each different [`Rope`] of the model.
    angles: Vec<Angles>,
    /// What linear layers read, in INT8.
    pub(crate) quantizer: Quantizer,
}

/// What a session knows about RoPE before it sees a token.
pub(crate) struct Rotation {
    /// Different ones in the model: frequencies `[dims / 2]` and the factor on cosine and sine.
    distinct: Vec<(Vec<f32>, f32)>,
    /// Which of them each block uses.
    of_block: Vec<usize>,
}

impl Rotation {
    /// For a session of `context` tokens, which decides between LongRoPE's two sets of divisors.
    pub(crate) fn new(description: &ModelDescription, context: usize) -> Self {
        let mut ropes: Vec<&Rope> = Vec::new();
        let of_block = description.blocks.iter().map(|block| {
            let rope = &block.attention.rope;
            ropes.iter().position(|other| *other == rope).unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            })
        });
        let of_block = of_block.collect();
        Self { distinct: ropes.iter().map(|rope| frequencies(rope, context)).collect(), of_block }
    }
}

fn frequencies(rope: &Rope, context: usize) -> (Vec<f32>, f32) {
    let (divisor, factor): (Box<dyn Fn(usize) -> f32 + '_>, f32) = match &rope.scaling {
        RopeScaling::None => (Box::new(|_| 1.0), 1.0),
        RopeScaling::Linear { factor } => (Box::new(|_| *factor), 1.0),
        RopeScaling::Factors { factors } => (Box::new(|pair| factors[pair]), 1.0),
        RopeScaling::LongRope { short, long, original_context, attention_factor } => {
            let factors = if context > *original_context { long } else { short };
            (Box::new(|pair| factors[pair]), *attention_factor)
        }
    };
    let frequency = |pair: usize| {
        let exponent = 2.0 * pair as f64 / rope.dims as f64;
        (f64::from(rope.base).powf(-exponent) / f64::from(divisor(pair))) as f32
    };
    ((0..rope.dims / 2).map(frequency).collect(), factor)
}

impl Buffers {
    pub(crate) fn new(description: &ModelDescription, rows: usize) -> Self {
        let [query, key_value, width] = widths(description);
        let zeros = |width: usize| vec![0.0; rows * width];
        Self {
            x: zeros(description.hidden),
            normed: zeros(description.hidden),
            queries: zeros(query),
            keys: zeros(key_value),
            values: zeros(key_value),
            attended: zeros(query),
            projected: zeros(description.hidden),
            gate: zeros(width),
            up: zeros(width),
            angles: Vec::new(),
            quantizer: Quantizer::default(),
        }
    }

    /// Bytes for each row.
    pub(crate) fn bytes_per_row(description: &ModelDescription) -> usize {
        let [query, key_value, width] = widths(description);
        (3 * description.hidden + 2 * query + 2 * key_value + 2 * width) * size_of::<f32>()
    }
}

/// Widest query, key and feed-forward of all blocks.
fn widths(description: &ModelDescription) -> [usize; 3] {
    let widest = |width: &dyn Fn(&BlockDescription) -> usize| description.blocks.iter().map(width).max().unwrap_or(0);
    [
        widest(&|block| block.attention.heads * block.attention.head_dim),
        widest(&|block| block.attention.kv_heads * block.attention.head_dim),
        widest(&|block| block.feed_forward.width),
    ]
}

/// Rows of a chunk that are consecutive tokens of one sequence, the first of them at `position`.
///
/// A prompt's chunk is one segment. Several segments are several sequences that share what the session has seen:
/// every row stands alone but for attention, and there each segment in turn takes the place of the one before it
/// in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) rows: Range<usize>,
    pub(crate) position: usize,
}

impl Segment {
    fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows.len()
    }
}

/// A model and a session's parts, ready to run chunks.
pub(crate) struct Forward<'a> {
    pub(crate) description: &'a ModelDescription,
    pub(crate) weights: &'a Weights,
    pub(crate) rotation: &'a Rotation,
    pub(crate) cache: &'a mut KvCache,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) phase: Phase,
    pub(crate) observer: Option<Observer<'a>>,
}

impl Forward<'_> {
    /// Runs `tokens`, which `segments` cover in order, through all blocks: keys and values go to the cache, the
    /// residual stream stays in the buffers for [`Forward::logits`].
    pub(crate) fn run(&mut self, tokens: &[u32], segments: &[Segment], cancel: &Cancel) -> Result<()> {
        let (hidden, rows) = (self.description.hidden, tokens.len());
        for (token, x) in tokens.iter().zip(self.buffers.x.chunks_exact_mut(hidden)) {
            self.weights.embed(*token, x);
            x.iter_mut().for_each(|x| *x *= self.description.embedding_scale);
        }
        self.buffers.angles.resize_with(self.rotation.distinct.len(), Angles::default);
        for (angles, (frequencies, factor)) in self.buffers.angles.iter_mut().zip(&self.rotation.distinct) {
            angles.fill(segments.iter().flat_map(Segment::positions), frequencies, *factor);
        }
        for index in 0..self.description.blocks.len() {
            cancel.check()?;
            self.block(index, rows, segments);
        }
        Ok(())
    }

    /// Logits `[rows, vocab]` of the given rows of the last chunk.
    pub(crate) fn logits(&mut self, rows: impl ExactSizeIterator<Item = usize>, out: &mut [f32]) {
        let hidden = self.description.hidden;
        let count = rows.len();
        let Buffers { x, normed, projected, .. } = &mut *self.buffers;
        for (row, gathered) in rows.zip(projected.chunks_exact_mut(hidden)) {
            gathered.copy_from_slice(&x[row * hidden..(row + 1) * hidden]);
        }
        let normed = &mut normed[..count * hidden];
        normalize(&self.weights.output_norm, &projected[..count * hidden], normed);
        let output = &self.weights.output;
        let Weight::Float(weight) = &output.weight else { unreachable!("the output matrix reads float activations") };
        matmul(normed, count, weight.view(), weight.out_features(), output.bias.as_deref(), out);
        if let Some(cap) = self.description.logit_soft_cap {
            soft_cap(out, cap);
        }
    }

    fn block(&mut self, index: usize, rows: usize, segments: &[Segment]) {
        let (description, weights) = (&self.description.blocks[index], &self.weights.blocks[index]);
        let hidden = self.description.hidden;
        normalize(&weights.attention_norm, &self.buffers.x[..rows * hidden], &mut self.buffers.normed[..rows * hidden]);
        self.attention(index, rows, segments);
        let Buffers { x, normed, projected, .. } = &mut *self.buffers;
        let (x, normed, projected) =
            (&mut x[..rows * hidden], &mut normed[..rows * hidden], &mut projected[..rows * hidden]);
        post_normalize(weights.attention_post_norm.as_ref(), projected);
        add_rows(x, projected);
        if let Some(norm) = &weights.feed_forward_norm {
            normalize(norm, x, normed);
        }
        debug_assert_eq!(weights.feed_forward_norm.is_none(), description.residual == Residual::Parallel);
        self.feed_forward(index, rows);
        let Buffers { x, projected, .. } = &mut *self.buffers;
        let (x, projected) = (&mut x[..rows * hidden], &mut projected[..rows * hidden]);
        post_normalize(weights.feed_forward_post_norm.as_ref(), projected);
        add_rows(x, projected);
    }

    /// From `normed` to `projected`: query, key, value, RoPE, cache, attention, output.
    fn attention(&mut self, index: usize, rows: usize, segments: &[Segment]) {
        let (description, weights) = (&self.description.blocks[index].attention, &self.weights.blocks[index]);
        let (head_dim, heads, kv_heads) = (description.head_dim, description.heads, description.kv_heads);
        let buffers = &mut *self.buffers;
        let normed = &buffers.normed[..rows * self.description.hidden];
        let queries = &mut buffers.queries[..rows * heads * head_dim];
        let keys = &mut buffers.keys[..rows * kv_heads * head_dim];
        let values = &mut buffers.values[..rows * kv_heads * head_dim];
        observe(&mut self.observer, index, LinearInput::Attention, normed);
        let mut input = buffers.quantizer.input(weights, LinearInput::Attention, normed, rows, self.phase);
        input.apply(&weights.linears, description::Linear::Query, queries);
        input.apply(&weights.linears, description::Linear::Key, keys);
        input.apply(&weights.linears, description::Linear::Value, values);
        let angles = &buffers.angles[self.rotation.of_block[index]];
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
        let attended = &mut buffers.attended[..rows * heads * head_dim];
        for Segment { rows, position } in segments {
            let of_keys = rows.start * kv_heads * head_dim..rows.end * kv_heads * head_dim;
            let of_queries = rows.start * heads * head_dim..rows.end * heads * head_dim;
            self.cache.write(index, &keys[of_keys.clone()], &values[of_keys], *position, description);
            let cache = &self.cache.blocks[index];
            let (keys, values) = (cache.keys.view(), cache.values.view());
            let (queries, attended) = (&queries[of_queries.clone()], &mut attended[of_queries]);
            attention(queries, *position, keys, values, self.cache.context, &shape, attended);
        }
        let projected = &mut buffers.projected[..rows * self.description.hidden];
        observe(&mut self.observer, index, LinearInput::AttentionOutput, attended);
        let mut input = buffers.quantizer.input(weights, LinearInput::AttentionOutput, attended, rows, self.phase);
        input.apply(&weights.linears, description::Linear::AttentionOutput, projected);
    }

    /// From `normed` to `projected`.
    fn feed_forward(&mut self, index: usize, rows: usize) {
        let (feed_forward, weights) = (&self.description.blocks[index].feed_forward, &self.weights.blocks[index]);
        let hidden = self.description.hidden;
        let Buffers { normed, gate, up, projected, quantizer, .. } = &mut *self.buffers;
        let normed = &normed[..rows * hidden];
        let (gate, up) = (&mut gate[..rows * feed_forward.width], &mut up[..rows * feed_forward.width]);
        let activation = match feed_forward.activation {
            description::Activation::Silu => Activation::Silu,
            description::Activation::GeluTanh => Activation::GeluTanh,
            description::Activation::Gelu => Activation::Gelu,
        };
        let task = TASK_ROWS * feed_forward.width;
        observe(&mut self.observer, index, LinearInput::FeedForward, normed);
        let mut input = quantizer.input(weights, LinearInput::FeedForward, normed, rows, self.phase);
        input.apply(&weights.linears, description::Linear::Up, up);
        let inner = if feed_forward.gated {
            input.apply(&weights.linears, description::Linear::Gate, gate);
            for_each_chunk(chunks_mut(gate, task), 1, |index, gate| {
                activate_and_multiply(gate, &up[index * task..][..gate.len()], activation);
            });
            gate
        } else {
            for_each_chunk(chunks_mut(up, task), 1, |_, up| activate(up, activation));
            up
        };
        observe(&mut self.observer, index, LinearInput::Down, inner);
        let mut input = quantizer.input(weights, LinearInput::Down, inner, rows, self.phase);
        input.apply(&weights.linears, description::Linear::Down, &mut projected[..rows * hidden]);
    }
}

fn observe(observer: &mut Option<Observer>, block: usize, input: LinearInput, x: &[f32]) {
    if let Some(observer) = observer {
        observer(block, input, x);
    }
}

fn normalize(norm: &Norm, x: &[f32], out: &mut [f32]) {
    let task = TASK_ROWS * norm.weight.len();
    for_each_chunk(chunks_mut(out, task), 1, |index, out| {
        let x = &x[index * task..][..out.len()];
        match &norm.bias {
            None => rms_norm(x, &norm.weight, norm.epsilon, out),
            Some(bias) => layer_norm(x, &norm.weight, bias, norm.epsilon, out),
        }
    });
}

/// The norm on a half's output, where there is one; always an RMS norm.
fn post_normalize(norm: Option<&Norm>, x: &mut [f32]) {
    if let Some(norm) = norm {
        let task = TASK_ROWS * norm.weight.len();
        for_each_chunk(chunks_mut(x, task), 1, |_, x| rms_norm_in_place(x, &norm.weight, norm.epsilon));
    }
}

fn add_rows(x: &mut [f32], y: &[f32]) {
    const TASK: usize = 1 << 14;
    for_each_chunk(chunks_mut(x, TASK), 1, |index, x| add(x, &y[index * TASK..][..x.len()]));
}

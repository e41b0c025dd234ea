//! The activations of one chunk, and what a session knows about RoPE.

use triad_kernels::rope::Angles;
use triad_model::description::{BlockDescription, ModelDescription, Rope, RopeScaling};

use crate::linear::Quantizer;

/// Activations of one chunk. Shapes with `rows` the tokens of the chunk.
pub(crate) struct Buffers {
    /// Residual stream `[rows, hidden]`.
    pub(super) x: Vec<f32>,
    /// Its norm `[rows, hidden]`.
    pub(super) normed: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    pub(super) queries: Vec<f32>,
    /// `[rows, kv_heads, head_dim]`.
    pub(super) keys: Vec<f32>,
    /// `[rows, kv_heads, head_dim]`.
    pub(super) values: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    pub(super) attended: Vec<f32>,
    /// Output of attention and of the feed-forward `[rows, hidden]`.
    pub(super) projected: Vec<f32>,
    /// `[rows, width]`.
    pub(super) gate: Vec<f32>,
    /// `[rows, width]`.
    pub(super) up: Vec<f32>,
    /// RoPE of the chunk's positions, one for each different [`Rope`] of the model.
    pub(super) angles: Vec<Angles>,
    /// What linear layers read, in INT8.
    pub(crate) quantizer: Quantizer,
}

/// What a session knows about RoPE before it sees a token.
pub(crate) struct Rotation {
    /// Different ones in the model: frequencies `[dims / 2]` and the factor on cosine and sine.
    pub(super) distinct: Vec<(Vec<f32>, f32)>,
    /// Which of them each block uses.
    pub(super) of_block: Vec<usize>,
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

    /// The residual stream of some rows.
    pub(crate) fn residual(&self, rows: std::ops::Range<usize>, hidden: usize) -> &[f32] {
        &self.x[rows.start * hidden..rows.end * hidden]
    }

    /// Rows that there is room for.
    pub(crate) fn rows(&self, description: &ModelDescription) -> usize {
        self.x.len() / description.hidden
    }

    /// Bytes for each row.
    pub(crate) fn bytes_per_row(description: &ModelDescription) -> usize {
        let [query, key_value, width] = widths(description);
        let floats = 3 * description.hidden + 2 * query + 2 * key_value + 2 * width;
        // And the widest of what linear layers read, in INT8.
        floats * size_of::<f32>() + description.hidden.max(query).max(width)
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

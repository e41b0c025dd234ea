//! Parts of blocks that only some families have, as the readers of files give them to a draft.

use crate::description::{KeyValues, Latent, Residual, Rope, Streams};

/// The shape of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub width: usize,
    pub key_values: KeyValues,
    /// The standard deviations that are subtracted from gates.
    pub cutoff: Option<f32>,
}

/// The parts of a model whose blocks differ in shape.
#[derive(Debug)]
pub(super) struct OwnParts {
    pub shapes: Vec<BlockShape>,
    /// Width of the inputs by token, if there are some.
    pub token_width: Option<usize>,
    /// Rows of their table, if they are fewer than tokens.
    pub token_rows: Option<usize>,
    /// Whether the blocks have a factor on their output.
    pub scaled: bool,
    /// Several residual streams.
    pub streams: Option<Streams>,
    /// RoPE of the blocks without a window, and of those with one, if the family reads it in another way.
    pub ropes: Option<[Rope; 2]>,
}

/// The sizes of attention with latent vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub latent: Latent,
    /// The dimensions of a head's query that have RoPE.
    pub rope_dims: usize,
}

impl Sizes {
    /// Returns the width of the one head of keys.
    pub fn head_dim(&self) -> usize {
        self.latent.width + self.rope_dims
    }

    /// Returns the number by whose root query · key is divided, if scores have a factor.
    pub fn query_scalar(&self, factor: f64) -> f32 {
        let width = (self.latent.key_dim + self.rope_dims) as f64;
        (width / (factor * factor)) as f32
    }
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub has_attention: bool,
    pub has_experts: bool,
    pub residual: Residual,
}

/// The factors of the parts of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartFactors {
    /// On the output of attention.
    pub attention: f32,
    /// On that of another mixer.
    pub mixer: f32,
    /// On that of the feed-forward.
    pub feed_forward: f32,
    /// On the gates of the feed-forward.
    pub gate: f32,
}

impl PartFactors {
    /// Factors that change nothing.
    pub const NONE: Self = Self {
        attention: 1.0,
        mixer: 1.0,
        feed_forward: 1.0,
        gate: 1.0,
    };
}

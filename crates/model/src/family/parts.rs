//! Parts of blocks that only some families have, as the readers of files give them to a draft.

use crate::description::{Latent, Residual};

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

//! What both readers have gathered about a model, and its last checks before it becomes a description.

use super::malformed;
use super::traits::Family;
use crate::description::{
    Activation, Attention, BlockDescription, FeedForward, ModelDescription, Norm, NormKind, Rope,
};
use crate::error::Result;

/// Bounds on what a file may claim, far above every published model. They keep every product of two
/// of these numbers within 64 bits, and what is allocated for a description within a few megabytes.
pub(super) mod limits {
    pub const BLOCKS: usize = 1024;
    pub const HEADS: usize = 1024;
    pub const HEAD_DIM: usize = 1024;
    pub const HIDDEN: usize = 1 << 20;
    pub const WIDTH: usize = 1 << 22;
    pub const VOCAB: usize = 1 << 24;
    pub const CONTEXT: usize = 1 << 30;
}

/// A model as a file tells it, its sizes within [`limits`].
#[derive(Debug)]
pub(super) struct Draft {
    pub name: Option<String>,
    pub hidden: usize,
    pub vocab: usize,
    pub context: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub width: usize,
    pub epsilon: f32,
    /// Norm weights are stored less this.
    pub norm_offset: f32,
    /// Query · key is divided by the root of this.
    pub query_scalar: f32,
    pub qkv_bias: bool,
    pub attention_output_bias: bool,
    pub feed_forward_bias: bool,
    pub activation: Activation,
    pub score_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// Window of each block.
    pub windows: Vec<Option<usize>>,
    /// RoPE of the blocks that see everything.
    pub rope: Rope,
    /// RoPE of the blocks with a window.
    pub local_rope: Rope,
    pub tied: bool,
}

impl Draft {
    /// The description of this model, a member of `family`.
    pub fn describe(self, family: &Family) -> Result<ModelDescription> {
        self.check()?;
        let norm = |kind| Norm { kind, epsilon: self.epsilon, weight_offset: self.norm_offset };
        let block = |&window: &Option<usize>| BlockDescription {
            attention: Attention {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                scale: self.query_scalar.sqrt().recip(),
                qkv_bias: self.qkv_bias,
                output_bias: self.attention_output_bias,
                qk_norm: family.qk_norm.then(|| norm(NormKind::Rms)),
                window,
                soft_cap: self.score_soft_cap,
                rope: if window.is_some() { self.local_rope.clone() } else { self.rope.clone() },
            },
            feed_forward: FeedForward {
                width: self.width,
                gated: family.gated,
                activation: self.activation,
                bias: self.feed_forward_bias,
            },
            norm: norm(family.norm),
            residual: family.residual,
        };
        Ok(ModelDescription {
            family: family.name.to_owned(),
            name: self.name.clone(),
            hidden: self.hidden,
            vocab: self.vocab,
            context: self.context,
            embedding_scale: if family.scaled_embedding { (self.hidden as f32).sqrt() } else { 1.0 },
            blocks: self.windows.iter().map(block).collect(),
            output_norm: norm(family.norm),
            tied_output: self.tied,
            output_bias: family.all_biases,
            logit_soft_cap: self.logit_soft_cap,
        })
    }

    fn check(&self) -> Result<()> {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        if heads % kv_heads != 0 {
            return Err(malformed(format!(
                "{heads} attention heads can't share {kv_heads} key-value heads: expected a divisor of {heads}"
            )));
        }
        for rope in [&self.rope, &self.local_rope] {
            let dims = rope.dims;
            if dims == 0 || dims % 2 != 0 || dims > head_dim {
                return Err(malformed(format!(
                    "RoPE on {dims} dimensions of a head: expected an even number from 2 to the head's {head_dim}"
                )));
            }
        }
        let positive = [
            ("the norms' epsilon", Some(self.epsilon)),
            ("the base of RoPE", Some(self.rope.base)),
            ("the local base of RoPE", Some(self.local_rope.base)),
            ("the query's scalar", Some(self.query_scalar)),
            ("the soft cap of attention scores", self.score_soft_cap),
            ("the soft cap of logits", self.logit_soft_cap),
        ];
        for (what, value) in positive {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return Err(malformed(format!("{what} is {value}, expected a number above 0")));
            }
        }
        Ok(())
    }
}

//! The data about a model that both readers collect, and its last checks before it becomes a description.

use super::malformed;
use super::traits::Family;
use crate::description::{
    Activation, Attention, BlockDescription, FeedForward, ModelDescription, Norm, NormKind, Rope,
};
use crate::error::Result;

/// A model as a file describes it, with sizes within [`limits`](crate::description::limits).
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
    /// The number that norm weights lack in storage.
    pub norm_offset: f32,
    /// Query · key is divided by the root of this number.
    pub query_scalar: f32,
    pub qkv_bias: bool,
    pub attention_output_bias: bool,
    pub feed_forward_bias: bool,
    pub activation: Activation,
    pub score_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// Window of each block.
    pub windows: Vec<Option<usize>>,
    /// RoPE of the blocks with full attention.
    pub rope: Rope,
    /// RoPE of the blocks with a window.
    pub local_rope: Rope,
    pub tied: bool,
}

impl Draft {
    /// Returns the description of this model, a member of `family`.
    pub fn describe(self, family: &Family) -> Result<ModelDescription> {
        if !(self.query_scalar.is_finite() && self.query_scalar > 0.0) {
            return Err(malformed(format!(
                "the query's scalar is {}, expected a number above 0",
                self.query_scalar
            )));
        }
        let norm = |kind| Norm {
            kind,
            epsilon: self.epsilon,
            weight_offset: self.norm_offset,
        };
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
                rope: if window.is_some() {
                    self.local_rope.clone()
                } else {
                    self.rope.clone()
                },
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
        let description = ModelDescription {
            family: family.name.to_owned(),
            name: self.name.clone(),
            hidden: self.hidden,
            vocab: self.vocab,
            context: self.context,
            embedding_scale: if family.scaled_embedding {
                (self.hidden as f32).sqrt()
            } else {
                1.0
            },
            blocks: self.windows.iter().map(block).collect(),
            output_norm: norm(family.norm),
            tied_output: self.tied,
            output_bias: family.all_biases,
            logit_soft_cap: self.logit_soft_cap,
        };
        description.check()?;
        Ok(description)
    }
}

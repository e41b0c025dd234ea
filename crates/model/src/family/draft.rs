//! The data about a model that both readers collect, and its last checks before it becomes a description.

use super::kinds::QkNorms;
use super::malformed;
use super::parts::{BlockShape, PartFactors, Parts, Sizes};
use super::traits::Family;
use crate::description::{
    Activation, AddedInputs, Attention, BlockDescription, Experts, FeedForward, KeyValues, Mixer,
    ModelDescription, Norm, NormKind, QkNorm, Residual, Rope, RopeScaling, Streams, Temperature,
    TokenInputs, limits,
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
    /// Width of the dense feed-forward.
    pub width: usize,
    /// The experts, and the width of the shared one, of the blocks that have them.
    pub experts: Option<(Experts, usize)>,
    /// Whether each block has experts.
    pub has_experts: Vec<bool>,
    pub epsilon: f32,
    /// Epsilon of the norms of queries and keys.
    pub head_epsilon: f32,
    /// The number that norm weights lack in storage.
    pub norm_offset: f32,
    /// Query · key is divided by the root of this number.
    pub query_scalar: f32,
    /// The norms of queries and keys, of a kind that is certain.
    pub qk_norm: QkNorms,
    pub qkv_bias: bool,
    pub attention_output_bias: bool,
    pub feed_forward_bias: bool,
    pub activation: Activation,
    pub score_soft_cap: Option<f32>,
    pub logit_soft_cap: Option<f32>,
    /// Factor on the embedding, if the file has one.
    pub embedding_scale: Option<f32>,
    /// Factor on residual additions.
    pub residual_scale: f32,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// The blocks, if a file's are others.
    pub parts: Option<Vec<Parts>>,
    /// Factors of parts of blocks.
    pub part_factors: PartFactors,
    /// Mixer of each block; `None`: attention.
    pub mixers: Vec<Option<Mixer>>,
    /// Window of each block.
    pub windows: Vec<Option<usize>>,
    /// Whether each block has RoPE.
    pub has_rope: Vec<bool>,
    /// The factor on queries by position.
    pub temperature: Option<Temperature>,
    /// RoPE of the blocks with full attention.
    pub rope: Rope,
    /// RoPE of the blocks with a window.
    pub local_rope: Rope,
    pub tied: bool,
    /// The sizes of attention with latent vectors, if it has them.
    pub latent: Option<Sizes>,
    /// The shapes of the blocks, if they differ: in place of `kv_heads`, `head_dim` and `width`.
    pub shapes: Option<Vec<BlockShape>>,
    /// Width of the inputs by token, if there are some.
    pub token_width: Option<usize>,
    /// Rows of their table, if they are fewer than tokens.
    pub token_rows: Option<usize>,
    /// Several residual streams.
    pub streams: Option<Streams>,
    /// Whether the residual stream after each block has a factor.
    pub scaled: bool,
    /// Learned embeddings of positions and token types.
    pub added_inputs: AddedInputs,
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
        if self.rope.dims == 0 || self.local_rope.dims == 0 {
            return Err(malformed(format!(
                "RoPE on 0 dimensions of a head: expected an even number from 2 to the head's {}",
                self.head_dim
            )));
        }
        let norm = |kind| Norm {
            kind,
            epsilon: self.epsilon,
            weight_offset: self.norm_offset,
        };
        let no_rope = Rope {
            dims: 0,
            scaling: RopeScaling::None,
            ..self.rope.clone()
        };
        let same = BlockShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            width: self.width,
            key_values: self
                .latent
                .map_or(KeyValues::Own, |it| KeyValues::Latent(it.latent)),
            cutoff: None,
        };
        let shapes = self
            .shapes
            .as_ref()
            .map_or_else(|| vec![same; self.windows.len()], Clone::clone);
        let attention = |((&window, &has_rope), shape): ((&Option<usize>, &bool), &BlockShape)| {
            Mixer::Attention(Attention {
                heads: self.heads,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                key_values: shape.key_values,
                value_norm: family.value_norm.then_some(self.epsilon),
                scale: self.query_scalar.sqrt().recip(),
                qkv_bias: self.qkv_bias,
                output_bias: self.attention_output_bias,
                qk_norm: (self.qk_norm != QkNorms::Never).then(|| QkNorm {
                    norm: Norm {
                        epsilon: self.head_epsilon,
                        ..norm(NormKind::Rms)
                    },
                    spans_heads: self.qk_norm == QkNorms::AllHeads,
                    after_rope: self.qk_norm == QkNorms::HeadsAfterRope,
                }),
                bidirectional: family.bidirectional,
                window,
                soft_cap: self.score_soft_cap,
                sinks: family.sinks,
                output_gate: family.output_gate,
                rope: match window {
                    _ if !has_rope => no_rope.clone(),
                    Some(_) => self.local_rope.clone(),
                    None => self.rope.clone(),
                },
                temperature: self.temperature,
            })
        };
        let attentions = self
            .windows
            .iter()
            .zip(&self.has_rope)
            .zip(&shapes)
            .map(attention);
        let parts = self.parts.as_ref();
        let mut residuals: Vec<_> = parts.map_or_else(
            || vec![family.residual; self.windows.len()],
            |parts| parts.iter().map(|part| part.residual).collect(),
        );
        if family.residual == Residual::SerialAfterNorm {
            // The others read norms of their own.
            residuals
                .iter_mut()
                .skip(1)
                .for_each(|it| *it = Residual::Serial);
        }
        let feed_forward = |has_experts: bool, (width, cutoff): (usize, Option<f32>)| {
            let experts = self.experts.filter(|_| has_experts);
            FeedForward {
                width: match experts {
                    Some((experts, shared)) if !experts.branch => shared,
                    _ => width,
                },
                gated: family.gated,
                activation: self.activation,
                gate_scale: self.part_factors.gate,
                cutoff,
                bias: self.feed_forward_bias,
                experts: experts.map(|(experts, _)| experts),
            }
        };
        let block = |(index, (mixer, attention)): (usize, (&Option<Mixer>, Mixer))| {
            let (residual, shape) = (residuals[index], &shapes[index]);
            let has_experts = self.has_experts[index];
            let width = if residual.has_feed_forward() {
                shape.width
            } else {
                0
            };
            let factors = &self.part_factors;
            BlockDescription {
                mixer_scale: match mixer {
                    None => factors.attention,
                    Some(_) => factors.mixer,
                },
                feed_forward_scale: factors.feed_forward,
                mixer: mixer.clone().unwrap_or(attention),
                feed_forward: feed_forward(has_experts, (width, shape.cutoff)),
                scaled: self.scaled,
                norm: norm(family.norm),
                residual,
            }
        };
        let description = ModelDescription {
            family: family.name.to_owned(),
            name: self.name.clone(),
            hidden: self.hidden,
            vocab: self.vocab,
            context: self.context,
            embedding_scale: match self.embedding_scale {
                Some(scale) => scale,
                None if family.scaled_embedding => (self.hidden as f32).sqrt(),
                None => 1.0,
            },
            residual_scale: self.residual_scale,
            logit_scale: self.logit_scale,
            blocks: self
                .mixers
                .iter()
                .zip(attentions)
                .enumerate()
                .map(block)
                .collect(),
            output_norm: norm(family.norm),
            tied_output: self.tied || family.bidirectional,
            output_bias: family.all_biases && !family.bidirectional,
            logit_soft_cap: self.logit_soft_cap,
            token_inputs: self.token_width.map(|width| TokenInputs {
                width,
                rows: self.token_rows,
                activation: self.activation,
                norm: norm(NormKind::Rms),
            }),
            streams: self.streams,
            added_inputs: self.added_inputs,
            picture_rope: None,
            mtp: None,
            head: None,
        };
        description.check()?;
        Ok(description)
    }
}

/// Returns the width of a head if the file does not state it.
pub(super) fn head_dim(hidden: usize, heads: usize) -> Result<usize> {
    match hidden / heads {
        head_dim if hidden.is_multiple_of(heads) && head_dim <= limits::HEAD_DIM => Ok(head_dim),
        _ => Err(malformed(format!(
            "a width of {hidden} can't be cut into {heads} heads of at most {} each, and no head width is given",
            limits::HEAD_DIM
        ))),
    }
}

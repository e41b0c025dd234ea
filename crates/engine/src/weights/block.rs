//! The weights of a block.

use std::collections::BTreeMap;

use triad_model::description;

use super::{BlockStreams, Linear, MixerWeights, Norm, Router, TokenInput};
use crate::linear_input::Inputs;
use crate::quantization::InputQuantization;

/// Weights of one block. Its description determines which norms and linear layers it has.
#[derive(Clone)]
pub struct Block {
    /// Norm before attention.
    pub attention_norm: Option<Norm>,
    /// Norm on attention's output.
    pub attention_post_norm: Option<Norm>,
    /// Norm before the feed-forward.
    pub feed_forward_norm: Option<Norm>,
    /// Norm on the feed-forward's output.
    pub feed_forward_post_norm: Option<Norm>,
    /// Norm on queries.
    pub query_norm: Option<Norm>,
    /// Norm on keys.
    pub key_norm: Option<Norm>,
    /// Norm on values, whose weights are 1.
    pub value_norm: Option<Norm>,
    /// The quantization of the linear layers' inputs to INT8; `None` if they compute in float.
    pub inputs: Option<Inputs<InputQuantization>>,
    /// The choice of experts.
    pub router: Option<Router>,
    /// The linear layers.
    pub linears: BTreeMap<description::Linear, Linear>,
    /// The weights of the mixer's operator.
    pub mixer: MixerWeights,
    /// The weights that add the input by token.
    pub token_input: Option<TokenInput>,
    /// The weights of several residual streams.
    pub streams: Option<BlockStreams>,
    /// The factor on the residual stream after the block.
    pub scale: Option<f32>,
}

impl Block {
    /// Creates a block with a norm before each half and without anything else than linear layers.
    pub(crate) fn plain(
        [attention_norm, feed_forward_norm]: [Norm; 2],
        linears: BTreeMap<description::Linear, Linear>,
    ) -> Self {
        Self {
            attention_norm: Some(attention_norm),
            attention_post_norm: None,
            feed_forward_norm: Some(feed_forward_norm),
            feed_forward_post_norm: None,
            query_norm: None,
            key_norm: None,
            value_norm: None,
            inputs: None,
            router: None,
            linears,
            mixer: MixerWeights::new(),
            token_input: None,
            streams: None,
            scale: None,
        }
    }
}

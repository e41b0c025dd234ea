//! The parts of a layer ([`Role`]), cut where the number format changes.

use serde::{Deserialize, Serialize};

use crate::description::Linear;

/// The part of a block that a subgraph computes, in execution order. A feed-forward is one subgraph or three:
/// [`Role::of_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Residual addition of the previous block, norm, quantization.
    AttentionNorm,
    /// Query, key and value layers, or those before another mixer's operator.
    QueryKeyValue,
    /// RoPE, writing keys and values to the cache, attention over all tokens so far, quantization; or the operator of a
    /// mixer with a state.
    Attention,
    /// Output layer of attention or of another mixer.
    AttentionOutput,
    /// Residual addition, norm, quantization. If one norm serves both halves of a block, the residual addition alone.
    FeedForwardNorm,
    /// Gate and up layers, activation, requantization, down layer.
    FeedForward,
    /// Gate and up layers alone.
    GateUp,
    /// Activation, requantization.
    Activation,
    /// Down layer alone.
    Down,
}

/// The number format in which a subgraph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// f32.
    Float,
    /// Linear layers in INT8.
    Int8,
}

impl Format {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int8 => "int8",
        }
    }
}

impl Role {
    /// All roles in execution order.
    pub const ALL: [Self; 9] = [
        Self::AttentionNorm,
        Self::QueryKeyValue,
        Self::Attention,
        Self::AttentionOutput,
        Self::FeedForwardNorm,
        Self::FeedForward,
        Self::GateUp,
        Self::Activation,
        Self::Down,
    ];

    /// Returns the subgraphs of a block in execution order. The feed-forward is one subgraph, as in llm.npu, or three.
    /// It is split where the output of gate and up must be complete before the activation, because another processor
    /// computes parts of it or its shadow.
    pub fn of_block(is_split: bool) -> impl Iterator<Item = Self> {
        let is_left_out = move |role: &Self| match role {
            Self::FeedForward => is_split,
            Self::GateUp | Self::Activation | Self::Down => !is_split,
            _ => false,
        };
        Self::ALL.into_iter().filter(move |role| !is_left_out(role))
    }

    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "attention-norm",
            Self::QueryKeyValue => "query-key-value",
            Self::Attention => "attention",
            Self::AttentionOutput => "attention-output",
            Self::FeedForwardNorm => "feed-forward-norm",
            Self::FeedForward => "feed-forward",
            Self::GateUp => "gate-up",
            Self::Activation => "activation",
            Self::Down => "down",
        }
    }

    /// Returns the format in which it computes.
    pub fn format(self) -> Format {
        match self {
            Self::AttentionNorm | Self::Attention | Self::FeedForwardNorm | Self::Activation => {
                Format::Float
            }
            Self::QueryKeyValue
            | Self::AttentionOutput
            | Self::FeedForward
            | Self::GateUp
            | Self::Down => Format::Int8,
        }
    }

    /// Returns whether its shapes depend on the chunk length alone.
    pub fn is_static(self) -> bool {
        self != Self::Attention
    }

    /// Returns whether it consists only of linear layers on one input, so that its output can be cut into
    /// parts.
    pub fn is_product(self) -> bool {
        matches!(
            self,
            Self::QueryKeyValue | Self::AttentionOutput | Self::GateUp | Self::Down
        )
    }

    /// Returns whether it is the feed-forward or one of its linear layers. Of all INT8 subgraphs, these have the most
    /// operations.
    pub fn is_feed_forward(self) -> bool {
        matches!(self, Self::FeedForward | Self::GateUp | Self::Down)
    }

    /// Returns whether it contains `linear`.
    pub fn has(self, linear: Linear) -> bool {
        match linear {
            Linear::Query
            | Linear::Key
            | Linear::Value
            | Linear::MixerInput
            | Linear::MixerGate
            | Linear::MixerRate
            | Linear::MixerDecay => self == Self::QueryKeyValue,
            Linear::AttentionOutput | Linear::MixerOutput => self == Self::AttentionOutput,
            Linear::Gate | Linear::Up => matches!(self, Self::FeedForward | Self::GateUp),
            Linear::Down => matches!(self, Self::FeedForward | Self::Down),
            Linear::ExpertGate(_) | Linear::ExpertUp(_) | Linear::ExpertDown(_) => {
                self == Self::FeedForward
            }
        }
    }
}

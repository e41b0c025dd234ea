//! The kinds of properties that differ between families.

use crate::description::Routing;

/// The blocks of a model that have a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// None of them.
    Never,
    /// All of them.
    Everywhere,
    /// Blocks from `max_window_layers` on, if `use_sliding_window`.
    FromLayer,
    /// All except every n-th.
    AllButEvery(usize),
}

/// The properties of the experts of a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertTraits {
    /// How scores come from the router's outputs.
    pub routing: Routing,
    /// Whether the weights of the chosen experts sum to 1.
    pub normalized: Normalized,
    /// Field of a `config.json` with the number of experts, and its default.
    pub count: (&'static str, usize),
    /// Default number of experts of a row.
    pub used: usize,
    /// Field of a `config.json` with the width of an expert, and its default.
    pub width: (&'static str, Option<usize>),
    /// Default width of the shared expert, if the family has one, which has a gate.
    pub shared: Option<usize>,
    /// Whether the router and the experts have biases.
    pub bias: bool,
    /// The limit of their activation.
    pub clamp: Option<f32>,
    /// Whether fields of a `config.json` list blocks without experts.
    pub sparse_step: bool,
}

/// The families whose weights of experts sum to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normalized {
    /// All models of the family.
    Always,
    /// Models whose `config.json` sets `norm_topk_prob`. In GGUF, the flag is that of the family's name.
    Stated {
        /// The value in GGUF.
        gguf: bool,
    },
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorms {
    /// None.
    Never,
    /// One for each head, before RoPE.
    Heads,
    /// One for each head, after RoPE.
    HeadsAfterRope,
    /// One for all heads, before RoPE.
    AllHeads,
}

/// RoPE of the blocks that have a sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LocalRope {
    /// That of all blocks.
    Same,
    /// On this base by default, without scaling.
    Base(f32),
    /// On the base of all blocks, without scaling.
    Unscaled,
}

/// The blocks that have no RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRope {
    /// None of them.
    Never,
    /// Every n-th, if the file does not list them.
    Every(usize),
    /// Blocks without a window, in a model in which others have one.
    Global,
}

/// The mixers of a family other than attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixers {
    /// All blocks have attention.
    Attention,
    /// Some blocks have a gated convolution of the width of the residual stream.
    ShortConv,
    /// Some blocks have a gated DeltaNet.
    DeltaNet,
}

/// Default soft caps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoftCaps {
    pub scores: Option<f32>,
    pub logits: Option<f32>,
}

/// The shapes of a family's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockShapes {
    /// All blocks have the same.
    Same,
    /// Shapes of Gemma 4: heads depend on the window, the last blocks read the keys and values of earlier ones, and all
    /// may have inputs by token and a factor on their output.
    Gemma4,
}

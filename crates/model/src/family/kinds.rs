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
    /// All except the first of every n.
    AllButFirstOf(usize),
}

/// The properties of the experts of a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertTraits {
    /// How scores come from the router's outputs.
    pub routing: Routing,
    /// Whether the weights of the chosen experts sum to 1.
    pub normalized: Normalized,
    /// Default number of experts.
    pub count: usize,
    /// Field of a `config.json` with the number of experts of a row, and its default.
    pub used: (&'static str, usize),
    /// Field of a `config.json` with the width of an expert, and its default.
    pub width: (&'static str, Option<usize>),
    /// The shared expert.
    pub shared: Shared,
    /// The summands of the scores for the choice.
    pub correction: Correction,
    /// The default of the factor on the weights of the chosen experts, if a file states one.
    pub scaled: Option<f64>,
    /// The groups of experts that a `config.json` may state.
    pub groups: Groups,
    /// Whether files of GGUF state how scores come from the router's outputs, and have summands or not.
    pub stated_in_gguf: bool,
    /// The summand and the lower bound of the sum by which these weights are divided.
    pub sum: SumBounds,
    /// Whether the router and the experts have biases.
    pub bias: bool,
    /// The limit of their activation.
    pub clamp: Option<f32>,
    /// The blocks without experts.
    pub dense: DenseBlocks,
}

/// The shared expert of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// None.
    Never,
    /// One with a gate, whose width `shared_expert_intermediate_size` of a `config.json` states, with this default.
    Gated(usize),
    /// One without a gate, as wide as several experts.
    Experts {
        /// Field of a `config.json` with their number.
        field: &'static str,
        /// Default of this number.
        default: usize,
        /// Whether GGUF states this number, too, and not the width.
        counted_in_gguf: bool,
    },
    /// One without a gate, if a file of GGUF states its width.
    IfStated,
    /// The dense feed-forward, next to which the experts are a branch.
    Branch,
    /// One without a gate, whose width a field of a `config.json` states, with this default, and one of GGUF.
    Stated(&'static str, Option<usize>),
}

/// The summands of the scores for the choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Correction {
    /// None.
    Never,
    /// In all models of the family.
    Always,
    /// In models whose `config.json` does not set `use_expert_bias` to false, and in all of GGUF.
    UnlessStated,
}

/// The sum by which the weights of the chosen experts are divided, if they are: `max(sum + offset, floor)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SumBounds {
    pub offset: f32,
    pub floor: f32,
}

impl SumBounds {
    /// The sum itself.
    pub const NONE: Self = Self {
        offset: 0.0,
        floor: 0.0,
    };
}

/// The blocks of a family that have no experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenseBlocks {
    /// None of them.
    Never,
    /// Blocks between the steps of `decoder_sparse_step`, and those in `mlp_only_layers`.
    Listed,
    /// The first ones; the field of a `config.json` with their number, and its default.
    First(&'static str, usize),
    /// Blocks that `mlp_layer_types` calls dense, or the first.
    Named,
    /// Blocks before `moe_layer_start_index`, after `moe_layer_end_index`, and between the steps of `moe_layer_interval`.
    Outside,
}

/// The groups of experts of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Groups {
    /// None: a `config.json` may state some that are not read.
    Never,
    /// One alone, if a file states them.
    One,
    /// `n_group` and `topk_group`, with these defaults.
    Stated(usize, usize),
    /// `n_group` and `topk_group`, if `topk_method` says that groups limit the choice.
    ByMethod,
}

/// The sizes of latent vectors (MLA) that a `config.json` may omit, and what it may say of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentTraits {
    /// Width of the latent vector of queries.
    pub query: usize,
    /// Width of the part of a head's query without RoPE.
    pub key_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Whether `rope_interleave` says how RoPE pairs dimensions.
    pub may_have_halves: bool,
    /// Values of `scoring_func`.
    pub scoring: &'static [&'static str],
    /// Values of `topk_method`.
    pub methods: &'static [&'static str],
}

/// The families whose weights of experts sum to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normalized {
    /// All models of the family.
    Always,
    /// None, unless a file of GGUF states it.
    Never,
    /// Models whose `config.json` sets `norm_topk_prob`.
    Stated {
        /// The default of `norm_topk_prob`.
        default: bool,
        /// The value in all files of GGUF; `None`: these files state it, and a factor on the weights.
        gguf: Option<bool>,
    },
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorms {
    /// None.
    Never,
    /// One for each head, before RoPE.
    Heads,
    /// One for each head, before RoPE, in models whose `config.json` sets `use_qk_norm` or whose GGUF has the norms.
    HeadsIfStated,
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

/// The factors that a model of a family may have on the embedding, attention scores, residual additions and logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Multipliers {
    /// None.
    Never,
    /// Factors that the file states.
    Stated,
    /// One on the logits, with this default in a `config.json`.
    OnLogits(f32),
    /// Factors of Falcon-H1, which files of GGUF have in their weights.
    Falcon,
    /// Factors that follow from `scale_emb`, `scale_depth` and `dim_model_base` of a `config.json`, and are stated in GGUF.
    Mup,
}

/// The blocks that have no RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRope {
    /// None of them.
    Never,
    /// None of them. A `position_embedding_type` other than `rope` is refused: of the versions of `transformers`, one follows
    /// it.
    NeverByName,
    /// Every n-th, if the file does not list them.
    Every(usize),
    /// Blocks without a window, in a model in which others have one.
    Global,
    /// Blocks without a window, in a model whose file has to state one.
    Unwindowed,
    /// All of them.
    Everywhere,
    /// All of them, unless `position_embedding_type` of a `config.json` is `rope`, or `rope.scaling.finetuned` of a GGUF
    /// file is not false.
    UnlessStated,
}

/// Learned embeddings that are added to that of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddedTraits {
    /// The table of positions; `None`: there is none.
    pub positions: Option<FirstPosition>,
    /// Default rows of the table of token types, which a `config.json` states as `type_vocab_size`.
    pub token_types: usize,
}

/// The row of the first position in a table of a Hugging Face checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstPosition {
    /// The first row.
    Zero,
    /// The row after that of the padding token, which has this number by default.
    AfterPadding(u32),
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
    /// Some blocks have a Mamba-2.
    Mamba2,
}

/// How a file's blocks are those of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// They are the same.
    Blocks,
    /// A block of the file is a mixer, or a feed-forward.
    SingleParts,
    /// A block of the file has attention and another mixer, which read one norm.
    TwoMixers,
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
    /// Shapes of Gemma 3n: the last blocks read the keys and values of earlier ones, and some set small gates to 0. There
    /// are inputs by token and several residual streams.
    Gemma3n,
    /// Shapes of Gemma 4: heads depend on the window, the last blocks read the keys and values of earlier ones, and all
    /// may have inputs by token and a factor on their output.
    Gemma4,
}

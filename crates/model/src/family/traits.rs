//! The common properties of a family's models: one constant per family.

use super::kinds::{
    AddedTraits, BlockShapes, ExpertTraits, LatentTraits, Layout, LocalRope, Mixers, Multipliers,
    NoRope, QkNorms, Shared, SoftCaps, Windows,
};
use super::names::{self, Names};
use crate::description::{Activation, HeadSharing, NormKind, Residual, RopePairing};

/// The properties of a family. The first half defines the computation; the second half has the default values of a
/// `config.json`, as in `transformers`.
#[derive(Debug)]
pub(super) struct Family {
    /// Name in [`crate::description::ModelDescription::family`].
    pub name: &'static str,
    /// Tensor names in a Hugging Face checkpoint.
    pub names: Names,
    /// Kind of every norm of the residual stream.
    pub norm: NormKind,
    /// Whether Hugging Face checkpoints store `weight - 1` of a norm (in GGUF the 1 is already added).
    pub norms_less_one: bool,
    /// The places of norms and residual additions.
    pub residual: Residual,
    /// Whether the embedding is multiplied by √hidden.
    pub scaled_embedding: bool,
    /// The norms of queries and keys.
    pub qk_norm: QkNorms,
    /// Whether query, key and value always have biases, whatever the configuration states.
    pub qkv_bias: bool,
    /// Whether every linear layer and the output matrix always have biases.
    pub all_biases: bool,
    /// Fields of a `config.json` that give biases to query, key and value, to the output of attention and to the
    /// feed-forward, with their defaults. An empty name: no field.
    pub bias_fields: [(&'static str, bool); 3],
    /// How Hugging Face checkpoints pair RoPE's dimensions.
    pub pairing: RopePairing,
    /// Whether the model is the text part of one with images, whose RoPE of three axes is plain for text.
    pub images: bool,
    /// Whether attention has sinks.
    pub sinks: bool,
    /// Whether the output of attention has gates.
    pub output_gate: bool,
    /// Latent vectors of attention, if the family has them.
    pub latent: Option<LatentTraits>,
    /// The experts, if the family has them.
    pub experts: Option<ExpertTraits>,
    /// Whether the feed-forward has a gate.
    pub gated: bool,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// Field of a `config.json` that names the nonlinearity.
    pub activation_field: &'static str,
    /// The blocks that have a sliding window.
    pub windows: Windows,
    /// The soft caps of attention scores and logits, if the family has them.
    pub soft_caps: Option<SoftCaps>,
    /// RoPE of the blocks with a window.
    pub local_rope: LocalRope,
    /// Default of the number by whose root query · key is divided, if that is not the head's width.
    pub query_scalar: Option<f32>,
    /// The factors on embedding, attention scores, residual additions and logits.
    pub multipliers: Multipliers,
    /// The blocks without RoPE.
    pub no_rope: NoRope,
    /// Whether queries have a factor by position.
    pub temperature: bool,
    /// Whether RoPE may be scaled by YaRN.
    pub yarn: bool,
    /// Whether the code of the family is not a part of `transformers`, so that its versions do not differ.
    pub remote: bool,
    /// The token mixers of blocks without attention.
    pub mixers: Mixers,
    /// How value heads of DeltaNets share key heads in GGUF.
    pub head_sharing: HeadSharing,
    /// How a file's blocks are those of a description.
    pub layout: Layout,
    /// The shapes of the blocks.
    pub shapes: BlockShapes,
    /// Whether values have a norm without weights.
    pub value_norm: bool,
    /// Whether files of GGUF may have blocks after those of the model that predict more than one token.
    pub predicts_more: bool,
    /// Whether Triad runs a head that predicts one more token.
    pub runs_mtp: bool,
    /// Whether attention reads later positions, too. Such models have no output matrix.
    pub bidirectional: bool,
    /// Learned embeddings of positions and token types, if the family has some.
    pub added: Option<AddedTraits>,

    /// Base of RoPE.
    pub rope_base: f32,
    /// Fields of a `config.json` with that base, and with that of the blocks with a window.
    pub rope_fields: [&'static str; 2],
    /// Base of RoPE in version 4 of `transformers`, if its default is another.
    pub older_rope_base: Option<f32>,
    /// Part of a head that RoPE rotates; `None`: all of it, and a configuration can't change that.
    pub rotary_fraction: Option<f64>,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// Field of a `config.json` with the epsilon, if it is not that of the norm's kind.
    pub epsilon_field: Option<&'static str>,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Width of a head; `None`: hidden / heads.
    pub head_dim: Option<usize>,
    /// Longest context in tokens.
    pub context: usize,
    /// Default context of pre-training in tokens, from which LongRoPE is computed, if the family has one.
    pub original_context: Option<usize>,
    /// Width of a sliding window, if the family has windows.
    pub window: Option<usize>,
    /// Field of a `config.json` with the width of the dense feed-forward.
    pub width_field: &'static str,
    /// Sizes that a nested `text_config` omits if they are the defaults of `transformers`.
    pub sizes: &'static [(&'static str, usize)],
}

impl Family {
    /// Returns whether `sliding_window_pattern` of a `config.json` gives the interval of blocks without a window.
    pub fn reads_window_pattern(&self) -> bool {
        ["gemma3", "gemma-embedding", "exaone4", "cohere2"].contains(&self.name)
    }

    /// Returns the default of a size in a `config.json`.
    pub fn size(&self, field: &str) -> Option<usize> {
        let mut sizes = self.sizes.iter();
        sizes
            .find(|(name, _)| *name == field)
            .map(|(_, size)| *size)
    }

    /// Returns whether the experts are a branch next to dense layers.
    pub fn has_expert_branches(&self) -> bool {
        let experts = self.experts.as_ref();
        experts.is_some_and(|experts| experts.shared == Shared::Branch)
    }

    /// Returns whether the blocks with a window have a RoPE of their own.
    pub fn has_local_rope(&self) -> bool {
        self.local_rope != LocalRope::Same
    }
}

pub(super) const LLAMA: Family = Family {
    name: "llama",
    names: names::LLAMA,
    norm: NormKind::Rms,
    norms_less_one: false,
    residual: Residual::Serial,
    scaled_embedding: false,
    qk_norm: QkNorms::Never,
    qkv_bias: false,
    all_biases: false,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("mlp_bias", false),
    ],
    pairing: RopePairing::Halves,
    images: false,
    sinks: false,
    output_gate: false,
    latent: None,
    experts: None,
    gated: true,
    activation: Activation::Silu,
    activation_field: "hidden_act",
    windows: Windows::Never,
    soft_caps: None,
    local_rope: LocalRope::Same,
    query_scalar: None,
    multipliers: Multipliers::Never,
    no_rope: NoRope::Never,
    temperature: false,
    yarn: true,
    remote: false,
    mixers: Mixers::Attention,
    head_sharing: HeadSharing::Remainder,
    layout: Layout::Blocks,
    shapes: BlockShapes::Same,
    value_norm: false,
    predicts_more: false,
    runs_mtp: false,
    bidirectional: false,
    added: None,
    rope_base: 10_000.0,
    rope_fields: ["rope_theta", "rope_local_base_freq"],
    older_rope_base: None,
    rotary_fraction: None,
    epsilon: 1e-6,
    epsilon_field: None,
    tied: false,
    head_dim: None,
    context: 2048,
    original_context: None,
    window: None,
    width_field: "intermediate_size",
    sizes: &[],
};

/// Llama as the text of LLaVA, whose files omit defaults.
pub(super) const LLAVA: Family = Family {
    sizes: &[
        ("vocab_size", 32_000),
        ("hidden_size", 4096),
        ("intermediate_size", 11_008),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
    ],
    ..LLAMA
};

pub(super) const MISTRAL: Family = Family {
    name: "mistral",
    windows: Windows::Everywhere,
    window: Some(4096),
    context: 131_072,
    ..LLAMA
};

/// Qwen 1.5, 2 and 2.5.
pub(super) const QWEN2: Family = Family {
    name: "qwen2",
    qkv_bias: true,
    windows: Windows::FromLayer,
    window: Some(4096),
    context: 32_768,
    ..LLAMA
};

pub(super) const QWEN3: Family = Family {
    name: "qwen3",
    names: names::QWEN3,
    qkv_bias: false,
    qk_norm: QkNorms::Heads,
    head_dim: Some(128),
    ..QWEN2
};

/// AFM-4.5B.
pub(super) const ARCEE: Family = Family {
    name: "arcee",
    names: names::ARCEE,
    gated: false,
    activation: Activation::ReluSquared,
    epsilon: 1e-5,
    context: 4096,
    ..LLAMA
};

/// Granite 3 and the dense models of 4.
pub(super) const GRANITE: Family = Family {
    name: "granite",
    multipliers: Multipliers::Stated,
    ..LLAMA
};

/// The dense models of MiniCPM 1 to 4.
pub(super) const MINICPM: Family = Family {
    name: "minicpm",
    multipliers: Multipliers::Mup,
    remote: true,
    yarn: false,
    tied: true,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    ..LLAMA
};

pub(super) const SMOLLM3: Family = Family {
    name: "smollm3",
    no_rope: NoRope::Every(4),
    rope_base: 2_000_000.0,
    tied: true,
    context: 32_768,
    ..LLAMA
};

/// The dense models of ERNIE 4.5.
pub(super) const ERNIE4_5: Family = Family {
    name: "ernie4_5",
    bias_fields: [("use_bias", false); 3],
    pairing: RopePairing::Adjacent,
    rope_base: 500_000.0,
    epsilon: 1e-5,
    tied: true,
    head_dim: Some(128),
    context: 131_072,
    ..LLAMA
};

pub(super) const SEED_OSS: Family = Family {
    name: "seed_oss",
    bias_fields: [
        ("attention_bias", true),
        ("attention_out_bias", false),
        ("mlp_bias", false),
    ],
    head_dim: Some(128),
    context: 524_288,
    ..LLAMA
};

/// Ministral 3, also the text of that model with images.
pub(super) const MINISTRAL3: Family = Family {
    name: "mistral3",
    windows: Windows::Everywhere,
    temperature: true,
    epsilon: 1e-5,
    head_dim: Some(128),
    context: 262_144,
    ..LLAMA
};

/// GLM-4-9B and GLM-Edge.
pub(super) const GLM: Family = Family {
    name: "glm",
    names: names::GLM,
    bias_fields: [("attention_bias", true), ("", false), ("", false)],
    pairing: RopePairing::Adjacent,
    rotary_fraction: Some(0.5),
    yarn: false,
    epsilon: 1.5625e-7,
    head_dim: Some(128),
    context: 131_072,
    ..LLAMA
};

/// GLM-4-0414.
pub(super) const GLM4: Family = Family {
    name: "glm4",
    names: names::GLM4,
    residual: Residual::SerialPostNorm,
    ..GLM
};

/// The dense models of Hunyuan.
pub(super) const HUNYUAN: Family = Family {
    name: "hunyuan-dense",
    names: names::HUNYUAN,
    qk_norm: QkNorms::HeadsAfterRope,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    yarn: false,
    epsilon: 1e-5,
    ..LLAMA
};

pub(super) const EXAONE4: Family = Family {
    name: "exaone4",
    names: names::POST_NORM,
    residual: Residual::PostNorm,
    qk_norm: QkNorms::Heads,
    bias_fields: [("", false); 3],
    windows: Windows::AllButEvery(4),
    window: Some(4096),
    no_rope: NoRope::Global,
    epsilon: 1e-5,
    ..LLAMA
};

/// Command R7B, Command A, and Tiny Aya.
pub(super) const COHERE2: Family = Family {
    name: "cohere2",
    norm: NormKind::Centered,
    residual: Residual::Parallel,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    pairing: RopePairing::Adjacent,
    windows: Windows::AllButEvery(4),
    window: Some(4096),
    no_rope: NoRope::Unwindowed,
    multipliers: Multipliers::OnLogits(0.0625),
    epsilon: 1e-5,
    tied: true,
    context: 8192,
    ..LLAMA
};

pub(super) const OLMO2: Family = Family {
    name: "olmo2",
    names: names::POST_NORM,
    residual: Residual::PostNorm,
    qk_norm: QkNorms::AllHeads,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    epsilon: 1e-5,
    ..LLAMA
};

/// OLMo 3, which GGUF calls by the name of OLMo 2.
pub(super) const OLMO3: Family = Family {
    windows: Windows::AllButEvery(4),
    window: Some(4096),
    local_rope: LocalRope::Unscaled,
    ..OLMO2
};

/// The text model of Qwen2-VL and Qwen2.5-VL.
pub(super) const QWEN2_VL: Family = Family {
    name: "qwen2vl",
    images: true,
    rope_base: 1_000_000.0,
    epsilon: 1e-5,
    ..QWEN2
};

/// The text model of Qwen3-VL.
pub(super) const QWEN3_VL: Family = Family {
    name: "qwen3vl",
    images: true,
    windows: Windows::Never,
    window: None,
    rope_base: 500_000.0,
    older_rope_base: Some(5_000_000.0),
    context: 128_000,
    ..QWEN3
};

/// Phi-1, 1.5 and 2, named after the last.
pub(super) const PHI2: Family = Family {
    name: "phi2",
    yarn: false,
    names: names::PHI2,
    norm: NormKind::Layer,
    residual: Residual::Parallel,
    qkv_bias: true,
    all_biases: true,
    gated: false,
    activation: Activation::GeluTanh,
    rotary_fraction: Some(0.5),
    epsilon: 1e-5,
    ..LLAMA
};

pub(super) const PHI3: Family = Family {
    name: "phi3",
    names: names::PHI3,
    yarn: false,
    windows: Windows::Everywhere,
    rotary_fraction: Some(1.0),
    epsilon: 1e-5,
    context: 4096,
    original_context: Some(4096),
    ..LLAMA
};

//! The families with blocks whose token mixer is not attention.

use super::kinds::{Layout, Mixers, Multipliers, NoRope, QkNorms};
use super::mixer_names;
use super::names;
use super::traits::{Family, GRANITE, LLAMA};
use crate::description::Activation;

/// LFM2, whose convolutions and attention take turns.
pub(super) const LFM2: Family = Family {
    name: "lfm2",
    names: names::LFM2,
    qk_norm: QkNorms::Heads,
    // No field gives linear layers of attention or the feed-forward a bias, or another nonlinearity.
    bias_fields: [("", false); 3],
    activation_field: "",
    mixers: Mixers::ShortConv,
    rope_base: 1_000_000.0,
    epsilon: 1e-5,
    epsilon_field: Some("norm_eps"),
    tied: true,
    context: 128_000,
    sizes: &[("num_key_value_heads", 8)],
    ..LLAMA
};

/// Qwen3.5, also the text of that model with images: DeltaNets and attention take turns.
pub(super) const QWEN3_5: Family = Family {
    name: "qwen35",
    names: names::QWEN3_5,
    norms_less_one: true,
    qk_norm: QkNorms::Heads,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    images: true,
    output_gate: true,
    mixers: Mixers::DeltaNet,
    predicts_more: true,
    runs_mtp: true,
    rotary_fraction: Some(0.25),
    head_dim: Some(256),
    context: 32_768,
    sizes: &[("num_key_value_heads", 4)],
    ..LLAMA
};

/// Granite 4 without experts: Mamba-2 and attention take turns.
pub(super) const GRANITE_HYBRID: Family = Family {
    name: "granitehybrid",
    names: mixer_names::GRANITE_HYBRID,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    no_rope: NoRope::UnlessStated,
    mixers: Mixers::Mamba2,
    width_field: "shared_intermediate_size",
    ..GRANITE
};

/// Nemotron-H without experts: blocks are a Mamba-2, attention without RoPE, or a feed-forward.
pub(super) const NEMOTRON_H_DENSE: Family = Family {
    name: "nemotron_h",
    names: mixer_names::NEMOTRON_H,
    bias_fields: [("", false), ("", false), ("mlp_bias", false)],
    gated: false,
    activation: Activation::ReluSquared,
    activation_field: "mlp_hidden_act",
    no_rope: NoRope::Everywhere,
    mixers: Mixers::Mamba2,
    layout: Layout::SingleParts,
    epsilon: 1e-5,
    epsilon_field: Some("layer_norm_epsilon"),
    head_dim: Some(128),
    context: 4096,
    sizes: &[
        ("vocab_size", 131_072),
        ("hidden_size", 4096),
        ("intermediate_size", 21_504),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 8),
    ],
    ..LLAMA
};

/// Falcon-H1: blocks have attention and a Mamba-2.
pub(super) const FALCON_H1: Family = Family {
    name: "falcon-h1",
    names: mixer_names::FALCON_H1,
    bias_fields: [("", false); 3],
    multipliers: Multipliers::Falcon,
    mixers: Mixers::Mamba2,
    layout: Layout::TwoMixers,
    older_rope_base: Some(100_000.0),
    epsilon: 1e-5,
    context: 8192,
    sizes: &[
        ("vocab_size", 128_000),
        ("hidden_size", 4096),
        ("intermediate_size", 14_336),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 8),
    ],
    ..LLAMA
};

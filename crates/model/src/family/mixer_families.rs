//! The families with blocks whose token mixer is not attention.

use super::kinds::{Mixers, NoRope, QkNorms};
use super::names;
use super::traits::{Family, GRANITE, LLAMA};

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
    rotary_fraction: Some(0.25),
    head_dim: Some(256),
    context: 32_768,
    sizes: &[("num_key_value_heads", 4)],
    ..LLAMA
};

/// Granite 4 without experts: Mamba-2 and attention take turns.
pub(super) const GRANITE_HYBRID: Family = Family {
    name: "granitehybrid",
    names: names::GRANITE_HYBRID,
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

//! The families of Gemma. The blocks of the newer ones differ in shape.

use super::kinds::{BlockShapes, LocalRope, QkNorms, SoftCaps, Windows};
use super::names;
use super::traits::{Family, LLAMA};
use crate::description::{Activation, Residual};

pub(super) const GEMMA: Family = Family {
    name: "gemma",
    yarn: false,
    norms_less_one: true,
    scaled_embedding: true,
    activation: Activation::GeluTanh,
    tied: true,
    head_dim: Some(256),
    context: 8192,
    ..LLAMA
};

pub(super) const GEMMA2: Family = Family {
    name: "gemma2",
    names: names::GEMMA2,
    residual: Residual::SerialPostNorm,
    activation_field: "hidden_activation",
    windows: Windows::AllButEvery(2),
    window: Some(4096),
    soft_caps: Some(SoftCaps {
        scores: Some(50.0),
        logits: Some(30.0),
    }),
    query_scalar: Some(256.0),
    ..GEMMA
};

/// The text model of Gemma 3.
pub(super) const GEMMA3: Family = Family {
    name: "gemma3",
    names: names::GEMMA3,
    qk_norm: QkNorms::Heads,
    windows: Windows::AllButEvery(6),
    soft_caps: Some(SoftCaps {
        scores: None,
        logits: None,
    }),
    local_rope: LocalRope::Base(10_000.0),
    rope_base: 1_000_000.0,
    context: 131_072,
    sizes: &[
        ("vocab_size", 262_208),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 26),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
    ],
    ..GEMMA2
};

/// The text model of Gemma 4.
pub(super) const GEMMA4: Family = Family {
    name: "gemma4",
    norms_less_one: false,
    query_scalar: Some(1.0),
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    window: Some(512),
    shapes: BlockShapes::Gemma4,
    value_norm: true,
    sizes: &[
        ("vocab_size", 262_144),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 30),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("global_head_dim", 512),
        ("hidden_size_per_layer_input", 256),
        ("vocab_size_per_layer_input", 262_144),
    ],
    ..GEMMA3
};

/// The text model of Gemma 3n.
pub(super) const GEMMA3N: Family = Family {
    name: "gemma3n",
    norms_less_one: false,
    query_scalar: Some(1.0),
    windows: Windows::AllButEvery(5),
    window: Some(512),
    soft_caps: Some(SoftCaps {
        scores: None,
        logits: Some(30.0),
    }),
    bias_fields: GEMMA4.bias_fields,
    shapes: BlockShapes::Gemma3n,
    value_norm: true,
    context: 32_768,
    sizes: &[
        ("vocab_size", 262_400),
        ("hidden_size", 2048),
        ("intermediate_size", 16_384),
        ("num_hidden_layers", 35),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 2),
        ("hidden_size_per_layer_input", 256),
        ("vocab_size_per_layer_input", 262_144),
        ("altup_num_inputs", 4),
        ("laurel_rank", 64),
    ],
    ..GEMMA3
};

/// The text model of Gemma 4 that reads images and sound without towers.
pub(super) const GEMMA4_UNIFIED: Family = Family {
    window: Some(1024),
    context: 262_144,
    sizes: &[
        ("vocab_size", 262_144),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 30),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("global_head_dim", 512),
    ],
    ..GEMMA4
};

//! The newer families of Gemma, whose blocks differ in shape.

use super::kinds::{BlockShapes, SoftCaps, Windows};
use super::traits::{Family, GEMMA3};

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

//! The families with experts.

use super::kinds::{ExpertTraits, Normalized, QkNorms, Windows};
use super::names;
use super::traits::{Family, LLAMA, QWEN2, QWEN3, QWEN3_5};
use crate::description::Routing;

/// The models of Qwen3 with experts.
pub(super) const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Stated { gguf: true },
        count: ("num_experts", 128),
        used: 8,
        width: ("moe_intermediate_size", Some(768)),
        shared: None,
        bias: false,
        clamp: None,
        sparse_step: true,
    }),
    head_dim: None,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    windows: Windows::Never,
    window: None,
    ..QWEN3
};

/// The models of Qwen1.5 and Qwen2 with experts.
pub(super) const QWEN2_MOE: Family = Family {
    name: "qwen2moe",
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Stated { gguf: false },
        count: ("num_experts", 60),
        used: 4,
        width: ("moe_intermediate_size", Some(1408)),
        shared: Some(5632),
        bias: false,
        clamp: None,
        sparse_step: true,
    }),
    qkv_bias: false,
    bias_fields: [("qkv_bias", true), ("", false), ("", false)],
    windows: Windows::Never,
    window: None,
    ..QWEN2
};

pub(super) const OLMOE: Family = Family {
    name: "olmoe",
    names: names::QWEN3,
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Stated { gguf: false },
        count: ("num_experts", 64),
        used: 8,
        width: ("intermediate_size", Some(2048)),
        shared: None,
        bias: false,
        clamp: None,
        sparse_step: false,
    }),
    qk_norm: QkNorms::AllHeads,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    epsilon: 1e-5,
    context: 4096,
    ..LLAMA
};

/// Mixtral, whose files of GGUF say `llama`.
pub(super) const MIXTRAL: Family = Family {
    name: "mixtral",
    names: names::MIXTRAL,
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Always,
        count: ("num_local_experts", 8),
        used: 2,
        width: ("intermediate_size", None),
        shared: None,
        bias: false,
        clamp: None,
        sparse_step: false,
    }),
    bias_fields: [("", false); 3],
    windows: Windows::Everywhere,
    window: None,
    rope_base: 1_000_000.0,
    epsilon: 1e-5,
    context: 131_072,
    ..LLAMA
};

/// gpt-oss, in GGUF.
pub(super) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    sinks: true,
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Always,
        count: ("num_local_experts", 32),
        used: 4,
        width: ("", None),
        shared: None,
        bias: true,
        clamp: Some(7.0),
        sparse_step: false,
    }),
    windows: Windows::AllButEvery(2),
    window: Some(128),
    ..LLAMA
};

/// The models of Qwen3.5 with experts.
pub(super) const QWEN3_5_MOE: Family = Family {
    name: "qwen35moe",
    experts: Some(ExpertTraits {
        routing: Routing::Softmax,
        normalized: Normalized::Always,
        count: ("num_experts", 256),
        used: 8,
        width: ("moe_intermediate_size", Some(512)),
        shared: Some(512),
        bias: false,
        clamp: None,
        sparse_step: false,
    }),
    sizes: &[("num_key_value_heads", 2)],
    ..QWEN3_5
};

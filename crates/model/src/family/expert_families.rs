//! The families with experts.

use super::gemma_families::GEMMA4;
use super::kinds::{
    Correction, DenseBlocks, ExpertTraits, Groups, LatentTraits, NoRope, Normalized, QkNorms,
    Shared, SumBounds, Windows,
};
use super::mixer_families::{GRANITE_HYBRID, LFM2, NEMOTRON_H_DENSE, QWEN3_5};
use super::mixer_names;
use super::names;
use super::traits::{ERNIE4_5, Family, GRANITE, LLAMA, QWEN2, QWEN3};
use crate::description::{HeadSharing, RopePairing, Routing};

/// The experts of most families; the numbers are those of each.
const EXPERTS: ExpertTraits = ExpertTraits {
    routing: Routing::Softmax,
    normalized: Normalized::Always,
    count: 0,
    used: ("num_experts_per_tok", 2),
    width: ("moe_intermediate_size", None),
    shared: Shared::Never,
    correction: Correction::Never,
    scaled: None,
    groups: Groups::Never,
    stated_in_gguf: false,
    sum: SumBounds::NONE,
    bias: false,
    clamp: None,
    dense: DenseBlocks::Never,
};

/// The models of Qwen3 with experts.
pub(super) const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    experts: Some(ExpertTraits {
        normalized: Normalized::Stated {
            default: false,
            gguf: Some(true),
        },
        count: 128,
        used: ("num_experts_per_tok", 8),
        width: ("moe_intermediate_size", Some(768)),
        dense: DenseBlocks::Listed,
        ..EXPERTS
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
        normalized: Normalized::Stated {
            default: false,
            gguf: Some(false),
        },
        count: 60,
        used: ("num_experts_per_tok", 4),
        width: ("moe_intermediate_size", Some(1408)),
        shared: Shared::Gated(5632),
        dense: DenseBlocks::Listed,
        ..EXPERTS
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
        normalized: Normalized::Stated {
            default: false,
            gguf: Some(false),
        },
        count: 64,
        used: ("num_experts_per_tok", 8),
        width: ("intermediate_size", Some(2048)),
        ..EXPERTS
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
        count: 8,
        width: ("intermediate_size", None),
        ..EXPERTS
    }),
    bias_fields: [("", false); 3],
    windows: Windows::Everywhere,
    window: None,
    rope_base: 1_000_000.0,
    epsilon: 1e-5,
    context: 131_072,
    ..LLAMA
};

pub(super) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    names: names::GPT_OSS,
    sinks: true,
    bias_fields: [
        ("attention_bias", true),
        ("attention_bias", true),
        ("", false),
    ],
    experts: Some(ExpertTraits {
        count: 128,
        used: ("num_experts_per_tok", 4),
        width: ("intermediate_size", Some(2880)),
        bias: true,
        clamp: Some(7.0),
        ..EXPERTS
    }),
    windows: Windows::AllButEvery(2),
    window: Some(128),
    rope_base: 150_000.0,
    epsilon: 1e-5,
    head_dim: Some(64),
    context: 131_072,
    ..LLAMA
};

/// The text model of Qwen3-VL with experts.
pub(super) const QWEN3_VL_MOE: Family = Family {
    name: "qwen3vlmoe",
    names: names::QWEN3_VL_MOE,
    images: true,
    experts: Some(ExpertTraits {
        count: 60,
        used: ("num_experts_per_tok", 4),
        width: ("moe_intermediate_size", Some(1408)),
        dense: DenseBlocks::Listed,
        ..EXPERTS
    }),
    rope_base: 500_000.0,
    older_rope_base: Some(5_000_000.0),
    context: 128_000,
    ..QWEN3_MOE
};

/// Qwen3-Next: DeltaNets and attention take turns, with experts.
pub(super) const QWEN3_NEXT: Family = Family {
    name: "qwen3next",
    names: names::QWEN3_NEXT,
    images: false,
    head_sharing: HeadSharing::Adjacent,
    experts: Some(ExpertTraits {
        normalized: Normalized::Stated {
            default: true,
            gguf: Some(true),
        },
        count: 512,
        used: ("num_experts_per_tok", 10),
        width: ("moe_intermediate_size", Some(512)),
        shared: Shared::Gated(512),
        dense: DenseBlocks::Listed,
        ..EXPERTS
    }),
    sizes: &[("num_key_value_heads", 2), ("intermediate_size", 5632)],
    ..QWEN3_5
};

/// The models of Qwen3.5 with experts.
pub(super) const QWEN3_5_MOE: Family = Family {
    name: "qwen35moe",
    experts: Some(ExpertTraits {
        count: 256,
        used: ("num_experts_per_tok", 8),
        width: ("moe_intermediate_size", Some(512)),
        shared: Shared::Gated(512),
        ..EXPERTS
    }),
    sizes: &[("num_key_value_heads", 2)],
    ..QWEN3_5
};

/// The models of LFM2 with experts.
pub(super) const LFM2_MOE: Family = Family {
    name: "lfm2moe",
    names: names::LFM2_MOE,
    experts: Some(ExpertTraits {
        routing: Routing::Sigmoid,
        normalized: Normalized::Stated {
            default: true,
            gguf: Some(true),
        },
        count: 32,
        used: ("num_experts_per_tok", 4),
        width: ("moe_intermediate_size", Some(1792)),
        correction: Correction::UnlessStated,
        scaled: Some(1.0),
        sum: SumBounds {
            offset: 1e-6,
            floor: 0.0,
        },
        dense: DenseBlocks::First("num_dense_layers", 2),
        ..EXPERTS
    }),
    ..LFM2
};

/// The models of Granite 3 with experts.
pub(super) const GRANITE_MOE: Family = Family {
    name: "granitemoe",
    names: names::GRANITE_MOE,
    experts: Some(ExpertTraits {
        count: 8,
        width: ("intermediate_size", None),
        shared: Shared::IfStated,
        ..EXPERTS
    }),
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    no_rope: NoRope::NeverByName,
    ..GRANITE
};

/// Granite 4 with experts: Mamba-2 and attention take turns.
pub(super) const GRANITE_HYBRID_MOE: Family = Family {
    experts: Some(ExpertTraits {
        count: 8,
        width: ("intermediate_size", None),
        shared: Shared::Stated("shared_intermediate_size", None),
        ..EXPERTS
    }),
    ..GRANITE_HYBRID
};

/// Gemma 4 with experts next to a dense feed-forward.
pub(super) const GEMMA4_MOE: Family = Family {
    names: names::GEMMA4_MOE,
    experts: Some(ExpertTraits {
        used: ("top_k_experts", 0),
        shared: Shared::Branch,
        ..EXPERTS
    }),
    ..GEMMA4
};

/// The models of ERNIE 4.5 with experts.
pub(super) const ERNIE4_5_MOE: Family = Family {
    name: "ernie4_5-moe",
    names: names::ERNIE4_5_MOE,
    experts: Some(ExpertTraits {
        count: 64,
        used: ("moe_k", 6),
        width: ("moe_intermediate_size", Some(1536)),
        shared: Shared::Experts {
            field: "moe_num_shared_experts",
            default: 2,
            counted_in_gguf: false,
        },
        correction: Correction::Always,
        sum: SumBounds {
            offset: 0.0,
            floor: 1e-12,
        },
        dense: DenseBlocks::Outside,
        ..EXPERTS
    }),
    head_dim: None,
    ..ERNIE4_5
};

/// GLM-4.5.
pub(super) const GLM4_MOE: Family = Family {
    name: "glm4moe",
    names: names::GLM4_MOE,
    qk_norm: QkNorms::HeadsIfStated,
    bias_fields: [("attention_bias", false), ("", false), ("", false)],
    rotary_fraction: Some(0.5),
    yarn: false,
    experts: Some(ExpertTraits {
        routing: Routing::Sigmoid,
        normalized: Normalized::Stated {
            default: true,
            gguf: None,
        },
        count: 128,
        used: ("num_experts_per_tok", 8),
        width: ("moe_intermediate_size", Some(1408)),
        shared: Shared::Experts {
            field: "n_shared_experts",
            default: 1,
            counted_in_gguf: true,
        },
        correction: Correction::Always,
        scaled: Some(1.0),
        groups: Groups::One,
        sum: SumBounds {
            offset: 1e-20,
            floor: 0.0,
        },
        dense: DenseBlocks::First("first_k_dense_replace", 1),
        ..EXPERTS
    }),
    predicts_more: true,
    epsilon: 1e-5,
    context: 131_072,
    ..LLAMA
};

/// DeepSeek-V2, whose files of GGUF have the name of all DeepSeeks with latent vectors.
pub(super) const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    names: mixer_names::DEEPSEEK2,
    qk_norm: QkNorms::Heads,
    bias_fields: [
        ("attention_bias", false),
        ("attention_bias", false),
        ("", false),
    ],
    pairing: RopePairing::Adjacent,
    latent: Some(LatentTraits {
        query: 1536,
        key_dim: 128,
        value_dim: 128,
        may_have_halves: false,
        scoring: &["softmax"],
        methods: &["greedy", "group_limited_greedy"],
    }),
    experts: Some(ExpertTraits {
        normalized: Normalized::Never,
        count: 64,
        used: ("num_experts_per_tok", 0),
        width: ("moe_intermediate_size", Some(1407)),
        shared: Shared::Experts {
            field: "n_shared_experts",
            default: 2,
            counted_in_gguf: true,
        },
        scaled: Some(1.0),
        groups: Groups::ByMethod,
        stated_in_gguf: true,
        dense: DenseBlocks::First("first_k_dense_replace", 0),
        ..EXPERTS
    }),
    predicts_more: true,
    sizes: &[
        ("vocab_size", 102_400),
        ("hidden_size", 4096),
        ("intermediate_size", 11_008),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
    ],
    ..LLAMA
};

/// DeepSeek-V3, and smaller models like it.
pub(super) const DEEPSEEK3: Family = Family {
    latent: Some(LatentTraits {
        query: 1536,
        key_dim: 128,
        value_dim: 128,
        may_have_halves: true,
        scoring: &["sigmoid"],
        methods: &["noaux_tc"],
    }),
    experts: Some(ExpertTraits {
        routing: Routing::Sigmoid,
        normalized: Normalized::Stated {
            default: true,
            gguf: None,
        },
        count: 256,
        used: ("num_experts_per_tok", 8),
        width: ("moe_intermediate_size", Some(2048)),
        shared: Shared::Experts {
            field: "n_shared_experts",
            default: 1,
            counted_in_gguf: true,
        },
        correction: Correction::Always,
        scaled: Some(2.5),
        groups: Groups::Stated(8, 4),
        stated_in_gguf: true,
        sum: SumBounds {
            offset: 1e-20,
            floor: 0.0,
        },
        dense: DenseBlocks::First("first_k_dense_replace", 3),
        ..EXPERTS
    }),
    context: 4096,
    sizes: &[
        ("vocab_size", 129_280),
        ("hidden_size", 7168),
        ("intermediate_size", 18_432),
        ("num_hidden_layers", 61),
        ("num_attention_heads", 128),
    ],
    ..DEEPSEEK2
};

/// GLM-4.7-Flash.
pub(super) const GLM4_MOE_LITE: Family = Family {
    latent: Some(LatentTraits {
        query: 768,
        key_dim: 192,
        value_dim: 256,
        may_have_halves: true,
        scoring: &["sigmoid"],
        methods: &["noaux_tc"],
    }),
    experts: Some(ExpertTraits {
        routing: Routing::Sigmoid,
        normalized: Normalized::Stated {
            default: true,
            gguf: None,
        },
        count: 64,
        used: ("num_experts_per_tok", 4),
        width: ("moe_intermediate_size", Some(1536)),
        shared: Shared::Experts {
            field: "n_shared_experts",
            default: 1,
            counted_in_gguf: true,
        },
        correction: Correction::Always,
        scaled: Some(1.8),
        groups: Groups::Stated(1, 1),
        sum: SumBounds {
            offset: 1e-20,
            floor: 0.0,
        },
        dense: DenseBlocks::Named,
        ..EXPERTS
    }),
    epsilon: 1e-5,
    context: 202_752,
    sizes: &[
        ("vocab_size", 154_880),
        ("hidden_size", 2048),
        ("intermediate_size", 10_240),
        ("num_hidden_layers", 47),
        ("num_attention_heads", 20),
    ],
    ..DEEPSEEK2
};

/// Nemotron-H with experts.
pub(super) const NEMOTRON_H: Family = Family {
    name: "nemotron_h",
    experts: Some(ExpertTraits {
        routing: Routing::Sigmoid,
        normalized: Normalized::Stated {
            default: true,
            gguf: None,
        },
        count: 8,
        used: ("num_experts_per_tok", 2),
        width: ("moe_intermediate_size", Some(7688)),
        shared: Shared::Stated("moe_shared_expert_intermediate_size", Some(7688)),
        correction: Correction::Always,
        scaled: Some(1.0),
        groups: Groups::Stated(1, 1),
        sum: SumBounds {
            offset: 1e-20,
            floor: 0.0,
        },
        ..EXPERTS
    }),
    ..NEMOTRON_H_DENSE
};

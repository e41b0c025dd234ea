//! The names of tensors in families with Mamba-2 or with latent vectors of attention.

use super::expert_names::{EXPERTS, ExpertNames};
use super::names::{GGUF, GRANITE_MOE, LLAMA, Names, SHARED_EXPERTS};
use crate::tensor_map::StoredAs;

/// Granite 4 with Mamba-2.
pub(super) const GRANITE_HYBRID: Names = Names {
    gate: "shared_mlp.input_linear",
    up: "shared_mlp.input_linear",
    down: "shared_mlp.output_linear",
    mixer_input: "mamba.in_proj",
    mixer_output: "mamba.out_proj",
    convolution: "mamba.conv1d",
    decay: ("mamba.A_log", StoredAs::Logarithm),
    decay_bias: "mamba.dt_bias",
    head_norm: "mamba.norm.weight",
    skip: "mamba.D",
    experts: ExpertNames {
        shared: [
            "shared_mlp.input_linear",
            "shared_mlp.input_linear",
            "shared_mlp.output_linear",
        ],
        ..GRANITE_MOE.experts
    },
    ..LLAMA
};

/// Nemotron-H, whose blocks have one norm and one part each.
pub(super) const NEMOTRON_H: Names = Names {
    embedding: "embeddings",
    output_norm: "norm_f",
    attention_norm: "norm",
    feed_forward_norm: "norm",
    query: "mixer.q_proj",
    key: "mixer.k_proj",
    value: "mixer.v_proj",
    attention_output: "mixer.o_proj",
    up: "mixer.up_proj",
    down: "mixer.down_proj",
    mixer_input: "mixer.in_proj",
    mixer_output: "mixer.out_proj",
    convolution: "mixer.conv1d",
    decay: ("mixer.A_log", StoredAs::Logarithm),
    decay_bias: "mixer.dt_bias",
    head_norm: "mixer.norm.weight",
    skip: "mixer.D",
    experts: ExpertNames {
        router: "mixer.gate",
        correction: "mixer.gate.e_score_correction_bias",
        gate: "",
        up: "mixer.experts.*.up_proj",
        down: "mixer.experts.*.down_proj",
        stacked: Some([
            "mixer.gate",
            "mixer.experts.up_proj",
            "mixer.experts.down_proj",
        ]),
        shared: [
            "",
            "mixer.shared_experts.up_proj",
            "mixer.shared_experts.down_proj",
        ],
        ..EXPERTS
    },
    ..LLAMA
};

/// Falcon-H1.
pub(super) const FALCON_H1: Names = Names {
    output_norm: "final_layernorm",
    feed_forward_norm: "pre_ff_layernorm",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    mixer_input: "mamba.in_proj",
    mixer_output: "mamba.out_proj",
    convolution: "mamba.conv1d",
    decay: ("mamba.A_log", StoredAs::Logarithm),
    decay_bias: "mamba.dt_bias",
    head_norm: "mamba.norm.weight",
    skip: "mamba.D",
    ..LLAMA
};

/// DeepSeek with latent vectors.
pub(super) const DEEPSEEK2: Names = Names {
    query_norm: "self_attn.q_a_layernorm",
    key_norm: "self_attn.kv_a_layernorm",
    key: "self_attn.kv_a_proj_with_mqa",
    experts: ExpertNames {
        shared: SHARED_EXPERTS,
        ..EXPERTS
    },
    ..LLAMA
};

/// The same in GGUF.
pub(super) const DEEPSEEK2_GGUF: Names = Names {
    query_norm: "attn_q_a_norm",
    key_norm: "attn_kv_a_norm",
    key: "attn_kv_a_mqa",
    ..GGUF
};

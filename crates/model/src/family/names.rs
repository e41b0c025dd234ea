//! The names of tensors.

use super::expert_names::{EXPERTS, ExpertNames, Stacking};
use super::kinds::Mixers;
use super::stream_names::{self, StreamNames};
use crate::description::HeadSharing;
use crate::tensor_map::StoredAs;

/// Tensor names of one layout, without `.weight` and `.bias`. Linear layers of the same name are stored one after
/// another in the rows of one tensor. A name that a family does not need is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) embedding: &'static str,
    /// The norm of the embedding, where norms replace the residual stream.
    pub(super) embedding_norm: &'static str,
    /// The table of learned embeddings of positions.
    pub(super) positions: &'static str,
    /// The table of learned embeddings of token types.
    pub(super) token_types: &'static str,
    pub(super) output_norm: &'static str,
    pub(super) output: &'static str,
    /// The two layers of a classifier, of which the inner one may be empty: there is none.
    pub(super) classifier: [&'static str; 2],
    /// The norm between these layers.
    pub(super) classifier_norm: &'static str,
    /// Layers after pooling that are no classifier.
    pub(super) dense: &'static [&'static str],
    /// Parts of the names of tensors that have no part in vectors and scores.
    pub(super) inert: &'static [&'static str],
    /// Prefix of block `i`'s names: this, `i`, a dot.
    pub(super) block: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) attention_post_norm: &'static str,
    pub(super) feed_forward_norm: &'static str,
    pub(super) feed_forward_post_norm: &'static str,
    pub(super) query_norm: &'static str,
    pub(super) key_norm: &'static str,
    pub(super) query: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    pub(super) attention_output: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) mixer_input: &'static str,
    pub(super) mixer_output: &'static str,
    pub(super) mixer_gate: &'static str,
    pub(super) mixer_rate: &'static str,
    pub(super) mixer_decay: &'static str,
    /// A mixer's convolution; its bias has the same name.
    pub(super) convolution: &'static str,
    /// The whole name of a mixer's decays, and how they are stored.
    pub(super) decay: (&'static str, StoredAs),
    /// The whole name of the summands of a mixer's decays.
    pub(super) decay_bias: &'static str,
    /// The whole name of the norm of a mixer's heads.
    pub(super) head_norm: &'static str,
    /// The whole name of the factors of values that a mixer adds to its outputs.
    pub(super) skip: &'static str,
    /// The whole name of the sinks of attention.
    pub(super) sinks: &'static str,
    /// Names in the blocks with experts.
    pub(super) experts: ExpertNames,
    /// Names of latent vectors of attention.
    pub(super) latent: LatentNames,
    /// Names of inputs by token.
    pub(super) token_inputs: TokenInputNames,
    /// Names of several residual streams.
    pub(super) streams: StreamNames,
    /// The factor on the residual stream after a block, with its ending.
    pub(super) scale: &'static str,
}

/// Tensor names of latent vectors of attention, whole except the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentNames {
    /// The query linear, where it gives a latent vector.
    pub(super) query: &'static str,
    /// The matrix from that vector to queries.
    pub(super) queries: &'static str,
    /// The matrices of keys and values in one tensor.
    pub(super) both: &'static str,
    /// The matrices of keys alone, and of values alone.
    pub(super) apart: [&'static str; 2],
}

const LATENT: LatentNames = LatentNames {
    query: "self_attn.q_a_proj",
    queries: "self_attn.q_b_proj.weight",
    both: "self_attn.kv_b_proj.weight",
    apart: [""; 2],
};

/// Tensor names of inputs by token; the last three are those of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenInputNames {
    pub(super) table: &'static str,
    pub(super) projection: &'static str,
    pub(super) projection_norm: &'static str,
    pub(super) gate: &'static str,
    pub(super) output: &'static str,
    pub(super) norm: &'static str,
}

const TOKEN_INPUTS: TokenInputNames = TokenInputNames {
    table: "embed_tokens_per_layer",
    projection: "per_layer_model_projection",
    projection_norm: "per_layer_projection_norm",
    gate: "per_layer_input_gate",
    output: "per_layer_projection",
    norm: "post_per_layer_input_norm",
};

pub(super) const LLAMA: Names = Names {
    embedding: "embed_tokens",
    embedding_norm: "",
    positions: "",
    token_types: "",
    output_norm: "norm",
    output: "lm_head",
    classifier: ["", "score"],
    classifier_norm: "",
    dense: &[],
    inert: &[],
    block: "layers.",
    attention_norm: "input_layernorm",
    attention_post_norm: "",
    feed_forward_norm: "post_attention_layernorm",
    feed_forward_post_norm: "",
    query_norm: "",
    key_norm: "",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.o_proj",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    mixer_input: "",
    mixer_output: "",
    mixer_gate: "",
    mixer_rate: "",
    mixer_decay: "",
    convolution: "",
    decay: ("", StoredAs::Itself),
    decay_bias: "",
    head_norm: "",
    skip: "",
    sinks: "",
    experts: EXPERTS,
    latent: LATENT,
    token_inputs: TOKEN_INPUTS,
    streams: stream_names::HUGGING_FACE,
    scale: "layer_scalar",
};

pub(super) const MIXTRAL: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.gate",
        gate: "block_sparse_moe.experts.*.w1",
        up: "block_sparse_moe.experts.*.w3",
        down: "block_sparse_moe.experts.*.w2",
        ..EXPERTS
    },
    ..LLAMA
};

/// Granite, whose experts are stacked, gate before up.
pub(super) const GRANITE_MOE: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router.layer",
        gate: "block_sparse_moe.input_linear",
        up: "block_sparse_moe.input_linear",
        down: "block_sparse_moe.output_linear",
        stacked: None,
        ..EXPERTS
    },
    ..LLAMA
};

/// gpt-oss, whose experts are stacked.
pub(super) const GPT_OSS: Names = Names {
    sinks: "self_attn.sinks",
    experts: ExpertNames {
        router: "mlp.router",
        gate: "mlp.experts.gate_up_proj",
        up: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        endings: ["", "_bias"],
        stacking: Stacking::Alternating,
        stacked: None,
        ..EXPERTS
    },
    ..LLAMA
};

/// The text of Qwen3-VL with experts, which are stacked.
pub(super) const QWEN3_VL_MOE: Names = Names {
    experts: ExpertNames {
        gate: "mlp.experts.gate_up_proj",
        up: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        endings: ["", ""],
        stacking: Stacking::Columns,
        stacked: None,
        ..EXPERTS
    },
    ..QWEN3
};

/// The names of shared experts that are more than one.
pub(super) const SHARED_EXPERTS: [&str; 3] = [
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.up_proj",
    "mlp.shared_experts.down_proj",
];

pub(super) const ERNIE4_5_MOE: Names = Names {
    experts: ExpertNames {
        correction: "mlp.moe_statics.e_score_correction_bias",
        shared: SHARED_EXPERTS,
        ..EXPERTS
    },
    ..LLAMA
};

pub(super) const GLM4_MOE: Names = Names {
    experts: ExpertNames {
        shared: SHARED_EXPERTS,
        ..EXPERTS
    },
    ..QWEN3
};

pub(super) const QWEN3: Names = Names {
    query_norm: "self_attn.q_norm",
    key_norm: "self_attn.k_norm",
    ..LLAMA
};

pub(super) const ARCEE: Names = Names { gate: "", ..LLAMA };

pub(super) const HUNYUAN: Names = Names {
    query_norm: "self_attn.query_layernorm",
    key_norm: "self_attn.key_layernorm",
    ..LLAMA
};

pub(super) const GLM: Names = Names {
    gate: "mlp.gate_up_proj",
    up: "mlp.gate_up_proj",
    ..LLAMA
};

pub(super) const GLM4: Names = Names {
    attention_post_norm: "post_self_attn_layernorm",
    feed_forward_post_norm: "post_mlp_layernorm",
    ..GLM
};

/// OLMo 2 and 3, EXAONE 4.
pub(super) const POST_NORM: Names = Names {
    attention_norm: "",
    attention_post_norm: "post_attention_layernorm",
    feed_forward_norm: "",
    feed_forward_post_norm: "post_feedforward_layernorm",
    ..QWEN3
};

pub(super) const GEMMA2: Names = Names {
    attention_post_norm: "post_attention_layernorm",
    feed_forward_norm: "pre_feedforward_layernorm",
    feed_forward_post_norm: "post_feedforward_layernorm",
    ..LLAMA
};

pub(super) const GEMMA3: Names = Names {
    query_norm: "self_attn.q_norm",
    key_norm: "self_attn.k_norm",
    ..GEMMA2
};

/// Gemma 4 with experts next to the dense layers.
pub(super) const GEMMA4_MOE: Names = Names {
    experts: ExpertNames {
        router: "router.proj",
        gate: "experts.gate_up_proj",
        up: "experts.gate_up_proj",
        down: "experts.down_proj",
        endings: ["", ""],
        stacked: None,
        shared: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
        branch: [
            "router.scale",
            "router.per_expert_scale",
            "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_2",
        ],
        ..EXPERTS
    },
    ..GEMMA3
};

pub(super) const PHI2: Names = Names {
    output_norm: "final_layernorm",
    attention_output: "self_attn.dense",
    gate: "",
    up: "mlp.fc1",
    down: "mlp.fc2",
    ..LLAMA
};

pub(super) const PHI3: Names = Names {
    query: "self_attn.qkv_proj",
    key: "self_attn.qkv_proj",
    value: "self_attn.qkv_proj",
    gate: "mlp.gate_up_proj",
    up: "mlp.gate_up_proj",
    ..LLAMA
};

pub(super) const LFM2: Names = Names {
    output_norm: "embedding_norm",
    attention_norm: "operator_norm",
    feed_forward_norm: "ffn_norm",
    query_norm: "self_attn.q_layernorm",
    key_norm: "self_attn.k_layernorm",
    attention_output: "self_attn.out_proj",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    down: "feed_forward.w2",
    mixer_input: "conv.in_proj",
    mixer_output: "conv.out_proj",
    convolution: "conv.conv",
    ..LLAMA
};

pub(super) const LFM2_MOE: Names = Names {
    experts: ExpertNames {
        router: "feed_forward.gate",
        correction: "feed_forward.expert_bias",
        gate: "feed_forward.experts.*.w1",
        up: "feed_forward.experts.*.w3",
        down: "feed_forward.experts.*.w2",
        stacked: Some([
            "feed_forward.gate",
            "feed_forward.experts.gate_up_proj",
            "feed_forward.experts.down_proj",
        ]),
        ..EXPERTS
    },
    ..LFM2
};

pub(super) const QWEN3_5: Names = Names {
    mixer_input: "linear_attn.in_proj_qkv",
    mixer_output: "linear_attn.out_proj",
    mixer_gate: "linear_attn.in_proj_z",
    mixer_rate: "linear_attn.in_proj_b",
    mixer_decay: "linear_attn.in_proj_a",
    convolution: "linear_attn.conv1d",
    decay: ("linear_attn.A_log", StoredAs::Logarithm),
    decay_bias: "linear_attn.dt_bias",
    head_norm: "linear_attn.norm.weight",
    ..QWEN3
};

/// Qwen3-Next, whose mixers have the parts of each key head next to each other.
pub(super) const QWEN3_NEXT: Names = Names {
    mixer_input: "linear_attn.in_proj_qkvz",
    mixer_gate: "linear_attn.in_proj_qkvz",
    mixer_rate: "linear_attn.in_proj_ba",
    mixer_decay: "linear_attn.in_proj_ba",
    ..QWEN3_5
};

/// Returns the names in GGUF.
pub(super) fn gguf(mixers: Mixers, sharing: HeadSharing) -> Names {
    // Rates and decays of adjacent heads are in one tensor.
    let [rate, decay] = match sharing {
        HeadSharing::Adjacent => ["ssm_ba"; 2],
        HeadSharing::Remainder => ["ssm_beta", "ssm_alpha"],
    };
    match mixers {
        Mixers::Attention => GGUF,
        Mixers::ShortConv => Names {
            output_norm: "token_embd_norm",
            ..GGUF
        },
        Mixers::DeltaNet => Names {
            // llama.cpp calls the norm before the feed-forward by the place after attention.
            feed_forward_norm: GGUF.attention_post_norm,
            mixer_input: "attn_qkv",
            mixer_output: "ssm_out",
            mixer_gate: "attn_gate",
            mixer_rate: rate,
            mixer_decay: decay,
            convolution: "ssm_conv1d",
            decay: ("ssm_a", StoredAs::Itself),
            decay_bias: "ssm_dt.bias",
            head_norm: "ssm_norm.weight",
            ..GGUF
        },
        Mixers::Mamba2 => Names {
            mixer_input: "ssm_in",
            mixer_output: "ssm_out",
            convolution: "ssm_conv1d",
            decay: ("ssm_a", StoredAs::Itself),
            decay_bias: "ssm_dt.bias",
            head_norm: "ssm_norm.weight",
            skip: "ssm_d",
            ..GGUF
        },
    }
}

pub(super) const GGUF: Names = Names {
    embedding: "token_embd",
    embedding_norm: "token_embd_norm",
    positions: "position_embd",
    token_types: "token_types",
    output_norm: "output_norm",
    output: "output",
    classifier: ["cls", "cls.output"],
    classifier_norm: "cls.norm",
    dense: &["dense_2", "dense_3"],
    inert: &[],
    block: "blk.",
    attention_norm: "attn_norm",
    attention_post_norm: "post_attention_norm",
    feed_forward_norm: "ffn_norm",
    feed_forward_post_norm: "post_ffw_norm",
    query_norm: "attn_q_norm",
    key_norm: "attn_k_norm",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    attention_output: "attn_output",
    gate: "ffn_gate",
    up: "ffn_up",
    down: "ffn_down",
    mixer_input: "shortconv.in_proj",
    mixer_output: "shortconv.out_proj",
    mixer_gate: "",
    mixer_rate: "",
    mixer_decay: "",
    convolution: "shortconv.conv",
    decay: ("", StoredAs::Itself),
    decay_bias: "",
    head_norm: "",
    skip: "",
    sinks: "attn_sinks.weight",
    experts: ExpertNames {
        router: "ffn_gate_inp",
        correction: "exp_probs_b.bias",
        gate: "ffn_gate_exps",
        up: "ffn_up_exps",
        down: "ffn_down_exps",
        endings: [".weight", ".bias"],
        stacking: Stacking::Rows,
        stacked: None,
        shared: ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"],
        shared_gate: "ffn_gate_inp_shexp",
        branch: [
            "ffn_gate_inp.scale",
            "ffn_down_exps.scale",
            "post_ffw_norm_1",
            "pre_ffw_norm_2",
            "post_ffw_norm_2",
        ],
    },
    latent: LatentNames {
        query: "attn_q_a",
        queries: "attn_q_b.weight",
        both: "attn_kv_b.weight",
        apart: ["attn_k_b.weight", "attn_v_b.weight"],
    },
    token_inputs: TokenInputNames {
        table: "per_layer_token_embd",
        projection: "per_layer_model_proj",
        projection_norm: "per_layer_proj_norm",
        gate: "inp_gate",
        output: "proj",
        norm: "post_norm",
    },
    streams: stream_names::GGUF,
    scale: "layer_output_scale.weight",
};

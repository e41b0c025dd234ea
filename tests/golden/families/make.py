#!/usr/bin/env python3
"""Makes the tiny random checkpoints of every model family, and the logits that they must give.

    pip install torch transformers==4.57.6 safetensors gguf xllamacpp
    python tests/golden/families/make.py [NAME ...]

and again with transformers 5.24.0 for the names that only that version has.

For each name in CASES this writes, next to this script:

    NAME/                  the checkpoint as `transformers` saves it
    NAME.gguf              the same weights under llama.cpp's names, for the cases that have one
    golden.safetensors     SESSION.tokens [tokens] and SESSION.logits [tokens, vocab] of every session
    golden-2.safetensors   the same of those that the first file has no place for
    golden-3.safetensors   and of those that the second one has no place for

The logits come from `transformers` in float64 (its norms, RoPE and softmax stay in float32). Before
anything is kept, two checks:

- every feature that a case is there for matters: without it the logits are visibly different;
- llama.cpp (through xllamacpp), an engine of other authors, gives the GGUF file the same logits.

The same seeds give the same files on one version of torch. Weights are random, so nothing here is
anyone's model.
"""

import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "reference"))

from doubled import in_float64
from llama_cpp import Engine

F32 = gguf.GGMLQuantizationType.F32
BF16 = gguf.GGMLQuantizationType.BF16
Q4_0 = gguf.GGMLQuantizationType.Q4_0
VOCAB = 128
TOKENS = 40
WINDOW = 8

# Logits may differ by this much, relative to the largest, between transformers and llama.cpp in float32.
AGREEMENT = 1e-5
# llama.cpp's CPU reads GELU from a table in float16.
AGREEMENT_GELU = 1e-3
# Switching a feature off must change the logits by this much, relative to the largest.
SENSITIVITY = 1e-2


@dataclass
class Case:
    """One checkpoint."""

    model_type: str
    config: dict
    dtype: torch.dtype = torch.bfloat16
    # Changes of the configuration, each of which must change the logits.
    features: list = field(default_factory=list)
    # The configuration of the part that reads images; the model is then the text of one with images.
    vision: dict | None = None
    # Tokens of each session; more than one where the length changes the answer.
    sessions: dict = field(default_factory=lambda: {"": TOKENS})
    architecture: str | None = None
    sharded: bool = False
    # The file of its logits.
    golden: str = "golden.safetensors"
    # Whether another case has the same checkpoint.
    gguf_alone: bool = False
    # The version of transformers that has the model.
    version: int = 4
    # Whether the file has tensors as version 5 computes with them: experts in one.
    stacked: bool = False
    # Whether experts are stored in MXFP4.
    mxfp4: bool = False
    # The family and its fields in the file, if transformers computes it under another name: with those of `config`.
    written: dict | None = None


# Heads are wider than hidden / heads where the family allows it, so that the two can't be confused.
SMALL = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
WIDE_HEADS = SMALL | dict(head_dim=16)
# For Phi, which rotates a part of a head: heads are hidden / heads = 16 wide.
PHI = SMALL | dict(num_attention_heads=2, num_key_value_heads=1)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
YARN_ALL = YARN | dict(original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=1.3)
YARN_CHANGES = [dict(beta_fast=0.6), dict(beta_slow=0.2), dict(mscale=2.0), dict(mscale_all_dim=2.0), dict(truncate=False)]
MINISTRAL3 = dict(
    rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0,
    llama_4_scaling_beta=0.8,
)
# Heads of 8 in two groups.
NEMOTRON = SMALL | dict(
    head_dim=16, mamba_num_heads=4, mamba_head_dim=8, n_groups=2, ssm_state_size=8,
    layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"],
)
NEMOTRON_MOE = dict(
    n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, moe_shared_expert_intermediate_size=32,
    routed_scaling_factor=2.5,
)
# Factors are powers of two, so that llama.cpp's weights hold them exactly.
FALCON = SMALL | dict(
    mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=8, mamba_rms_norm=True,
    mamba_norm_before_gate=False, attention_in_multiplier=0.5, attention_out_multiplier=2.0, key_multiplier=4.0,
    ssm_in_multiplier=2.0, ssm_out_multiplier=0.5, ssm_multipliers=[0.5, 0.25, 2.0, 0.5, 0.25], mlp_multipliers=[2.0, 0.5],
    embedding_multiplier=0.5, lm_head_multiplier=2.0, rope_parameters=dict(rope_type="default", rope_theta=1e4),
)
LATENT = SMALL | dict(
    num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
)
YARN_LATENT = dict(
    rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0,
)
LFM2 = SMALL | dict(
    num_hidden_layers=5, layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], rope_theta=1e6,
    intermediate_size=64, block_multiple_of=16,
)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
EXPERTS = WIDE_HEADS | MOE
ROPES4 = dict(
    sliding_attention=dict(rope_type="default", rope_theta=1e4),
    full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
)
GEMMA4 = WIDE_HEADS | dict(
    num_hidden_layers=7, global_head_dim=32, sliding_window=WINDOW, final_logit_softcapping=2.0, rope_parameters=ROPES4,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    + ["sliding_attention"] * 2 + ["full_attention"],
)
GEMMA3N = WIDE_HEADS | dict(
    num_hidden_layers=6, sliding_window=WINDOW, final_logit_softcapping=2.0, num_kv_shared_layers=2,
    layer_types=["sliding_attention", "full_attention"] * 3, intermediate_size=[48, 40, 48, 56, 48, 44],
    hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB - 20, altup_num_inputs=3, laurel_rank=6,
    activation_sparsity_pattern=[0.9, 0.0, 0.7, 0.0, 0.3, 0.0],
)
# The standard deviations of llama.cpp, which divides by the number of gates less 1. It has most sizes in its code.
LONG_GEMMA3N_WIDTH = 64
DEVIATIONS = 1.6448533535003662 * math.sqrt(LONG_GEMMA3N_WIDTH / (LONG_GEMMA3N_WIDTH - 1))
LONG_GEMMA3N = WIDE_HEADS | dict(
    hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_hidden_layers=21, sliding_window=WINDOW,
    intermediate_size=LONG_GEMMA3N_WIDTH, num_kv_shared_layers=1, vocab_size_per_layer_input=VOCAB,
    activation_sparsity_pattern=[0.5 * (1.0 + math.erf(DEVIATIONS / math.sqrt(2)))] * 10 + [0.0] * 11,
)
# The fourth block has attention.
DELTA_NET = SMALL | dict(
    head_dim=16, num_hidden_layers=5, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, rms_norm_eps=1e-5,
)
INTERLEAVED = dict(
    rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True,
)
GPT_OSS = SMALL | dict(
    num_local_experts=6, num_experts_per_tok=2, intermediate_size=32, head_dim=8, sliding_window=WINDOW, rope_theta=1e4,
    rope_scaling=YARN | dict(truncate=True),
)
GPT_OSS_CHANGES = [dict(num_experts_per_tok=3), dict(sliding_window=WINDOW + 1), dict(rope_scaling=None)]
# Heads of 16 in one group; the second and the last block have attention.
HYBRID = SMALL | dict(
    num_hidden_layers=5, layer_types=["mamba", "attention", "mamba", "mamba", "attention"], num_local_experts=0,
    shared_intermediate_size=40, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=20, mamba_n_groups=1,
    embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=5.0,
)
SHORT = [1.0, 1.1, 1.2, 1.4, 1.7, 2.0]
LONG = [1.2, 1.9, 3.1, 4.6, 6.0, 8.0]
MINICPM_ROPE = dict(
    rope_type="longrope", short_factor=[1.0, 1.3, 2.0, 4.0], long_factor=[2.0, 3.0, 5.0, 9.0], factor=1.0,
    original_max_position_embeddings=512,
)

SECOND = "golden-2.safetensors"
THIRD = "golden-3.safetensors"

CASES = {
    # Llama 3's RoPE, in shards.
    "llama": Case(
        "llama", WIDE_HEADS | dict(rope_theta=1000.0, rope_scaling=LLAMA3, rms_norm_eps=1e-5),
        dtype=torch.float32, features=[dict(rope_scaling=None), dict(rope_theta=2000.0)], architecture="llama",
        sharded=True,
    ),
    # Every optional bias, linear RoPE, a tied output matrix.
    "llama-biases": Case(
        "llama",
        SMALL | dict(
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
            rope_scaling=dict(rope_type="linear", factor=2.0),
        ),
        dtype=torch.float16, features=[dict(rope_scaling=None)],
    ),
    "mistral": Case(
        "mistral", WIDE_HEADS | dict(sliding_window=WINDOW), features=[dict(sliding_window=None)],
    ),
    "qwen2": Case("qwen2", SMALL | dict(rope_theta=1e6), architecture="qwen2"),
    "qwen2-window": Case(
        "qwen2",
        SMALL | dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, layer_types=None),
        features=[dict(use_sliding_window=False, layer_types=None), dict(max_window_layers=0, layer_types=None)],
    ),
    "qwen3": Case("qwen3", WIDE_HEADS | dict(rope_theta=1e6, tie_word_embeddings=True), architecture="qwen3"),
    # All numbers of YaRN.
    "llama-yarn": Case(
        "llama", WIDE_HEADS | dict(rope_scaling=YARN_ALL),
        features=[dict(rope_scaling=YARN_ALL | changes) for changes in YARN_CHANGES],
    ),
    # YaRN as Qwen's model cards add it.
    "qwen3-yarn": Case(
        "qwen3", WIDE_HEADS | dict(rope_theta=1e4, rope_scaling=YARN),
        features=[dict(rope_scaling=None), dict(rope_scaling=YARN | dict(attention_factor=1.0))], architecture="qwen3",
    ),
    "granite": Case(
        "granite",
        SMALL | dict(
            embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=5.0,
            num_attention_heads=2, num_key_value_heads=1, rope_scaling=YARN,
        ),
        features=[
            dict(embedding_multiplier=1.0), dict(attention_multiplier=0.4), dict(residual_multiplier=1.0),
            dict(logits_scaling=1.0), dict(rope_scaling=None),
        ],
        architecture="granite",
    ),
    # A family whose code is not in transformers: Granite with factors that follow from other numbers.
    "minicpm": Case(
        "granite",
        SMALL | dict(
            embedding_multiplier=12.0, attention_multiplier=8**-0.5, residual_multiplier=1.4 / math.sqrt(3),
            logits_scaling=4.0, rope_scaling=MINICPM_ROPE,
        ),
        features=[
            dict(embedding_multiplier=1.0), dict(residual_multiplier=1.0), dict(logits_scaling=1.0), dict(rope_scaling=None),
        ],
        architecture="minicpm",
        written=dict(
            model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=8, embedding_multiplier=None,
            attention_multiplier=None, residual_multiplier=None, logits_scaling=None,
        ),
        golden=SECOND,
    ),
    # The fourth block has no RoPE.
    "smollm3": Case(
        "smollm3", SMALL | dict(num_hidden_layers=5, rope_theta=1e4),
        features=[dict(no_rope_layers=[1] * 5), dict(no_rope_layer_interval=5)], architecture="smollm3",
    ),
    # Pairs of adjacent dimensions in safetensors, too.
    "ernie4_5": Case(
        "ernie4_5", WIDE_HEADS | dict(use_bias=True), features=[dict(use_bias=False), dict(rope_theta=1e4)],
    ),
    "ernie4_5-plain": Case("ernie4_5", WIDE_HEADS | dict(tie_word_embeddings=False), architecture="ernie4_5"),
    # Partial RoPE of adjacent pairs.
    "glm": Case(
        "glm", PHI | dict(head_dim=16, rms_norm_eps=1e-5), architecture="chatglm",
        features=[dict(partial_rotary_factor=1.0), dict(attention_bias=False)],
    ),
    # Norms on the outputs of both halves.
    "glm4": Case(
        "glm4", PHI | dict(head_dim=16, rms_norm_eps=1e-5), architecture="glm4",
        features=[dict(partial_rotary_factor=1.0), dict(attention_bias=False)],
    ),
    # Norms of queries and keys after RoPE, whose base is stretched.
    "hunyuan": Case(
        "hunyuan_v1_dense", WIDE_HEADS | dict(rope_scaling=dict(type="dynamic", alpha=100.0), tie_word_embeddings=True),
        features=[dict(rope_scaling=dict(type="dynamic", alpha=1.0))], architecture="hunyuan-dense",
    ),
    "hunyuan-biases": Case(
        "hunyuan_v1_dense", WIDE_HEADS | dict(attention_bias=True), features=[dict(attention_bias=False)],
    ),
    # The fourth block sees everything, and has no RoPE.
    "exaone4": Case(
        "exaone4", WIDE_HEADS | dict(num_hidden_layers=5, sliding_window=WINDOW, rope_scaling=LLAMA3, rope_theta=1000.0),
        features=[
            dict(layer_types=["sliding_attention"] * 5), dict(sliding_window=WINDOW + 1), dict(rope_scaling=None),
        ],
    ),
    "exaone4-plain": Case(
        "exaone4", SMALL | dict(sliding_window=None, layer_types=["full_attention"] * 3, rope_theta=1e6),
        architecture="exaone4",
    ),
    # A feed-forward without a gate.
    "arcee": Case(
        "arcee", WIDE_HEADS | dict(hidden_act="relu2", rope_theta=1e4, rope_scaling=YARN),
        features=[dict(hidden_act="silu"), dict(rope_scaling=None), dict(rms_norm_eps=0.5)], architecture="arcee",
        golden=THIRD,
    ),
    "arcee-biases": Case(
        "arcee", SMALL | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        features=[dict(attention_bias=False), dict(mlp_bias=False)], golden=THIRD,
    ),
    # Attention and feed-forward read one norm without a bias; the fourth block has no window and no RoPE.
    "cohere2": Case(
        "cohere2", SMALL | dict(num_hidden_layers=5, sliding_window=WINDOW, logit_scale=0.25),
        features=[
            dict(sliding_window=WINDOW + 1), dict(logit_scale=0.125), dict(rope_theta=100.0), dict(layer_norm_eps=0.5),
            dict(layer_types=["sliding_attention"] * 5), dict(layer_types=["full_attention"] * 5),
        ],
        architecture="cohere2", golden=THIRD,
    ),
    # Biases of attention, linear RoPE, an output matrix of its own.
    "cohere2-biases": Case(
        "cohere2",
        SMALL | dict(
            num_hidden_layers=4, sliding_window=WINDOW, layer_types=None, sliding_window_pattern=2, attention_bias=True,
            tie_word_embeddings=False, rope_scaling=dict(rope_type="linear", factor=2.0),
        ),
        features=[dict(attention_bias=False), dict(rope_scaling=None), dict(sliding_window_pattern=4)], golden=THIRD,
    ),
    "olmo2": Case("olmo2", SMALL | dict(rope_theta=5e5), architecture="olmo2"),
    # YaRN in the blocks that see everything.
    "olmo3": Case(
        "olmo3", SMALL | dict(num_hidden_layers=5, sliding_window=WINDOW, rope_theta=5e5, rope_scaling=YARN),
        features=[
            dict(layer_types=["sliding_attention"] * 5), dict(sliding_window=WINDOW + 1), dict(rope_scaling=None),
        ],
        architecture="olmo2",
    ),
    # A factor on queries by position.
    "ministral3": Case(
        "ministral3", WIDE_HEADS | dict(rope_parameters=MINISTRAL3),
        features=[
            dict(rope_parameters=MINISTRAL3 | dict(llama_4_scaling_beta=0.0)),
            dict(rope_parameters=MINISTRAL3 | dict(original_max_position_embeddings=32)),
        ],
        architecture="mistral3", version=5,
    ),
    # Experts, whose weights sum to 1; the second block has none.
    "qwen3_moe": Case(
        "qwen3_moe", EXPERTS | dict(norm_topk_prob=True, mlp_only_layers=[1]),
        features=[dict(norm_topk_prob=False), dict(num_experts_per_tok=3), dict(mlp_only_layers=[])],
    ),
    "qwen3moe": Case("qwen3_moe", EXPERTS | dict(norm_topk_prob=True), architecture="qwen3moe", gguf_alone=True),
    # A shared expert with a gate.
    "qwen2_moe": Case(
        "qwen2_moe", SMALL | MOE | dict(shared_expert_intermediate_size=32),
        features=[dict(norm_topk_prob=True)], architecture="qwen2moe",
    ),
    "olmoe": Case(
        "olmoe", SMALL | MOE | dict(intermediate_size=24, num_key_value_heads=4), features=[dict(norm_topk_prob=True)],
        architecture="olmoe",
    ),
    "mixtral": Case(
        "mixtral", SMALL | dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, head_dim=8),
        features=[dict(num_experts_per_tok=3)], architecture="llama",
    ),
    # Sinks, biases and a bounded activation; experts transposed, with columns of gate and up in turns.
    "gpt_oss": Case("gpt_oss", GPT_OSS, features=GPT_OSS_CHANGES, architecture="gpt-oss"),
    # As published.
    "gpt_oss-mxfp4": Case("gpt_oss", GPT_OSS, mxfp4=True, golden=SECOND),
    # Experts in one tensor, in the orders of two families.
    "qwen3_moe-stacked": Case(
        "qwen3_moe", EXPERTS | dict(norm_topk_prob=True), stacked=True, version=5, golden=SECOND,
    ),
    "qwen3_vl_moe": Case(
        "qwen3_vl_moe", EXPERTS | dict(rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2])), vision=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=4,
            deepstack_visual_indexes=[0],
        ),
        golden=SECOND,
    ),
    "qwen3vlmoe": Case(
        "qwen3_moe", EXPERTS | dict(norm_topk_prob=True), architecture="qwen3vlmoe", gguf_alone=True, golden=SECOND,
    ),
    # Sigmoid routing with a correction of the choice; the first block has no experts.
    "lfm2_moe": Case(
        "lfm2_moe",
        {name: value for name, value in LFM2.items() if name != "block_multiple_of"} | MOE | dict(
            num_dense_layers=1, routed_scaling_factor=1.5,
        ),
        features=[
            dict(norm_topk_prob=False), dict(use_expert_bias=False), dict(routed_scaling_factor=1.0),
            dict(num_dense_layers=0), dict(num_experts_per_tok=3),
        ],
        version=5,
        golden=SECOND,
    ),
    "lfm2moe": Case(
        "lfm2_moe",
        {name: value for name, value in LFM2.items() if name != "block_multiple_of"} | MOE | dict(num_dense_layers=1),
        architecture="lfm2moe", gguf_alone=True, version=5,
        golden=SECOND,
    ),
    # Stacked experts, gate and up in one tensor, and the factors of Granite.
    "granitemoe": Case(
        "granitemoe",
        SMALL | dict(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, embedding_multiplier=3.0,
            attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=5.0,
        ),
        features=[dict(num_experts_per_tok=3), dict(residual_multiplier=1.0)], architecture="granitemoe",
        golden=SECOND,
    ),
    # A shared expert without a gate, a correction of the choice, and blocks without experts on both sides.
    "ernie4_5_moe": Case(
        "ernie4_5_moe",
        SMALL | dict(
            num_hidden_layers=5, moe_num_experts=6, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=2,
            moe_layer_start_index=1, moe_layer_end_index=3,
        ),
        features=[
            dict(moe_k=3), dict(moe_num_shared_experts=1), dict(moe_layer_start_index=2), dict(moe_layer_end_index=4),
            dict(moe_layer_interval=2),
        ],
        golden=SECOND,
    ),
    "ernie4_5-moe": Case(
        "ernie4_5_moe",
        SMALL | dict(
            num_hidden_layers=5, moe_num_experts=6, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=2,
            moe_layer_start_index=1,
        ),
        architecture="ernie4_5-moe", gguf_alone=True,
        golden=SECOND,
    ),
    # All of it: sigmoid, correction, factor, shared expert, norms of queries and keys, partial RoPE.
    "glm4_moe": Case(
        "glm4_moe",
        WIDE_HEADS | dict(
            n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1,
            first_k_dense_replace=1, routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True,
        ),
        features=[
            dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0), dict(use_qk_norm=False),
            dict(attention_bias=False), dict(first_k_dense_replace=0), dict(n_shared_experts=2),
        ],
        architecture="glm4moe",
        golden=SECOND,
    ),
    "seed_oss": Case(
        "seed_oss", WIDE_HEADS | dict(attention_out_bias=True),
        features=[dict(attention_bias=False), dict(attention_out_bias=False)],
    ),
    # The text of models with images.
    "qwen2_5_vl": Case(
        "qwen2_5_vl", SMALL | dict(rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])), vision=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, fullatt_block_indexes=[0],
        ),
    ),
    "qwen3_vl": Case(
        "qwen3_vl", WIDE_HEADS | dict(rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2])), vision=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=4,
            deepstack_visual_indexes=[0],
        ),
    ),
    # The same in GGUF, whose text is that of Qwen2 and Qwen3.
    "qwen2vl": Case("qwen2", SMALL | dict(rope_theta=1e6), architecture="qwen2vl", gguf_alone=True),
    "qwen3vl": Case("qwen3", WIDE_HEADS | dict(rope_theta=1e6), architecture="qwen3vl", gguf_alone=True),
    "smolvlm": Case(
        "smolvlm", SMALL | dict(model_type="llama", rms_norm_eps=1e-5), vision=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8,
        ),
    ),
    "llava": Case(
        "llava", SMALL | dict(model_type="mistral", sliding_window=WINDOW), vision=dict(
            model_type="clip_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, image_size=16, patch_size=8, projection_dim=16,
        ),
        features=[dict(sliding_window=None)],
    ),
    # Convolutions and attention take turns; the width of the feed-forward is adjusted.
    "lfm2": Case(
        "lfm2", LFM2,
        features=[
            dict(layer_types=["full_attention", "conv", "conv", "full_attention", "conv"]), dict(rope_theta=1e4),
            dict(intermediate_size=96),
        ],
        architecture="lfm2",
    ),
    # The other names of old configurations, biases, four taps, and an output matrix of its own.
    "lfm2-biases": Case(
        "lfm2",
        {name: value for name, value in LFM2.items() if name not in ("layer_types", "intermediate_size")} | dict(
            full_attn_idxs=[1, 4], conv_bias=True, conv_L_cache=4, block_ff_dim=64, block_ffn_dim_multiplier=1.3,
            tie_embedding=False, norm_eps=1e-3,
        ),
        features=[dict(full_attn_idxs=[1, 3]), dict(norm_eps=1e-1), dict(block_ffn_dim_multiplier=1.6)],
    ),
    # DeltaNets and attention with gates on its output take turns.
    "qwen3_5": Case(
        "qwen3_5_text", DELTA_NET | dict(rope_parameters=INTERLEAVED),
        features=[
            dict(layer_types=["linear_attention"] * 4 + ["full_attention"]), dict(rms_norm_eps=1e-1),
            dict(rope_parameters=INTERLEAVED | dict(partial_rotary_factor=1.0)),
            dict(rope_parameters=INTERLEAVED | dict(rope_theta=10.0)),
        ],
        architecture="qwen35", version=5,
        golden=SECOND,
    ),
    # Heads of other sizes, biases, a tied output matrix, and YaRN on a fraction of a head.
    "qwen3_5-wide": Case(
        "qwen3_5_text",
        DELTA_NET | dict(
            num_hidden_layers=4, full_attention_interval=2, linear_num_key_heads=3, linear_num_value_heads=3,
            linear_key_head_dim=20, linear_value_head_dim=24, linear_conv_kernel_dim=3, attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=YARN | dict(rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
        ),
        features=[
            dict(full_attention_interval=4), dict(attention_bias=False),
            dict(rope_parameters=INTERLEAVED | dict(partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        ],
        version=5,
        golden=SECOND,
    ),
    "qwen3_5_moe": Case(
        "qwen3_5_moe_text",
        DELTA_NET | MOE | dict(num_hidden_layers=4, shared_expert_intermediate_size=32, rope_parameters=INTERLEAVED),
        features=[dict(num_experts_per_tok=3), dict(layer_types=["linear_attention"] * 3 + ["linear_attention"])],
        architecture="qwen35moe", version=5,
        golden=SECOND,
    ),
    # The parts of each key head of a DeltaNet next to each other; the second block has no experts.
    "qwen3_next": Case(
        "qwen3_next",
        DELTA_NET | MOE | dict(
            num_hidden_layers=4, shared_expert_intermediate_size=32, mlp_only_layers=[1], rope_theta=1e4,
        ),
        features=[
            dict(num_experts_per_tok=3), dict(norm_topk_prob=False), dict(mlp_only_layers=[]),
            dict(full_attention_interval=2), dict(partial_rotary_factor=1.0),
        ],
        golden=SECOND,
    ),
    "qwen3next": Case(
        "qwen3_next",
        DELTA_NET | MOE | dict(num_hidden_layers=4, shared_expert_intermediate_size=32, rope_theta=1e4),
        architecture="qwen3next", gguf_alone=True, golden=SECOND,
    ),
    # Mamba-2 and attention without RoPE take turns.
    "granitehybrid": Case(
        "granitemoehybrid", HYBRID,
        features=[
            dict(layer_types=["mamba", "mamba", "attention", "mamba", "attention"]), dict(position_embedding_type="rope"),
            dict(residual_multiplier=1.0), dict(attention_multiplier=0.4), dict(mamba_conv_bias=False),
        ],
        architecture="granitehybrid", golden=SECOND,
    ),
    # With experts next to the shared one, RoPE, and biases of the mixer.
    "granitemoehybrid": Case(
        "granitemoehybrid",
        HYBRID | dict(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, position_embedding_type="rope",
            mamba_d_conv=3, mamba_proj_bias=True,
        ),
        features=[dict(num_experts_per_tok=3), dict(position_embedding_type="nope"), dict(mamba_proj_bias=False)],
        golden=SECOND,
    ),
    "granitehybrid-moe": Case(
        "granitemoehybrid",
        HYBRID | dict(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, position_embedding_type="rope",
        ),
        architecture="granitehybrid", gguf_alone=True, golden=SECOND,
    ),
    # Blocks of one part: Mamba-2, attention without RoPE, or a feed-forward.
    "nemotron_h": Case(
        "nemotron_h", NEMOTRON,
        features=[
            dict(layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp", "linear_attention"]),
            dict(mlp_hidden_act="silu"), dict(use_conv_bias=False),
        ],
        architecture="nemotron_h", version=5, golden=THIRD,
    ),
    "nemotron_h-moe": Case(
        "nemotron_h",
        NEMOTRON | NEMOTRON_MOE | dict(
            layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe", "linear_attention"],
        ),
        features=[dict(num_experts_per_tok=3), dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False)],
        architecture="nemotron_h_moe", version=5, golden=THIRD,
    ),
    # Experts of the best groups, a dense feed-forward, too, and biases.
    "nemotron_h-both": Case(
        "nemotron_h",
        NEMOTRON | NEMOTRON_MOE | dict(
            n_group=3, topk_group=1, use_bias=True,
            layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
        ),
        features=[
            dict(topk_group=3), dict(use_bias=False), dict(num_experts_per_tok=1), dict(routed_scaling_factor=1.0),
            dict(norm_topk_prob=False),
        ],
        version=5, golden=THIRD, stacked=True,
    ),
    # Biases of feed-forwards, which Triad refuses next to experts.
    "nemotron_h-biases": Case(
        "nemotron_h", NEMOTRON | dict(mlp_bias=True), features=[dict(mlp_bias=False)], version=5, golden=THIRD,
    ),
    # Attention and Mamba-2 read one norm; factors on most parts.
    "falcon_h1": Case(
        "falcon_h1", FALCON,
        features=[
            dict(attention_in_multiplier=1.0), dict(attention_out_multiplier=1.0), dict(key_multiplier=1.0),
            dict(ssm_in_multiplier=1.0), dict(ssm_out_multiplier=1.0), dict(ssm_multipliers=[1.0] * 5),
            dict(mlp_multipliers=[1.0, 0.5]), dict(mlp_multipliers=[2.0, 1.0]), dict(embedding_multiplier=1.0),
            dict(lm_head_multiplier=1.0), dict(mamba_rms_norm=False), dict(mamba_norm_before_gate=True),
        ],
        architecture="falcon-h1", version=5, golden=THIRD,
    ),
    "falcon_h1-before": Case(
        "falcon_h1", FALCON | dict(mamba_norm_before_gate=True, mamba_conv_bias=False, tie_word_embeddings=True),
        features=[dict(mamba_norm_before_gate=False)], version=5, golden=THIRD,
    ),
    "falcon_h1-plain": Case(
        "falcon_h1", FALCON | dict(mamba_rms_norm=False), features=[dict(mamba_rms_norm=True)],
        architecture="falcon-h1", version=5, golden=THIRD,
    ),
    # Latent vectors of attention; experts of the best groups; YaRN whose factors change scores alone.
    "deepseek_v3": Case(
        "deepseek_v3",
        LATENT | dict(
            q_lora_rank=24, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, first_k_dense_replace=1,
            moe_intermediate_size=24, n_shared_experts=1, routed_scaling_factor=1.5, rope_parameters=YARN_LATENT,
        ),
        features=[
            dict(topk_group=4), dict(num_experts_per_tok=2), dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0),
            dict(rope_interleave=False), dict(rope_parameters=YARN_LATENT | dict(mscale=3.0)),
            dict(rope_parameters=YARN_LATENT | dict(mscale_all_dim=3.0)),
        ],
        architecture="deepseek2", version=5, golden=THIRD,
    ),
    # Queries without a latent vector, softmax over experts. Not split in GGUF, and with as many blocks as llama.cpp expects.
    "deepseek_v2": Case(
        "deepseek_v2",
        LATENT | dict(
            num_hidden_layers=26, q_lora_rank=None, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1,
            moe_intermediate_size=8, n_shared_experts=2, intermediate_size=16, num_attention_heads=2,
            num_key_value_heads=2,
        ),
        features=[dict(num_experts_per_tok=1), dict(first_k_dense_replace=2), dict(n_shared_experts=1)],
        architecture="deepseek2", version=5, golden=THIRD,
    ),
    # Groups by their best experts, and biases.
    "deepseek_v2-groups": Case(
        "deepseek_v2",
        LATENT | dict(
            q_lora_rank=24, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=24,
            topk_method="group_limited_greedy", routed_scaling_factor=2.5, attention_bias=True,
            rope_parameters=YARN_LATENT | dict(mscale=0.707, mscale_all_dim=0.707),
        ),
        features=[
            dict(topk_method="greedy"), dict(attention_bias=False), dict(topk_group=4), dict(num_experts_per_tok=2),
            dict(routed_scaling_factor=1.0),
        ],
        version=5, golden=THIRD,
    ),
    # As published, scaled by YaRN.
    "deepseek_v2-yarn": Case(
        "deepseek_v2",
        LATENT | dict(
            q_lora_rank=24, n_routed_experts=6, num_experts_per_tok=3, first_k_dense_replace=1, moe_intermediate_size=24,
            n_shared_experts=1, routed_scaling_factor=2.5,
            rope_parameters=YARN_LATENT | dict(mscale=0.707, mscale_all_dim=0.707),
        ),
        features=[
            dict(num_experts_per_tok=2), dict(routed_scaling_factor=1.0),
            dict(rope_parameters=YARN_LATENT | dict(mscale=0.707, mscale_all_dim=3.0)),
        ],
        architecture="deepseek2", version=5, golden=THIRD, gguf_alone=True,
    ),
    "glm4_moe_lite": Case(
        "glm4_moe_lite",
        LATENT | dict(
            q_lora_rank=24, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, v_head_dim=20,
            rope_interleave=False,
        ),
        features=[
            dict(rope_interleave=True), dict(mlp_layer_types=["sparse"] * 3), dict(routed_scaling_factor=1.0),
            dict(num_experts_per_tok=3), dict(norm_topk_prob=False),
        ],
        version=5, golden=THIRD,
    ),
    "glm4_moe_lite-adjacent": Case(
        "glm4_moe_lite",
        LATENT | dict(
            q_lora_rank=24, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, v_head_dim=20,
            rope_interleave=True,
        ),
        features=[dict(rope_interleave=False)], architecture="deepseek2", version=5, golden=THIRD, gguf_alone=True,
    ),
    "qwen3_5-images": Case(
        "qwen3_5", DELTA_NET | dict(num_hidden_layers=4, rope_parameters=INTERLEAVED), vision=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=4,
        ),
        version=5,
        golden=SECOND,
    ),
    "gemma": Case("gemma", WIDE_HEADS | dict(num_key_value_heads=1), architecture="gemma"),
    "gemma2": Case(
        "gemma2",
        WIDE_HEADS | dict(
            sliding_window=WINDOW, query_pre_attn_scalar=64, attn_logit_softcapping=3.0, final_logit_softcapping=2.0
        ),
        features=[
            dict(layer_types=["full_attention"] * 3), dict(attn_logit_softcapping=None),
            dict(final_logit_softcapping=None), dict(query_pre_attn_scalar=16),
        ],
        architecture="gemma2",
    ),
    # Seven blocks: the sixth sees everything, with linear RoPE on another base.
    "gemma3": Case(
        "gemma3_text",
        WIDE_HEADS | dict(
            num_hidden_layers=7, sliding_window=WINDOW, query_pre_attn_scalar=16,
            rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=4.0),
        ),
        features=[
            dict(layer_types=["sliding_attention"] * 7), dict(sliding_window=WINDOW + 1),
            dict(rope_scaling=None), dict(rope_theta=1e4), dict(rope_local_base_freq=1e6),
        ],
        architecture="gemma3",
    ),
    # The last three blocks read the keys and values of the two before them, and have a wider feed-forward.
    "gemma4": Case(
        "gemma4_text",
        GEMMA4 | dict(
            num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCAB,
        ),
        features=[
            dict(sliding_window=WINDOW + 1), dict(final_logit_softcapping=None),
            dict(rope_parameters=ROPES4 | dict(full_attention=ROPES4["full_attention"] | dict(partial_rotary_factor=0.5))),
            dict(rope_parameters=ROPES4 | dict(full_attention=ROPES4["full_attention"] | dict(rope_theta=1e4))),
            dict(rope_parameters=ROPES4 | dict(sliding_attention=dict(rope_type="default", rope_theta=1e2))),
        ],
        architecture="gemma4", version=5,
    ),
    # Blocks without a window have fewer keys, which are the values, too.
    "gemma4-one-layer": Case(
        "gemma4_text",
        GEMMA4 | dict(
            attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0,
        ),
        features=[dict(sliding_window=WINDOW + 1)], architecture="gemma4", version=5,
    ),
    # Experts next to the dense feed-forward.
    "gemma4-moe": Case(
        "gemma4_text",
        GEMMA4 | dict(
            attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0, enable_moe_block=True,
            num_experts=6, top_k_experts=2, moe_intermediate_size=24,
        ),
        features=[dict(top_k_experts=3), dict(enable_moe_block=False)], architecture="gemma4", version=5, golden=SECOND,
    ),
    # Streams, layers next to attention, inputs by token of a smaller table, gates that become 0; the last two blocks read
    # the keys and values of others.
    "gemma3n": Case(
        "gemma3n_text", GEMMA3N,
        features=[
            dict(sliding_window=WINDOW + 1), dict(final_logit_softcapping=4.0), dict(altup_correct_scale=False),
            dict(activation_sparsity_pattern=[0.0] * 6), dict(activation_sparsity_pattern=[0.9, 0.0, 0.7, 0.0, 0.0, 0.0]),
        ],
        version=5, golden=THIRD,
    ),
    "gemma3n-unscaled": Case(
        "gemma3n_text", GEMMA3N | dict(altup_correct_scale=False, num_hidden_layers=2, num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"], intermediate_size=48, activation_sparsity_pattern=None),
        features=[dict(altup_correct_scale=True)], version=5, golden=THIRD,
    ),
    "gemma3n-long": Case(
        "gemma3n_text", LONG_GEMMA3N, features=[dict(sliding_window=WINDOW + 1)], architecture="gemma3n", version=5,
        gguf_alone=True, golden=THIRD,
    ),
    "phi2": Case(
        "phi", PHI | dict(partial_rotary_factor=0.5, hidden_act="gelu_new"),
        features=[dict(partial_rotary_factor=0.25)], architecture="phi2",
    ),
    "phi3": Case(
        "phi3", PHI | dict(sliding_window=WINDOW), features=[dict(sliding_window=None)],
    ),
    # One checkpoint, two sets of divisors: sessions within the context of pre-training, and beyond it.
    "phi3-longrope": Case(
        "phi3",
        PHI | dict(
            partial_rotary_factor=0.75, original_max_position_embeddings=64, sliding_window=None,
            rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG),
        ),
        features=[
            dict(rope_scaling=dict(type="longrope", short_factor=LONG, long_factor=SHORT)),
            dict(max_position_embeddings=64),
        ],
        sessions={"-short": TOKENS, "-long": 80}, architecture="phi3",
    ),
}


# Buffers of weights: summands of the scores of experts.
CORRECTIONS = (".expert_bias", ".e_score_correction_bias")


def randomize(model, dtype):
    """Weights, representable in `dtype`, that make every part matter: norms are not 1, biases not 0, attention neither flat nor one-hot."""
    generator = torch.Generator().manual_seed(0)
    # Gemma's layers normalize their output: their norms decide how much each block adds.
    is_gemma = type(model).__name__.startswith("Gemma")
    less_one = is_gemma and not type(model).__name__.startswith(("Gemma4", "Gemma3n"))
    # Those of DeltaNets are stored as they are.
    centered = less_one or type(model).__name__.startswith(("Qwen3_5", "Qwen3Next"))
    corrections = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(CORRECTIONS)]
    for name, parameter in sorted([*model.named_parameters(), *corrections]):
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            norm = "norm" in name and name.endswith("weight")
            values = 0.3 * values + (1.0 if norm and (not centered or "linear_attn" in name) else 0.0)
            # Some positions later, what a DeltaNet has seen still matters.
            values -= 2.0 if name.endswith("A_log") else 0.0
            if is_gemma and not less_one and "q_norm" in name:
                # Scores have no factor.
                values *= 0.15 if type(model).__name__.startswith("Gemma3n") else 0.4
        elif "embed" in name:
            values *= 1.0 / math.sqrt(parameter.shape[1]) if is_gemma else 1.0
        else:
            gain = 1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0
            values *= gain / math.sqrt(parameter.shape[1])
            if "modality_router" in name:
                # What it reads is divided by its width. Larger routes would enlarge errors from block to block.
                values *= parameter.shape[1] / 20
            if "gate_proj" in name and type(model).__name__.startswith("Gemma3n"):
                # Some gates are far above the others: a norm follows, which would enlarge errors of what is almost 0.
                values[: len(values) // 8] *= 4.0
        parameter.data.copy_(values.to(dtype))
    for name, factor in block_factors(model):
        factor.copy_((0.5 + torch.rand(factor.shape, generator=generator)).to(dtype))


def block_factors(model):
    """Gemma 4's factors on the output of each block, which are no parameters."""
    return sorted((name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar"))


def build(case, changes=None):
    """The model of a case in float32. Its buffers (RoPE's frequencies) never pass through the case's format."""
    text = json.loads(json.dumps(case.config | (changes or {})))
    if case.vision is None:
        config, auto = AutoConfig.for_model(case.model_type, **text), AutoModelForCausalLM
    else:
        outside = dict(image_token_id=1, image_token_index=1, video_token_id=2, tie_word_embeddings=False)
        config = AutoConfig.for_model(case.model_type, text_config=text, vision_config=dict(case.vision), **outside)
        auto = AutoModelForImageTextToText
    # Version 5 computes experts in float32 otherwise, or not at all.
    newer = {} if transformers.__version__.startswith("4.") else {"experts_implementation": "eager"}
    model = auto.from_config(config, attn_implementation="eager", dtype=torch.float32, **newer)
    randomize(model, case.dtype)
    if case.mxfp4:
        for _, parameter in mxfp4_parameters(model):
            parameter.data.copy_(torch.from_numpy(of_mxfp4(*to_mxfp4(parameter.numpy(force=True)))))
    if case.architecture == "gemma3n":
        # A large table, whose rows alone are read.
        table = model.model.embed_tokens_per_layer.weight
        rounded = gguf.dequantize(gguf.quantize(table.numpy(force=True), Q4_0), Q4_0)
        table.data.copy_(torch.from_numpy(rounded))
    return model.eval()


def mxfp4_parameters(model):
    """The matrices of experts, whose rows a file in MXFP4 has as columns."""
    return [(name, it) for name, it in model.named_parameters() if name.endswith((".gate_up_proj", ".down_proj"))]


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def to_mxfp4(values):
    """Codes [experts, rows, blocks, 16] and exponents of matrices [experts, columns, rows]."""
    values = values.swapaxes(1, 2)
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1)
    exponents = np.ceil(np.log2(largest / 6)).astype(int)
    scaled = blocks / 2.0 ** exponents[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - FP4).argmin(axis=-1) + 8 * (scaled < 0)
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8), (exponents + 127).astype(np.uint8)


def of_mxfp4(codes, exponents):
    """The matrices [experts, columns, rows]."""
    codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    values = FP4[codes & 7] * np.where(codes < 8, 1, -1) * 2.0 ** (exponents.astype(np.float32) - 127)[..., None]
    return values.reshape(*values.shape[:2], -1).swapaxes(1, 2).astype(np.float32)


def store_mxfp4(folder, model):
    """Replaces experts in a saved checkpoint."""
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    for name, parameter in mxfp4_parameters(model):
        codes, exponents = to_mxfp4(parameter.float().numpy(force=True))
        del tensors[name]
        tensors |= {f"{name}_blocks": torch.from_numpy(codes), f"{name}_scales": torch.from_numpy(exponents)}
    save_tensors(tensors, path, metadata=dict(format="pt"))
    config = json.loads((folder / "config.json").read_text())
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=skipped)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tokens(count):
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.no_grad()
def logits(model, ids):
    return in_float64(model)(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def difference(one, other):
    """Largest difference, relative to the largest logit."""
    return float(np.abs(one - other).max() / np.abs(one).max())


def check_features(name, case):
    for changes in case.features:
        seen = max(
            difference(logits(build(case), tokens(count)), logits(build(case, changes), tokens(count)))
            for count in case.sessions.values()
        )
        assert seen > SENSITIVITY, f"{name}: {changes} changes the logits by {seen} only"


# From Hugging Face's names to llama.cpp's, inside a block and outside.
BLOCK_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
}
MOE_NAMES = BLOCK_NAMES | {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "feed_forward.gate": "ffn_gate_inp",
}
POST_NORM_NAMES = BLOCK_NAMES | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GEMMA4_NAMES = POST_NORM_NAMES | {
    "router": "ffn_gate_inp", "router.proj": "ffn_gate_inp", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
}
GEMMA3N_NAMES = GEMMA4_NAMES | {
    "altup.router_norm": "altup_router_norm", "altup.modality_router": "altup_router",
    "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
}
STREAM_NAMES = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}
LFM2_NAMES = MOE_NAMES | {
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
}
DELTA_NET_NAMES = BLOCK_NAMES | {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
}
LATENT_NAMES = MOE_NAMES | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
HYBRID_NAMES = MOE_NAMES | {
    "shared_mlp.output_linear": "ffn_down", "mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out",
    "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm", "mamba": "ssm_d",
}
NEMOTRON_NAMES = {
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.out_proj": "ssm_out", "mixer.conv1d": "ssm_conv1d",
    "mixer.norm": "ssm_norm", "mixer": "ssm_d", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
}
FALCON_NAMES = HYBRID_NAMES | {
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "pre_ff_layernorm": "ffn_norm",
}
EXPERT_NAMES = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}
OUTER_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.final_layernorm": "output_norm",
    "lm_head": "output", "model.embeddings": "token_embd", "model.norm_f": "output_norm", "model.embedding_norm": "token_embd_norm", "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj", "model.per_layer_projection_norm": "per_layer_proj_norm",
}


# The architectures whose files have rows of queries and keys in this order.
ADJACENT = ("llama", "arcee", "granite", "granitemoe", "granitehybrid", "minicpm", "smollm3", "mistral3")


def pair_adjacent(weight, heads):
    """llama.cpp's LLaMA rotates dimensions 2i and 2i + 1 of a head, transformers i and i + half."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def by_remainder(values, config, axis):
    """llama.cpp's Qwen3.5 has the value heads of one key head far apart, transformers next to each other."""
    keys = config.linear_num_key_heads
    shape = values.shape
    heads = values.reshape(*shape[:axis], keys, config.linear_num_value_heads // keys, -1, *shape[axis + 1:])
    return np.ascontiguousarray(heads.swapaxes(axis, axis + 1)).reshape(shape)


def delta_net(stem, end, values, config):
    """A tensor of a DeltaNet in llama.cpp's order."""
    part = stem.rpartition("linear_attn.")[2]
    if part in ("in_proj_qkv", "conv1d"):
        keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        return np.concatenate([values[:keys], by_remainder(values[keys:], config, 0)])
    if part in ("in_proj_z", "in_proj_b", "in_proj_a"):
        return by_remainder(values, config, 0)
    if part == "out_proj":
        return by_remainder(values, config, 1)
    if end == "A_log":
        return by_remainder(-np.exp(values), config, 0)
    return by_remainder(values, config, 0) if end == "dt_bias" else values


def by_key_head(stem, values, config):
    """The input layers of Qwen3-Next in llama.cpp's order: queries, keys and values apart, gates in a tensor of their own."""
    block, part = stem.split(".")[2], stem.rpartition(".")[2]
    if part == "in_proj_ba":
        yield f"blk.{block}.ssm_ba.weight", values
        return
    keys, heads = config.linear_key_head_dim, config.linear_num_key_heads
    shared = config.linear_num_value_heads // heads * config.linear_value_head_dim
    parts = np.split(values.reshape(heads, -1, values.shape[1]), [keys, 2 * keys, 2 * keys + shared], axis=1)
    *mixed, gates = (part.reshape(-1, values.shape[1]) for part in parts)
    yield f"blk.{block}.attn_qkv.weight", np.concatenate(mixed)
    yield f"blk.{block}.attn_gate.weight", np.ascontiguousarray(gates)


def gguf_tensors(case, model):
    """Every tensor as llama.cpp wants it."""
    config, architecture = model.config, case.architecture
    names = MOE_NAMES
    if architecture in ("gpt-oss", "glm4moe"):
        names = names | {"post_attention_layernorm": "post_attention_norm"}
    names = POST_NORM_NAMES if architecture in ("gemma2", "gemma3", "exaone4", "olmo2") else names
    names = GEMMA4_NAMES if architecture == "gemma4" else names
    names = GEMMA3N_NAMES if architecture == "gemma3n" else names
    names = LFM2_NAMES if architecture in ("lfm2", "lfm2moe") else names
    names = DELTA_NET_NAMES if architecture.startswith(("qwen35", "qwen3next")) else names
    names = HYBRID_NAMES if architecture == "granitehybrid" else names
    names = LATENT_NAMES if architecture == "deepseek2" else names
    names = NEMOTRON_NAMES if architecture.startswith("nemotron_h") else names
    names = FALCON_NAMES if architecture == "falcon-h1" else names
    if architecture == "granitehybrid" and config.num_local_experts:
        names = names | {"shared_mlp.output_linear": "ffn_down_shexp"}
    stacked, fused = {}, {}
    corrections = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(CORRECTIONS)]
    for name, parameter in [*model.named_parameters(), *corrections]:
        values = parameter.detach().float().numpy()
        if name.endswith(CORRECTIONS):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", values.reshape(-1)
            continue
        if name.endswith(".shared_mlp.input_linear.weight"):
            end = "_shexp" if config.num_local_experts else ""
            for part, rows in zip(("gate", "up"), np.split(values, 2)):
                yield f"blk.{name.split('.')[2]}.ffn_{part}{end}.weight", np.ascontiguousarray(rows)
            continue
        if architecture != "gpt-oss" and name.endswith((".experts.gate_up_proj", "moe.input_linear.weight")):
            # The rows of gate come before those of up.
            for part, rows in zip(("gate", "up"), np.split(values, 2, axis=1)):
                yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", np.ascontiguousarray(rows)
            continue
        if architecture.startswith("nemotron_h") and name.endswith(".experts.up_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_up_exps.weight", values
            continue
        if architecture != "gpt-oss" and name.endswith((".experts.down_proj", "moe.output_linear.weight")):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", values
            continue
        if ".experts.gate_up_proj" in name:
            # The columns of gate and up alternate.
            block, target = name.split(".")[2], "bias" if name.endswith("bias") else "weight"
            values = values if target == "bias" else values.swapaxes(1, 2)
            for part, first in (("gate", 0), ("up", 1)):
                yield f"blk.{block}.ffn_{part}_exps.{target}", np.ascontiguousarray(values[:, first::2])
            continue
        if ".experts.down_proj" in name and architecture == "gpt-oss":
            block, target = name.split(".")[2], "bias" if name.endswith("bias") else "weight"
            values = values if target == "bias" else np.ascontiguousarray(values.swapaxes(1, 2))
            yield f"blk.{block}.ffn_down_exps.{target}", values
            continue
        if name.endswith("altup.correct_output_scale"):
            yield f"blk.{name.split('.')[2]}.altup_correct_scale.weight", values
            continue
        if name.split(".")[1] in STREAM_NAMES:
            stacked.setdefault(f"{STREAM_NAMES[name.split('.')[1]]}.weight", []).append(values)
            continue
        if name.endswith(".per_expert_scale"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.scale", values
            continue
        if name.endswith(".sinks"):
            yield f"blk.{name.split('.')[2]}.attn_sinks.weight", values
            continue
        if ".experts." in name:
            # One tensor has all experts, which come in their order.
            *_, block, _, _, _, part, _ = name.split(".")
            target = EXPERT_NAMES[part]
            stacked.setdefault(f"blk.{block}.{target}.weight", []).append(values)
            continue
        stem, _, end = name.rpartition(".")
        if architecture == "deepseek2" and stem.endswith("kv_b_proj") and config.q_lora_rank:
            # Keys of each head are transposed.
            block, heads = stem.split(".")[2], values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, of_values = np.split(heads, [config.qk_nope_head_dim], axis=1)
            yield f"blk.{block}.attn_k_b.weight", np.ascontiguousarray(keys.swapaxes(1, 2))
            yield f"blk.{block}.attn_v_b.weight", np.ascontiguousarray(of_values)
            continue
        if architecture == "qwen3next" and "in_proj" in stem:
            yield from by_key_head(stem, values, config)
            continue
        if architecture == "falcon-h1":
            values = values * falcon_factor(stem, config)
        if is_mamba2(architecture) and stem.endswith(("mamba", "mixer")):
            # One row for each head.
            values = -np.exp(values)[:, None] if end == "A_log" else values[:, None] if end == "D" else values
            end = "" if end == "D" else end
        elif stem.endswith(("mamba.norm", "mixer.norm")):
            groups = config.n_groups if architecture.startswith("nemotron_h") else config.mamba_n_groups
            values = values.reshape(groups, -1)
        elif "linear_attn" in stem:
            in_order = -np.exp(values) if end == "A_log" else values
            values = in_order if architecture == "qwen3next" else delta_net(stem, end, values, config)
        elif architecture.startswith(("qwen35", "qwen3next")) and "norm" in stem:
            values = values + 1.0
        if end in ("A_log", "dt_bias"):
            target = f"blk.{stem.split('.')[2]}.{'ssm_a' if end == 'A_log' else 'ssm_dt.bias'}"
        elif stem.startswith("model.layers."):
            _, _, block, part = stem.split(".", 3)
            target = f"blk.{block}.{names[part]}.{end}".rstrip(".")
            if architecture == "falcon-h1" and part == "pre_ff_layernorm":
                # Published files have no ending here.
                target = f"blk.{block}.{names[part]}"
        else:
            target = f"{OUTER_NAMES[stem]}.{end}"
        if architecture in ADJACENT and part_is(stem, "q_proj"):
            values = pair_adjacent(values, config.num_attention_heads)
        if architecture in ADJACENT and part_is(stem, "k_proj"):
            values = pair_adjacent(values, config.num_key_value_heads)
        if architecture.startswith("gemma") and architecture not in ("gemma4", "gemma3n") and "norm" in stem:
            values = values + 1.0
        if architecture == "gemma2" and part_is(stem, "q_proj"):
            # GGUF can't say `query_pre_attn_scalar`: it is the head's width. The difference goes into the query.
            values = values * math.sqrt(config.head_dim / config.query_pre_attn_scalar)
        if part_is_convolution(target):
            values = values.squeeze(1)
        if architecture == "phi2" and any(part_is(stem, part) for part in ("q_proj", "k_proj", "v_proj")):
            # Published files have the three in one tensor.
            name = f"blk.{stem.split('.')[2]}.attn_qkv.{end}"
            parts = fused.setdefault(name, {})
            parts[stem[-len("q_proj")]] = values
            if len(parts) == 3:
                yield name, np.concatenate([parts[part] for part in "qkv"])
            continue
        yield target, values
    for name, factor in block_factors(model):
        yield f"blk.{name.split('.')[2]}.layer_output_scale.weight", factor.float().numpy()
    if architecture == "gemma3n":
        # llama.cpp wants layers of keys and values in all blocks, also where it does not use them.
        keys = np.ones((config.num_key_value_heads * config.head_dim, config.hidden_size), dtype=np.float32)
        for block in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
            yield f"blk.{block}.attn_k.weight", keys
            yield f"blk.{block}.attn_v.weight", keys
            yield f"blk.{block}.attn_k_norm.weight", keys[: config.head_dim, 0]
    if architecture == "gemma4":
        # Pairs that keep their values have this divisor.
        pairs = case.config["global_head_dim"] // 2
        rotated = int(ROPES4["full_attention"]["partial_rotary_factor"] * pairs)
        yield "rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (pairs - rotated), dtype=np.float32)
    for target, experts in stacked.items():
        yield target, np.stack(experts)
    if architecture == "llama" and case.model_type == "llama":
        yield "rope_freqs.weight", llama3_divisors(model)
    if architecture == "minicpm":
        yield "rope_factors_short.weight", np.array(MINICPM_ROPE["short_factor"], dtype=np.float32)
        yield "rope_factors_long.weight", np.array(MINICPM_ROPE["long_factor"], dtype=np.float32)
    if architecture == "phi3":
        yield "rope_factors_short.weight", np.array(SHORT, dtype=np.float32)
        yield "rope_factors_long.weight", np.array(LONG, dtype=np.float32)


def is_mamba2(architecture):
    return architecture in ("granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1")


def falcon_factor(stem, config):
    """Returns the factor that llama.cpp's Falcon-H1 has in a weight: a number, or one for each row."""
    part = stem.rpartition(".")[2]
    if part == "in_proj":
        vectors = config.mamba_n_groups * config.mamba_d_state
        counts = [config.mamba_d_ssm, config.mamba_d_ssm, vectors, vectors, config.mamba_n_heads]
        factors = np.repeat(np.array(config.ssm_multipliers, dtype=np.float32), counts)
        return config.ssm_in_multiplier * factors[:, None]
    attention = config.attention_in_multiplier
    return {
        "q_proj": attention, "k_proj": attention * config.key_multiplier, "v_proj": attention,
        "o_proj": config.attention_out_multiplier, "out_proj": config.ssm_out_multiplier,
        "gate_proj": config.mlp_multipliers[0], "down_proj": config.mlp_multipliers[1],
        "embed_tokens": config.embedding_multiplier, "lm_head": config.lm_head_multiplier,
    }.get(part, 1.0)


def part_is_convolution(target):
    return target.endswith(("conv.weight", "conv1d.weight"))


def part_is(stem, part):
    return stem.endswith(f"self_attn.{part}")


def llama3_divisors(model):
    """Returns the divisor of each frequency in Llama 3's RoPE, read off transformers' own frequencies."""
    config = model.config
    plain = config.rope_theta ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim)
    return (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()


def write_gguf(path, case, model, matrices, original_context=None):
    """The model as a GGUF file; its matrices in the format `matrices`, which must hold them exactly."""
    config = model.config
    writer = gguf.GGUFWriter(path, case.architecture)
    writer.add_name("random")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if case.architecture == "granitehybrid":
        writer.add_feed_forward_length(config.intermediate_size if config.num_local_experts else config.shared_intermediate_size)
    elif case.architecture.startswith("nemotron_h"):
        width_of = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
        writer.add_feed_forward_length([width_of.get(kind, 0) for kind in config.layers_block_type])
    elif case.architecture not in ("gemma4", "gemma3n", "qwen35moe", "qwen3next"):
        writer.add_feed_forward_length(width(model) if case.architecture == "lfm2" else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if case.architecture == "gemma4":
        write_gemma4(writer, case.config)
    elif case.architecture == "gemma3n":
        write_gemma3n(writer, config)
    elif case.architecture in ("lfm2", "lfm2moe"):
        is_attention = [kind == "full_attention" for kind in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads * there for there in is_attention])
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_vocab_size(VOCAB)
    elif case.architecture == "granitehybrid":
        is_attention = [kind == "attention" for kind in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads * there for there in is_attention])
        write_mamba2(writer, config)
    elif case.architecture.startswith("nemotron_h"):
        is_attention = [kind == "full_attention" for kind in config.layers_block_type]
        writer.add_head_count_kv([config.num_key_value_heads * there for there in is_attention])
        write_nemotron(writer, case.architecture, config)
    elif case.architecture == "falcon-h1":
        writer.add_head_count_kv(config.num_key_value_heads)
        write_mamba2(writer, config)
    elif case.architecture == "deepseek2":
        write_latent(writer, config, scaling=case.config.get("rope_parameters"))
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = case.config.get("head_dim") or getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    scaling = case.config.get("rope_scaling") or case.config.get("rope_parameters") or {}
    if case.architecture not in ("gemma4", "deepseek2"):
        fraction = scaling.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", 1.0)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(int(head_dim * fraction))
    ropes = {} if transformers.__version__.startswith("4.") else getattr(config, "rope_parameters", {})
    base = ropes.get("full_attention", ropes)["rope_theta"] if ropes else getattr(config, "rope_theta", None)
    if "alpha" in scaling:
        base *= scaling["alpha"] ** (head_dim / (head_dim - 2))
    if not case.architecture.startswith("nemotron_h"):
        writer.add_rope_freq_base(base)
    if case.architecture in ("phi2", "cohere2"):
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        names = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
        writer.add_layer_norm_rms_eps(next(getattr(config, name) for name in names if hasattr(config, name)))
    if case.architecture.startswith("nemotron_h"):
        # llama.cpp wants it, and does not use it.
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    if case.architecture == "cohere2":
        writer.add_logit_scale(config.logit_scale)
    if case.architecture in ("gemma2", "gemma3", "gemma3n", "gemma4", "gpt-oss", "cohere2") or case.model_type == "olmo3":
        writer.add_sliding_window(config.sliding_window)
    if case.architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if case.architecture == "gemma3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        yarn = scaling
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn["factor"])
        writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
    if case.model_type.endswith(("moe", "moe_text")) or case.model_type in ("mixtral", "gpt_oss"):
        writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    if case.model_type.endswith(("moe", "_next")) or case.model_type in ("mixtral", "gpt_oss"):
        counts = (getattr(config, name, None) for name in ("num_local_experts", "n_routed_experts", "num_experts"))
        writer.add_expert_count(next(count for count in counts if count))
        writer.add_expert_used_count(config.num_experts_per_tok)
    if case.architecture in ("lfm2moe", "glm4moe", "ernie4_5-moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if case.architecture == "lfm2moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if case.architecture == "glm4moe":
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if case.architecture == "ernie4_5-moe":
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.moe_num_shared_experts)
    if case.architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if case.architecture in ("qwen2moe", "qwen3moe", "qwen3vlmoe", "qwen35moe", "qwen3next"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if case.architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if case.architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
    if case.architecture in ("qwen2vl", "qwen3vl", "qwen3vlmoe"):
        eighth = head_dim // 8
        # llama.cpp does not rotate the pairs that no axis of Qwen3-VL takes; with these numbers there are none.
        three = [2 * eighth, eighth, eighth] if case.architecture == "qwen2vl" else [3, 3, 2]
        writer.add_rope_dimension_sections([*three, 0])
    if case.architecture.startswith(("qwen35", "qwen3next")):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        writer.add_full_attention_interval(4)
    if case.architecture.startswith("qwen35"):
        writer.add_rope_dimension_sections([*scaling["mrope_section"], 0])
    if case.architecture in ("qwen3vl", "qwen3vlmoe"):
        writer.add_num_deepstack_layers(0)
    if case.architecture == "minicpm":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    if case.architecture in ("granite", "granitemoe", "granitehybrid"):
        writer.add_attention_scale(config.attention_multiplier)
    if case.architecture in ("granite", "granitemoe", "granitehybrid", "minicpm"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if case.architecture == "phi3":
        original = original_context or config.original_max_position_embeddings
        stretch = config.max_position_embeddings / config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = math.sqrt(1 + math.log(stretch) / math.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_attn_factors(factor)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    special = ["<unk>", "<s>", "</s>", "<0x0A>"]
    writer.add_token_list(special + [f"t{token}" for token in range(len(special), VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, gguf.TokenType.BYTE]
    writer.add_token_types(types + [gguf.TokenType.NORMAL] * (VOCAB - len(types)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in gguf_tensors(case, model):
        is_matrix = values.ndim > 1 and name.endswith(".weight") and not part_is_convolution(name)
        kind = matrices if is_matrix else F32
        kind = Q4_0 if name == "per_layer_token_embd.weight" and case.architecture == "gemma3n" else kind
        stored = gguf.quantize(values.astype(np.float32), kind)
        if is_matrix:
            assert (gguf.dequantize(stored, kind) == values).all(), f"{name} does not fit {kind.name}"
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_latent(writer, config, scaling):
    """The fields of DeepSeek's attention and experts; without a latent vector of queries as in old files."""
    rope, keys = config.qk_rope_head_dim, config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_rope_dimension_count(rope)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + rope)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(keys)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(keys)
        writer.add_value_length(config.v_head_dim)
    is_sigmoid = config.model_type in ("deepseek_v3", "glm4_moe_lite")
    # GLM's configuration has a list of the kinds of all blocks.
    kinds = getattr(config, "mlp_layer_types", None)
    writer.add_leading_dense_block_count(kinds.index("sparse") if kinds else config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if is_sigmoid else kinds.SOFTMAX)
    if is_sigmoid:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if scaling:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def write_nemotron(writer, architecture, config):
    """The fields of Nemotron-H's mixers and experts."""
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    if architecture == "nemotron_h_moe":
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)


def write_mamba2(writer, config):
    """The fields of Granite 4's mixers and experts."""
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    if config.model_type == "granitemoehybrid":
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    if getattr(config, "num_local_experts", 0):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def write_gemma4(writer, config):
    """The fields of Gemma 4, whose blocks differ."""
    is_local = [kind == "sliding_attention" for kind in config["layer_types"]]
    blocks, shared = len(is_local), config.get("num_kv_shared_layers", 0)
    wide = 2 if config.get("use_double_wide_mlp") else 1
    widths = [config["intermediate_size"] * (wide if block >= blocks - shared else 1) for block in range(blocks)]
    writer.add_feed_forward_length(widths)
    of_others = config.get("num_global_key_value_heads", config["num_key_value_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"] if local else of_others for local in is_local])
    for add, add_local in (
        (writer.add_key_length, writer.add_key_length_swa), (writer.add_value_length, writer.add_value_length_swa),
        (writer.add_rope_dimension_count, writer.add_rope_dimension_count_swa),
    ):
        add(config["global_head_dim"])
        add_local(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window_pattern(is_local)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    # Without the field, llama.cpp takes 30.
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def write_gemma3n(writer, config):
    """The fields of Gemma 3n. As in published files, the base of RoPE of blocks with a window is not among them."""
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_activation_sparsity_scale([1.6448533535003662 if part else -math.inf for part in config.activation_sparsity_pattern])


def width(model):
    """The inner width of LFM2's feed-forward, which its configuration states before its adjustment."""
    return model.model.layers[0].feed_forward.w1.weight.shape[0]


def llama_cpp_log_probabilities(path, ids):
    """Log-probabilities after every prefix of `ids`, by llama.cpp with everything in float32."""
    engine = Engine(path, whole=VOCAB - 1)
    rows = np.empty((len(ids), VOCAB), dtype=np.float64)
    for end in range(1, len(ids) + 1):
        for token, log_probability in engine.candidates(ids[:end], VOCAB):
            rows[end - 1, token] = log_probability
    return rows


def with_table(model):
    """The model with GELU in float16, as in llama.cpp's table."""

    class Table(torch.nn.Module):
        def forward(self, x):
            inner = torch.nn.functional.gelu(x.half().double(), approximate="tanh").half().to(x.dtype)
            return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, inner))

    for module in model.modules():
        if hasattr(module, "act_fn"):
            module.act_fn = Table()
    return model


def check_against_llama_cpp(name, case, model, golden, folder):
    for session, count in case.sessions.items():
        path = folder / f"{name}{session}.gguf"
        # llama.cpp takes the long divisors if its context, 256 at least, is beyond that of pre-training.
        write_gguf(path, case, model, F32, original_context=256 if session == "-short" else None)
        ours = golden[f"{name}{session}.logits"].astype(np.float64)
        if case.architecture == "gemma3n":
            # Its many blocks enlarge the errors of the table.
            ours = logits(with_table(build(case)), tokens(count)).astype(np.float64)
        theirs = llama_cpp_log_probabilities(path, tokens(count))
        # Log-probabilities are the logits less one number a row.
        ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
        apart = difference(ours, theirs)
        print(f"  {name}{session}: llama.cpp differs by {apart:.1e}")
        gelu = case.architecture.startswith("gemma") or case.architecture == "phi2"
        allowed = AGREEMENT_GELU if gelu else AGREEMENT
        assert apart < allowed, f"{name}{session}: llama.cpp differs by {apart}"


def main():
    transformers.logging.set_verbosity_error()
    chosen = sys.argv[1:] or list(CASES)
    # The cases of the other version stay.
    files = {case.golden: load_file(HERE / case.golden) if (HERE / case.golden).exists() else {} for case in CASES.values()}
    for name, case in CASES.items():
        if name not in chosen or not transformers.__version__.startswith(f"{case.version}."):
            continue
        check_features(name, case)
        golden = files[case.golden]
        model = build(case)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        as_computed = dict(save_original_format=False) if case.stacked else {}
        model.to(case.dtype).save_pretrained(folder, max_shard_size="100KB" if case.sharded else "10MB", **as_computed)
        if case.mxfp4:
            store_mxfp4(folder, model)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if case.written:
            config = json.loads((folder / "config.json").read_text()) | case.written
            config = {key: value for key, value in config.items() if value is not None}
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for session, count in case.sessions.items():
            ids = tokens(count)
            golden[f"{name}{session}.tokens"] = np.array(ids, dtype=np.int32)
            golden[f"{name}{session}.logits"] = logits(build(case), ids)
        if case.architecture:
            model = build(case)
            with tempfile.TemporaryDirectory() as temporary:
                check_against_llama_cpp(name, case, model, golden, Path(temporary))
            write_gguf(HERE / f"{name}.gguf", case, model, F32 if case.dtype == torch.float32 else BF16)
        if case.gguf_alone:
            shutil.rmtree(folder)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters")
    for file, golden in files.items():
        save_file(golden, HERE / file)


if __name__ == "__main__":
    main()

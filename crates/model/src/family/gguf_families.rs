//! The families of GGUF files.

use super::traits::{self, Family};
use super::{encoder_families, expert_families, gemma_families, mixer_families};
use crate::description::RopePairing;

/// `general.architecture` of every family, and how it pairs RoPE's dimensions. Mistral's files say `llama`.
pub(super) const FAMILIES: [(&str, &Family, RopePairing); 46] = [
    ("llama", &traits::LLAMA, RopePairing::Adjacent),
    ("qwen2", &traits::QWEN2, RopePairing::Halves),
    ("qwen3", &traits::QWEN3, RopePairing::Halves),
    ("gemma", &gemma_families::GEMMA, RopePairing::Halves),
    ("gemma2", &gemma_families::GEMMA2, RopePairing::Halves),
    ("gemma3", &gemma_families::GEMMA3, RopePairing::Halves),
    ("gemma3n", &gemma_families::GEMMA3N, RopePairing::Halves),
    ("gemma4", &gemma_families::GEMMA4, RopePairing::Halves),
    ("phi2", &traits::PHI2, RopePairing::Halves),
    ("phi3", &traits::PHI3, RopePairing::Halves),
    ("arcee", &traits::ARCEE, RopePairing::Adjacent),
    ("granite", &traits::GRANITE, RopePairing::Adjacent),
    ("minicpm", &traits::MINICPM, RopePairing::Adjacent),
    ("smollm3", &traits::SMOLLM3, RopePairing::Adjacent),
    ("ernie4_5", &traits::ERNIE4_5, RopePairing::Adjacent),
    ("mistral3", &traits::MINISTRAL3, RopePairing::Adjacent),
    ("chatglm", &traits::GLM, RopePairing::Adjacent),
    ("glm4", &traits::GLM4, RopePairing::Adjacent),
    ("hunyuan-dense", &traits::HUNYUAN, RopePairing::Halves),
    ("exaone4", &traits::EXAONE4, RopePairing::Halves),
    ("cohere2", &traits::COHERE2, RopePairing::Adjacent),
    ("olmo2", &traits::OLMO3, RopePairing::Halves),
    ("qwen2moe", &expert_families::QWEN2_MOE, RopePairing::Halves),
    ("qwen3moe", &expert_families::QWEN3_MOE, RopePairing::Halves),
    ("olmoe", &expert_families::OLMOE, RopePairing::Halves),
    ("gpt-oss", &expert_families::GPT_OSS, RopePairing::Halves),
    ("qwen2vl", &traits::QWEN2_VL, RopePairing::Halves),
    ("qwen3vl", &traits::QWEN3_VL, RopePairing::Halves),
    ("lfm2", &mixer_families::LFM2, RopePairing::Halves),
    ("qwen35", &mixer_families::QWEN3_5, RopePairing::Halves),
    (
        "qwen3vlmoe",
        &expert_families::QWEN3_VL_MOE,
        RopePairing::Halves,
    ),
    (
        "qwen3next",
        &expert_families::QWEN3_NEXT,
        RopePairing::Halves,
    ),
    (
        "qwen35moe",
        &expert_families::QWEN3_5_MOE,
        RopePairing::Halves,
    ),
    ("lfm2moe", &expert_families::LFM2_MOE, RopePairing::Halves),
    (
        "granitemoe",
        &expert_families::GRANITE_MOE,
        RopePairing::Adjacent,
    ),
    (
        "granitehybrid",
        &mixer_families::GRANITE_HYBRID,
        RopePairing::Adjacent,
    ),
    (
        "ernie4_5-moe",
        &expert_families::ERNIE4_5_MOE,
        RopePairing::Adjacent,
    ),
    ("glm4moe", &expert_families::GLM4_MOE, RopePairing::Halves),
    (
        "nemotron_h",
        &mixer_families::NEMOTRON_H_DENSE,
        RopePairing::Halves,
    ),
    (
        "nemotron_h_moe",
        &expert_families::NEMOTRON_H,
        RopePairing::Halves,
    ),
    ("falcon-h1", &mixer_families::FALCON_H1, RopePairing::Halves),
    (
        "deepseek2",
        &expert_families::DEEPSEEK2,
        RopePairing::Adjacent,
    ),
    ("bert", &encoder_families::BERT, RopePairing::Halves),
    (
        "nomic-bert",
        &encoder_families::NOMIC_BERT,
        RopePairing::Halves,
    ),
    (
        "modern-bert",
        &encoder_families::MODERN_BERT,
        RopePairing::Halves,
    ),
    (
        "gemma-embedding",
        &encoder_families::EMBEDDING_GEMMA,
        RopePairing::Halves,
    ),
];

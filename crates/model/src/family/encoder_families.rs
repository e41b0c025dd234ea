//! The families that read texts and write none.

use super::gemma_families::GEMMA3;
use super::kinds::{AddedTraits, FirstPosition, LocalRope, NoRope, Windows};
use super::names::{self, Names};
use super::traits::{Family, LLAMA};
use crate::description::{Activation, NormKind, Residual};

const BERT_NAMES: Names = Names {
    embedding: "embeddings.word_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    positions: "embeddings.position_embeddings",
    token_types: "embeddings.token_type_embeddings",
    block: "encoder.layer.",
    attention_norm: "",
    attention_post_norm: "attention.output.LayerNorm",
    feed_forward_norm: "",
    feed_forward_post_norm: "output.LayerNorm",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    gate: "",
    up: "intermediate.dense",
    down: "output.dense",
    classifier: ["pooler.dense", "classifier"],
    // The layers of pre-training, and buffers.
    inert: &[
        "pooler.dense.",
        "cls.predictions.",
        "cls.seq_relationship.",
        "lm_head.",
        "embeddings.position_ids",
        "embeddings.token_type_ids",
    ],
    ..names::LLAMA
};

const ROBERTA_NAMES: Names = Names {
    classifier: ["classifier.dense", "classifier.out_proj"],
    ..BERT_NAMES
};

pub(super) const BERT: Family = Family {
    name: "bert",
    names: BERT_NAMES,
    norm: NormKind::Layer,
    residual: Residual::Replacing,
    qkv_bias: true,
    all_biases: true,
    bias_fields: [("", false); 3],
    gated: false,
    activation: Activation::Gelu,
    no_rope: NoRope::Everywhere,
    bidirectional: true,
    added: Some(AddedTraits {
        positions: Some(FirstPosition::Zero),
        token_types: 2,
    }),
    epsilon: 1e-12,
    context: 512,
    ..LLAMA
};

/// RoBERTa and XLM-RoBERTa, which GGUF calls by the name of BERT.
pub(super) const ROBERTA: Family = Family {
    names: ROBERTA_NAMES,
    added: Some(AddedTraits {
        positions: Some(FirstPosition::AfterPadding(1)),
        token_types: 2,
    }),
    ..BERT
};

/// The dense models of nomic-embed, in GGUF.
pub(super) const NOMIC_BERT: Family = Family {
    name: "nomic-bert",
    gated: true,
    activation: Activation::Silu,
    no_rope: NoRope::Never,
    added: Some(AddedTraits {
        positions: None,
        token_types: 2,
    }),
    ..BERT
};

const MODERN_BERT_NAMES: Names = Names {
    embedding: "embeddings.tok_embeddings",
    embedding_norm: "embeddings.norm",
    output_norm: "final_norm",
    attention_norm: "attn_norm",
    feed_forward_norm: "mlp_norm",
    query: "attn.Wqkv",
    key: "attn.Wqkv",
    value: "attn.Wqkv",
    attention_output: "attn.Wo",
    gate: "mlp.Wi",
    up: "mlp.Wi",
    down: "mlp.Wo",
    classifier: ["head.dense", "classifier"],
    classifier_norm: "head.norm",
    // The layers of pre-training.
    inert: &["head.", "decoder."],
    ..names::LLAMA
};

/// ModernBERT, and models with its layout, such as gte-modernbert.
pub(super) const MODERN_BERT: Family = Family {
    name: "modern-bert",
    names: MODERN_BERT_NAMES,
    norm: NormKind::Centered,
    residual: Residual::SerialAfterNorm,
    activation: Activation::Gelu,
    activation_field: "hidden_activation",
    windows: Windows::AllButFirstOf(3),
    window: Some(128),
    local_rope: LocalRope::Base(10_000.0),
    rope_base: 160_000.0,
    rope_fields: ["global_rope_theta", "local_rope_theta"],
    bidirectional: true,
    added: Some(AddedTraits {
        positions: None,
        token_types: 0,
    }),
    epsilon: 1e-5,
    epsilon_field: Some("norm_eps"),
    tied: true,
    context: 8192,
    ..LLAMA
};

/// EmbeddingGemma: the text model of Gemma 3 whose attention reads both sides.
pub(super) const EMBEDDING_GEMMA: Family = Family {
    name: "gemma-embedding",
    bidirectional: true,
    ..GEMMA3
};

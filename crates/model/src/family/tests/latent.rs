//! Latent vectors of attention, and experts in groups.

use serde_json::{Value, json};

use super::super::hugging_face;
use super::hugging_face::with;
use crate::description::{GroupScore, KeyValues, ModelDescription, RopePairing};
use crate::error::Result;

fn described(changes: Value) -> Result<ModelDescription> {
    let config = json!({
        "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": null,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8,
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
    });
    Ok(hugging_face::describe(&with(&config, changes))?.1)
}

#[test]
fn one_cached_vector_stands_for_the_keys_and_values_of_all_heads() {
    let description = described(json!({})).unwrap();
    let attention = description.blocks[0].attention().unwrap();
    assert_eq!((attention.kv_heads, attention.head_dim), (1, 24));
    assert_eq!(
        (attention.query_width(), attention.output_width()),
        (80, 40)
    );
    assert_eq!(description.kv_bytes_per_token(|width| width), 3 * 24);
    assert!(matches!(attention.key_values, KeyValues::Latent(_)));
    assert_eq!(attention.rope.pairing, RopePairing::Adjacent);
    let halves = described(json!({"rope_interleave": false})).unwrap();
    let rope = &halves.blocks[0].attention().unwrap().rope;
    assert_eq!(rope.pairing, RopePairing::Halves);
}

#[test]
fn yarn_changes_the_factor_on_scores() {
    let yarn = json!({
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0,
    });
    let scaled = described(json!({"rope_scaling": yarn})).unwrap();
    let plain = described(json!({})).unwrap();
    let scale = |description: &ModelDescription| description.blocks[0].attention().unwrap().scale;
    let factor = (0.1 * 4f32.ln() + 1.0).powi(2);
    assert!((scale(&scaled) / scale(&plain) - factor).abs() < 1e-5);
}

#[test]
fn experts_come_from_groups_in_blocks_that_are_not_dense() {
    let description = described(json!({})).unwrap();
    assert!(description.blocks[0].feed_forward.experts.is_none());
    let experts = description.blocks[1].feed_forward.experts.unwrap();
    let groups = experts.groups.unwrap();
    assert_eq!((groups.count, groups.used), (4, 2));
    assert_eq!(groups.score, GroupScore::BestTwo);
    let one = described(json!({"n_group": 1, "topk_group": 1})).unwrap();
    assert!(one.blocks[1].feed_forward.experts.unwrap().groups.is_none());
}

#[test]
fn fields_that_would_change_latent_vectors_or_groups_are_refused() {
    for (changes, expected) in [
        (json!({"num_key_value_heads": 2}), "num_key_value_heads"),
        (json!({"head_dim": 16}), "head_dim"),
        (json!({"attention_bias": true}), "attention_bias"),
        (json!({"mlp_bias": true}), "mlp_bias"),
        (json!({"scoring_func": "softmax"}), "scoring_func"),
        (json!({"moe_layer_freq": 2}), "moe_layer_freq"),
        (json!({"n_group": 3}), "groups"),
        (json!({"n_group": 8}), "groups"),
        (json!({"topk_group": 5}), "groups"),
        (json!({"num_experts_per_tok": 5}), "experts of a row"),
        (
            json!({"model_type": "deepseek_v2", "norm_topk_prob": true}),
            "norm_topk_prob",
        ),
        (
            json!({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}),
            "topk_method",
        ),
        (
            json!({"model_type": "glm4_moe_lite", "first_k_dense_replace": 2}),
            "first_k_dense_replace",
        ),
        (
            json!({"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense"]}),
            "mlp_layer_types",
        ),
    ] {
        let error = described(changes.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{changes}: {error}");
    }
}

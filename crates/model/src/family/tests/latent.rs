//! Latent vectors of attention, and experts in groups.

use serde_json::{Value, json};

use super::super::hugging_face;
use super::gguf::{GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::{tensor, tensors};
use crate::description::{GroupScore, KeyValues, ModelDescription, RopePairing, Routing};
use crate::error::Result;
use crate::family::Modules;
use crate::gguf::Value as OfGguf;
use crate::tensor_map::TensorMap;

fn described(changes: Value) -> Result<ModelDescription> {
    let config = json!({
        "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": null,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8,
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
    });
    Ok(hugging_face::describe(&with(&config, changes))?.1)
}

/// Returns the model of a GGUF file with so many blocks, of which the last has experts, and tokens; `more` are tensors.
fn of_gguf(
    (blocks, vocab): (usize, usize),
    fields: &[(&str, OfGguf)],
    more: &[(&str, &[usize])],
) -> Result<(ModelDescription, TensorMap)> {
    let numbers = [
        ("block_count", blocks),
        ("rope.dimension_count", 8),
        ("attention.kv_lora_rank", 16),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 24),
        ("attention.value_length", 16),
        ("attention.key_length_mla", 20),
        ("attention.value_length_mla", 10),
        ("leading_dense_block_count", blocks - 1),
        ("expert_count", 3),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 8),
        ("expert_shared_count", 1),
    ];
    let numbers = numbers.map(|(field, number)| (field, OfGguf::Integer(number as i128)));
    let fields: Vec<_> = numbers.iter().chain(fields).cloned().collect();
    let of_block: [(&str, &[usize]); 8] = [
        ("attn_norm.weight", &[64]),
        ("ffn_norm.weight", &[64]),
        ("attn_q.weight", &[80, 64]),
        ("attn_kv_a_mqa.weight", &[24, 64]),
        ("attn_kv_a_norm.weight", &[16]),
        ("attn_k_b.weight", &[4, 16, 12]),
        ("attn_v_b.weight", &[4, 10, 16]),
        ("attn_output.weight", &[64, 40]),
    ];
    let mut stored = tensors(&GGUF_OUTER, "blk.", blocks, &of_block);
    stored.extend([tensor("token_embd.weight", &[vocab, 64])]);
    let dense: [(&str, &[usize]); 3] = [
        ("ffn_gate.weight", &[96, 64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_down.weight", &[64, 96]),
    ];
    stored.extend(tensors(&[], "blk.", blocks - 1, &dense));
    let experts: [(&str, &[usize]); 7] = [
        ("ffn_gate_inp.weight", &[3, 64]),
        ("ffn_gate_exps.weight", &[3, 8, 64]),
        ("ffn_up_exps.weight", &[3, 8, 64]),
        ("ffn_down_exps.weight", &[3, 64, 8]),
        ("ffn_gate_shexp.weight", &[8, 64]),
        ("ffn_up_shexp.weight", &[8, 64]),
        ("ffn_down_shexp.weight", &[64, 8]),
    ];
    let last =
        |(name, shape): &(&str, &[usize])| tensor(&format!("blk.{}.{name}", blocks - 1), shape);
    stored.extend(experts.iter().map(last));
    let more = more.iter().map(|(name, shape)| tensor(name, shape));
    stored.extend(more);
    from_file(&metadata("deepseek2", &fields), &stored)
}

#[test]
fn files_that_do_not_say_how_scores_are_made_have_softmax_unless_they_are_of_glm_4_7_flash() {
    let routing =
        |of: (usize, usize), fields: &[(&str, OfGguf)], has_summands: bool| -> Result<Routing> {
            let name = format!("blk.{}.exp_probs_b.bias", of.0 - 1);
            let summands: [(&str, &[usize]); 1] = [(&name, &[3])];
            let (description, _) = of_gguf(of, fields, &summands[..usize::from(has_summands)])?;
            let experts = description.blocks[of.0 - 1].feed_forward.experts.unwrap();
            assert_eq!(experts.correction, has_summands);
            Ok(experts.routing)
        };
    let sigmoid = [("expert_gating_func", OfGguf::Integer(2))];
    assert_eq!(routing((2, 100), &[], false).unwrap(), Routing::Softmax);
    assert_eq!(routing((2, 100), &sigmoid, true).unwrap(), Routing::Sigmoid);
    for blocks in [47, 48] {
        let found = routing((blocks, 154_880), &[], true).unwrap();
        assert_eq!(found, Routing::Sigmoid);
    }
    for other in [(46, 154_880), (47, 100)] {
        let error = routing(other, &[], true).unwrap_err().to_string();
        assert!(error.contains("expert_gating_func"), "{error}");
    }
}

#[test]
fn scores_have_the_factor_of_yarn_under_either_name() {
    let yarn = |field: &'static str, factor: f64| {
        let fields = [
            ("rope.scaling.type", OfGguf::String("yarn".to_owned())),
            ("rope.scaling.original_context_length", OfGguf::Integer(64)),
            ("rope.scaling.yarn_log_multiplier", OfGguf::Float(0.1)),
            (field, OfGguf::Float(factor)),
        ];
        of_gguf((2, 100), &fields, &[]).unwrap().0
    };
    let scaled = yarn("rope.scaling.factor", 4.0);
    assert_eq!(yarn("rope.scale_linear", 4.0), scaled);
    assert_ne!(yarn("rope.scaling.factor", 2.0), scaled);
}

#[test]
fn blocks_of_deepseek_that_predict_more_tokens_are_not_read() {
    let more: [(&str, &[usize]); 2] = [
        ("blk.2.nextn.eh_proj.weight", &[64, 128]),
        ("blk.2.attn_q.weight", &[80, 64]),
    ];
    let fields = [
        ("block_count", OfGguf::Integer(3)),
        ("nextn_predict_layers", OfGguf::Integer(1)),
    ];
    let (description, map) = of_gguf((2, 100), &fields, &more).unwrap();
    assert_eq!(description.blocks.len(), 2);
    let names = ["blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight"];
    assert_eq!(map.more_tokens, names);
}

#[test]
fn adapters_of_models_with_latent_vectors_are_refused() {
    let description = described(json!({})).unwrap();
    let modules = [
        Modules::hugging_face(&description),
        Modules::gguf("deepseek2", &description),
    ];
    for refused in modules {
        let error = refused.err().expect("refused").to_string();
        assert!(error.contains("no adapter"), "{error}");
    }
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

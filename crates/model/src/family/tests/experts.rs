//! Tests the reading of mixtures of experts.

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::gguf::{GGUF_BLOCK, GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::{Tensors, tensors};
use crate::description::{Linear, ModelDescription};
use crate::error::Result;
use crate::gguf::Value;

fn describe(model_type: &str, changes: Json) -> Result<ModelDescription> {
    let base = json!({
        "model_type": model_type, "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    hugging_face::describe(&with(&base, changes)).map(|(_, description)| description)
}

fn has_experts(description: &ModelDescription) -> Vec<bool> {
    let blocks = description.blocks.iter();
    blocks
        .map(|block| block.feed_forward.experts.is_some())
        .collect()
}

/// Returns the tensors of two blocks with three experts of width 8 and, with `shared`, a shared one of width 16.
fn expert_tensors(shared: bool) -> Tensors {
    let mut block: Vec<(&str, &[usize])> = GGUF_BLOCK
        .iter()
        .filter(|(name, _)| !name.starts_with("ffn_") || name.contains("norm"))
        .copied()
        .collect();
    block.push(("ffn_gate_inp.weight", &[3, 64]));
    block.push(("ffn_gate_exps.weight", &[3, 8, 64]));
    block.push(("ffn_up_exps.weight", &[3, 8, 64]));
    block.push(("ffn_down_exps.weight", &[3, 64, 8]));
    if shared {
        block.push(("ffn_gate_inp_shexp.weight", &[64]));
        block.push(("ffn_gate_shexp.weight", &[16, 64]));
        block.push(("ffn_up_shexp.weight", &[16, 64]));
        block.push(("ffn_down_shexp.weight", &[64, 16]));
        block.push(("attn_q.bias", &[64]));
        block.push(("attn_k.bias", &[32]));
        block.push(("attn_v.bias", &[32]));
    } else {
        block.push(("attn_q_norm.weight", &[16]));
        block.push(("attn_k_norm.weight", &[16]));
    }
    tensors(&GGUF_OUTER, "blk.", 2, &block)
}

const NUMBERS: [(&str, Value); 3] = [
    ("expert_count", Value::Integer(3)),
    ("expert_used_count", Value::Integer(2)),
    ("expert_feed_forward_length", Value::Integer(8)),
];

#[test]
fn blocks_between_steps_and_listed_ones_have_no_experts() {
    assert_eq!(
        has_experts(&describe("qwen3_moe", json!({})).unwrap()),
        [true; 4]
    );
    let steps = json!({ "decoder_sparse_step": 2 });
    let steps = describe("qwen3_moe", steps).unwrap();
    assert_eq!(has_experts(&steps), [false, true, false, true]);
    let listed = json!({ "mlp_only_layers": [0, 3] });
    let listed = describe("qwen2_moe", listed).unwrap();
    assert_eq!(has_experts(&listed), [false, true, true, false]);
    assert_eq!(listed.blocks[0].feed_forward.width, 96);
    assert_eq!(listed.blocks[1].feed_forward.width, 5632);
    // Families without such fields have experts in all blocks.
    let olmoe = describe("olmoe", json!({ "mlp_only_layers": [0, 3] })).unwrap();
    assert_eq!(has_experts(&olmoe), [true; 4]);
}

#[test]
fn weights_of_experts_sum_to_one_as_the_file_or_the_family_says() {
    let normalized = |model_type: &str, changes: Json| {
        let description = describe(model_type, changes).unwrap();
        description.blocks[0]
            .feed_forward
            .experts
            .unwrap()
            .normalized
    };
    assert!(!normalized("qwen3_moe", json!({})));
    assert!(normalized("qwen3_moe", json!({ "norm_topk_prob": true })));
    assert!(normalized("mixtral", json!({ "norm_topk_prob": false })));
}

#[test]
fn numbers_of_experts_that_make_no_sense_are_errors_that_name_the_field() {
    for (model_type, changes, named) in [
        ("llama", json!({ "num_experts": 4 }), "num_experts"),
        (
            "mixtral",
            json!({ "n_routed_experts": 4 }),
            "n_routed_experts",
        ),
        ("qwen3_moe", json!({ "num_experts": 0 }), "num_experts"),
        (
            "qwen3_moe",
            json!({ "num_experts": 4, "num_experts_per_tok": 5 }),
            "experts of a row is 5",
        ),
        (
            "qwen3_moe",
            json!({ "mlp_only_layers": [-1] }),
            "mlp_only_layers",
        ),
        (
            "qwen3_moe",
            json!({ "use_sliding_window": true }),
            "use_sliding_window",
        ),
        ("olmoe", json!({ "clip_qkv": 8.0 }), "clip_qkv"),
    ] {
        let error = describe(model_type, changes).unwrap_err().to_string();
        assert!(error.contains(named), "{error} for {named}");
    }
}

#[test]
fn experts_are_found_in_the_parts_of_stacked_tensors() {
    let (description, map) =
        from_file(&metadata("qwen3moe", &NUMBERS), &expert_tensors(false)).unwrap();
    let experts = description.blocks[0].feed_forward.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.width), (3, 2, 8));
    assert!(experts.normalized && !experts.shared_gate);
    let up = &map.blocks[1].linears[&Linear::ExpertUp(2)].weight;
    assert_eq!(
        (up.name.as_str(), up.rows.clone()),
        ("blk.1.ffn_up_exps.weight", Some(2..3))
    );
    assert!(!map.blocks[0].linears.contains_key(&Linear::Up));

    let shared = ("expert_shared_feed_forward_length", Value::Integer(16));
    let numbers: Vec<_> = NUMBERS.into_iter().chain([shared]).collect();
    let (description, map) =
        from_file(&metadata("qwen2moe", &numbers), &expert_tensors(true)).unwrap();
    assert_eq!(description.blocks[0].feed_forward.width, 16);
    let up = &map.blocks[0].linears[&Linear::Up].weight;
    assert_eq!(
        (up.name.as_str(), up.rows.clone()),
        ("blk.0.ffn_up_shexp.weight", None)
    );
    let router = map.blocks[0].router.as_ref().unwrap();
    assert!(router.shared_gate.is_some() && router.correction.is_none());
}

#[test]
fn a_llama_file_with_experts_is_mixtral() {
    let numbers = [
        ("expert_count", Value::Integer(3)),
        ("expert_used_count", Value::Integer(2)),
        ("feed_forward_length", Value::Integer(8)),
        ("attention.sliding_window", Value::Integer(4)),
    ];
    let mut tensors = expert_tensors(false);
    tensors.retain(|name, _| {
        !name.contains("_norm.weight") || !name.contains("attn_q") && !name.contains("attn_k")
    });
    let (description, _) = from_file(&metadata("llama", &numbers), &tensors).unwrap();
    assert_eq!(description.family, "mixtral");
    assert_eq!(description.blocks[0].attention().unwrap().window, None);
    // Parameters that a token uses: two of three experts.
    let expert = 3 * 8 * 64;
    assert_eq!(
        description.parameters() - description.active_parameters(),
        2 * expert
    );
}

#[test]
fn fields_of_experts_that_llama_cpp_does_not_read_must_agree_with_the_family() {
    for (field, value) in [
        ("expert_weights_norm", Value::Bool(false)),
        ("expert_weights_scale", Value::Float(2.5)),
        ("expert_gating_func", Value::Integer(2)),
    ] {
        let numbers: Vec<_> = NUMBERS.into_iter().chain([(field, value)]).collect();
        let found = from_file(&metadata("qwen3moe", &numbers), &expert_tensors(false));
        let error = found.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

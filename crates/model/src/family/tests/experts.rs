//! Tests the reading of mixtures of experts.

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::gguf::{GGUF_BLOCK, GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::{Tensors, rows, tensor, tensors};
use crate::description::{Experts, Linear, ModelDescription, Routing};
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
            json!({ "num_local_experts": 6, "n_routed_experts": 4 }),
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
        ("olmoe", json!({ "clip_qkv": false }), "clip_qkv"),
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
        (up.name.as_str(), rows(up)),
        ("blk.1.ffn_up_exps.weight", Some(16..24))
    );
    assert!(!map.blocks[0].linears.contains_key(&Linear::Up));

    let shared = ("expert_shared_feed_forward_length", Value::Integer(16));
    let numbers: Vec<_> = NUMBERS.into_iter().chain([shared]).collect();
    let (description, map) =
        from_file(&metadata("qwen2moe", &numbers), &expert_tensors(true)).unwrap();
    assert_eq!(description.blocks[0].feed_forward.width, 16);
    let up = &map.blocks[0].linears[&Linear::Up].weight;
    assert_eq!(
        (up.name.as_str(), rows(up)),
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

fn experts(description: &ModelDescription) -> Experts {
    let blocks = description.blocks.iter();
    let mut experts = blocks.filter_map(|block| block.feed_forward.experts);
    experts.next().unwrap()
}

#[test]
fn lfm2_with_experts_has_dense_blocks_first_and_a_width_that_is_not_adjusted() {
    let types = json!(["conv", "conv", "full_attention", "conv"]);
    let lfm2 = |changes: Json| {
        let base = json!({ "layer_types": types, "num_key_value_heads": 2 });
        describe("lfm2_moe", with(&base, changes))
    };
    let plain = lfm2(json!({})).unwrap();
    assert_eq!(has_experts(&plain), [false, false, true, true]);
    assert_eq!(plain.blocks[0].feed_forward.width, 96);
    let found = experts(&plain);
    assert_eq!((found.count, found.used, found.width), (32, 4, 1792));
    assert_eq!(found.routing, Routing::Sigmoid);
    assert!(found.normalized && found.correction && found.scale == 1.0);
    let changed = lfm2(json!({
        "num_dense_layers": 0, "norm_topk_prob": false, "use_expert_bias": false, "routed_scaling_factor": 2.0,
    }));
    let changed = changed.unwrap();
    assert_eq!(has_experts(&changed), [true; 4]);
    let found = experts(&changed);
    assert!(!found.normalized && !found.correction && found.scale == 2.0);
    // `transformers` takes null for false.
    let nulls = lfm2(json!({ "norm_topk_prob": null, "use_expert_bias": null })).unwrap();
    assert!(!experts(&nulls).normalized && !experts(&nulls).correction);
    let error = describe("lfm2_moe", json!({})).unwrap_err().to_string();
    assert!(error.contains("layer_types"), "{error}");
}

#[test]
fn blocks_of_ernie_outside_an_interval_or_between_steps_have_no_experts() {
    let ernie = |changes: Json| describe("ernie4_5_moe", changes).unwrap();
    assert_eq!(has_experts(&ernie(json!({}))), [false, true, true, true]);
    let inside = json!({ "moe_layer_start_index": 0, "moe_layer_end_index": 2 });
    assert_eq!(has_experts(&ernie(inside)), [true, true, true, false]);
    let all = json!({ "moe_layer_end_index": -1, "moe_layer_interval": 2 });
    let all = ernie(all);
    assert_eq!(has_experts(&all), [false, true, false, true]);
    assert_eq!(all.blocks[1].feed_forward.width, 2 * 1536);
    let none = ernie(json!({ "moe_num_shared_experts": 0, "moe_norm_min": 1e-6 }));
    assert_eq!(none.blocks[1].feed_forward.width, 0);
    assert_eq!(experts(&none).sum_floor, 1e-6);
}

#[test]
fn fields_of_experts_that_mean_something_else_or_nothing_in_a_family_are_refused() {
    for (model_type, changes, named) in [
        (
            "ernie4_5_moe",
            json!({ "num_experts_per_tok": 3, "moe_k": 2 }),
            "moe_k",
        ),
        ("qwen3_moe", json!({ "moe_k": 3 }), "moe_k"),
        ("ernie4_5_moe", json!({ "use_bias": true }), "biases"),
        (
            "ernie4_5_moe",
            json!({ "moe_num_shared_experts": 1u64 << 40 }),
            "moe_num_shared_experts",
        ),
        ("glm4_moe", json!({ "n_group": 2 }), "n_group"),
        ("glm4_moe", json!({ "topk_group": 0 }), "topk_group"),
    ] {
        let error = describe(model_type, changes).unwrap_err().to_string();
        assert!(error.contains(named), "{error} for {named}");
    }
}

#[test]
fn the_number_of_experts_may_have_any_of_its_names() {
    // As version 5 of `transformers` writes Qwen3.
    let qwen3 = describe("qwen3_moe", json!({ "num_local_experts": 16 })).unwrap();
    assert_eq!(experts(&qwen3).count, 16);
    let both = json!({ "num_local_experts": 16, "num_experts": 16 });
    assert_eq!(experts(&describe("qwen3_moe", both).unwrap()).count, 16);
    let ernie = describe("ernie4_5_moe", json!({ "num_experts_per_tok": 3 })).unwrap();
    assert_eq!(experts(&ernie).used, 3);
}

#[test]
fn norms_of_queries_and_keys_of_glm_are_there_if_the_file_says_so() {
    let norms = |changes: Json| describe("glm4_moe", changes).unwrap().blocks[0].qk_norms();
    assert_eq!(norms(json!({})), [None; 2]);
    let stated = norms(json!({ "use_qk_norm": true }));
    assert_eq!(stated.map(|norm| norm.unwrap().1), [16; 2]);
}

/// Returns tensors of `architecture` with three experts of width 8 in the second of two blocks, which are stacked.
fn dense_before_experts(correction: bool) -> Tensors {
    let mut all = expert_tensors(false);
    all.retain(|name, _| !name.starts_with("blk.0.ffn_") || name.contains("norm"));
    let dense = [("gate", [96, 64]), ("up", [96, 64]), ("down", [64, 96])];
    all.extend(dense.map(|(part, shape)| tensor(&format!("blk.0.ffn_{part}.weight"), &shape)));
    if correction {
        all.extend([tensor("blk.1.exp_probs_b.bias", &[3])]);
    }
    all
}

#[test]
fn the_first_blocks_of_a_gguf_file_have_no_experts_if_it_says_so() {
    let numbers = |more: &[(&'static str, Value)]| {
        let first = ("leading_dense_block_count", Value::Integer(1));
        let shared = ("expert_shared_count", Value::Integer(0));
        let base = NUMBERS.into_iter().chain([first, shared]);
        base.chain(more.iter().cloned()).collect::<Vec<_>>()
    };
    let glm = |more: &[(&'static str, Value)]| {
        from_file(
            &metadata("glm4moe", &numbers(more)),
            &dense_before_experts(true),
        )
    };
    let (description, map) = glm(&[]).unwrap();
    assert_eq!(has_experts(&description), [false, true]);
    assert!(map.blocks[1].router.as_ref().unwrap().correction.is_some());
    // The file states how weights are formed.
    let found = experts(&description);
    assert!(!found.normalized && found.scale == 1.0);
    let stated = glm(&[
        ("expert_weights_norm", Value::Bool(true)),
        ("expert_weights_scale", Value::Float(2.5)),
        ("expert_gating_func", Value::Integer(2)),
    ]);
    let found = experts(&stated.unwrap().0);
    assert!(found.normalized && found.scale == 2.5);
    for (field, value) in [
        ("expert_gating_func", Value::Integer(1)),
        ("expert_weights_scale", Value::Float(-1.0)),
        ("expert_shared_count", Value::Integer(1 << 40)),
        ("rope.dimension_sections", Value::Integers(vec![4, 2, 2, 0])),
    ] {
        let error = glm(&[(field, value)]).unwrap_err().to_string();
        assert!(error.contains(field), "{error} for {field}");
    }
}

#[test]
fn gate_and_up_of_an_expert_may_be_rows_of_one_stacked_tensor() {
    let outer: [(&str, &[usize]); 3] = [
        ("model.embed_tokens.weight", &[100, 64]),
        ("model.norm.weight", &[64]),
        ("lm_head.weight", &[100, 64]),
    ];
    let block: [(&str, &[usize]); 9] = [
        ("input_layernorm.weight", &[64]),
        ("post_attention_layernorm.weight", &[64]),
        ("self_attn.q_proj.weight", &[64, 64]),
        ("self_attn.k_proj.weight", &[32, 64]),
        ("self_attn.v_proj.weight", &[32, 64]),
        ("self_attn.o_proj.weight", &[64, 64]),
        ("block_sparse_moe.router.layer.weight", &[8, 64]),
        ("block_sparse_moe.input_linear.weight", &[8, 192, 64]),
        ("block_sparse_moe.output_linear.weight", &[8, 64, 96]),
    ];
    let tensors = tensors(&outer, "model.layers.", 4, &block);
    let config = with(
        &json!({
            "model_type": "granitemoe", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        }),
        json!({ "residual_multiplier": 0.5 }),
    );
    let (description, map) =
        crate::family::from_hugging_face(&config, (&tensors, &|_| false), &|_, _| true).unwrap();
    assert_eq!(description.residual_scale, 0.5);
    let of_layer = |linear| {
        let weight = &map.blocks[0].linears[&linear].weight;
        (weight.name.rsplit('.').nth(1).unwrap(), rows(weight))
    };
    let (both, down) = ("input_linear", "output_linear");
    assert_eq!(of_layer(Linear::ExpertGate(2)), (both, Some(384..480)));
    assert_eq!(of_layer(Linear::ExpertUp(2)), (both, Some(480..576)));
    assert_eq!(of_layer(Linear::ExpertDown(2)), (down, Some(128..192)));
}

#[test]
fn a_kind_of_positions_that_one_version_of_transformers_reads_is_refused_for_granite_moe() {
    let base = json!({
        "model_type": "granitemoe", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    let field = "position_embedding_type";
    let described = |value: Json| hugging_face::describe(&with(&base, json!({ field: value })));
    assert!(described(json!("rope")).is_ok());
    for value in [json!("nope"), json!(null)] {
        let error = described(value).expect_err("refused").to_string();
        assert!(error.contains(field), "{error}");
    }
}

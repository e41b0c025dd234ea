//! Tests experts that a checkpoint has in one tensor, and GLM-4.5's blocks that predict more than one token.

use serde_json::{Value as Json, json};

use super::gguf::{GGUF_BLOCK, GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::{Tensors, tensor, tensors};
use crate::description::{Linear, ModelDescription};
use crate::error::Result;
use crate::family::from_hugging_face;
use crate::gguf::Value;
use crate::tensor_map::{Part, Run, Runs, TensorMap, TensorSlice};

const EXPERTS: usize = 8;
const WIDTH: usize = 24;

/// Returns a model with four blocks of eight experts of width 24, as a `config.json` and tensors with these ones of
/// experts.
fn model(model_type: &str, experts: &[(&str, &[usize])], changes: Json) -> (Json, Tensors) {
    let outer: [(&str, &[usize]); 3] = [
        ("model.embed_tokens.weight", &[100, 64]),
        ("model.norm.weight", &[64]),
        ("lm_head.weight", &[100, 64]),
    ];
    let mut block: Vec<(&str, &[usize])> = vec![
        ("input_layernorm.weight", &[64]),
        ("post_attention_layernorm.weight", &[64]),
        ("self_attn.q_proj.weight", &[64, 64]),
        ("self_attn.k_proj.weight", &[32, 64]),
        ("self_attn.v_proj.weight", &[32, 64]),
        ("self_attn.o_proj.weight", &[64, 64]),
    ];
    if model_type != "gpt_oss" {
        block.push(("self_attn.q_norm.weight", &[16]));
        block.push(("self_attn.k_norm.weight", &[16]));
    }
    block.extend(experts);
    let config = json!({
        "model_type": model_type, "vocab_size": 100, "hidden_size": 64, "intermediate_size": WIDTH, "head_dim": 16,
        "moe_intermediate_size": WIDTH, "num_experts": EXPERTS, "num_experts_per_tok": 2, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4, "tie_word_embeddings": false,
    });
    let tensors = tensors(&outer, "model.layers.", 4, &block);
    (with(&config, changes), tensors)
}

fn open((config, tensors): &(Json, Tensors)) -> Result<(ModelDescription, TensorMap)> {
    from_hugging_face(config, (tensors, &|_| false), &|_, _| true)
}

fn open_quantized((config, tensors): &(Json, Tensors)) -> Result<(ModelDescription, TensorMap)> {
    let is_quantized = |name: &str| name.contains(".mlp.experts.") && !name.ends_with("_bias");
    from_hugging_face(config, (tensors, &is_quantized), &|_, _| true)
}

fn weight(map: &TensorMap, linear: Linear) -> TensorSlice {
    map.blocks[0].linears[&linear].weight.clone()
}

fn consecutive(first: usize, count: usize) -> Runs {
    (first..first + count).into()
}

#[test]
fn version_5_writes_experts_as_it_computes_with_them_gate_before_up() {
    let experts: [(&str, &[usize]); 3] = [
        ("mlp.gate.weight", &[EXPERTS, 64]),
        ("mlp.experts.gate_up_proj", &[EXPERTS, 2 * WIDTH, 64]),
        ("mlp.experts.down_proj", &[EXPERTS, 64, WIDTH]),
    ];
    let (_, map) = open(&model("qwen3_moe", &experts, json!({}))).unwrap();
    let both = "model.layers.0.mlp.experts.gate_up_proj";
    let rows = |first, count| Some(Part::Rows(consecutive(first, count)));
    for (linear, name, part) in [
        (Linear::ExpertGate(2), both, rows(4 * WIDTH, WIDTH)),
        (Linear::ExpertUp(2), both, rows(5 * WIDTH, WIDTH)),
        (
            Linear::ExpertDown(3),
            "model.layers.0.mlp.experts.down_proj",
            rows(3 * 64, 64),
        ),
    ] {
        let found = weight(&map, linear);
        assert_eq!((&found.name[..], found.part), (name, part), "{linear:?}");
    }
    // Mixtral's other names follow from that, too.
    let mut mixtral = model(
        "mixtral",
        &experts,
        json!({ "num_experts": "absent", "num_local_experts": EXPERTS }),
    );
    mixtral.1.retain(|name, _| !name.ends_with("_norm.weight"));
    open(&mixtral).unwrap();
    let mut other = model("qwen3_moe", &experts, json!({}));
    other.1.extend([tensor(
        "model.layers.3.mlp.experts.down_proj",
        &[EXPERTS, WIDTH, 64],
    )]);
    let error = open(&other).unwrap_err().to_string();
    assert!(error.contains("layers.3.mlp.experts.down_proj"), "{error}");
}

#[test]
fn experts_of_qwen3_vl_are_transposed() {
    let experts: [(&str, &[usize]); 3] = [
        ("mlp.gate.weight", &[EXPERTS, 64]),
        ("mlp.experts.gate_up_proj", &[EXPERTS, 64, 2 * WIDTH]),
        ("mlp.experts.down_proj", &[EXPERTS, WIDTH, 64]),
    ];
    let (description, map) = open(&model("qwen3_vl_moe_text", &experts, json!({}))).unwrap();
    assert!(
        description.blocks[0]
            .feed_forward
            .experts
            .unwrap()
            .normalized
    );
    let columns = |rows, first, count| {
        let columns = consecutive(first, count);
        Some(Part::Columns { rows, columns })
    };
    let up = weight(&map, Linear::ExpertUp(2)).part;
    assert_eq!(up, columns(2 * 64..3 * 64, WIDTH, WIDTH));
    let down = weight(&map, Linear::ExpertDown(2)).part;
    assert_eq!(down, columns(2 * WIDTH..3 * WIDTH, 0, 64));
    let as_computed: [(&str, &[usize]); 3] = [
        experts[0],
        ("mlp.experts.gate_up_proj", &[EXPERTS, 2 * WIDTH, 64]),
        ("mlp.experts.down_proj", &[EXPERTS, 64, WIDTH]),
    ];
    let error = open(&model("qwen3_vl_moe_text", &as_computed, json!({}))).unwrap_err();
    assert!(error.to_string().contains("as it is published"), "{error}");
}

const GPT_OSS: [(&str, &[usize]); 11] = [
    ("mlp.router.weight", &[EXPERTS, 64]),
    ("mlp.router.bias", &[EXPERTS]),
    ("mlp.experts.gate_up_proj", &[EXPERTS, 64, 2 * WIDTH]),
    ("mlp.experts.gate_up_proj_bias", &[EXPERTS, 2 * WIDTH]),
    ("mlp.experts.down_proj", &[EXPERTS, WIDTH, 64]),
    ("mlp.experts.down_proj_bias", &[EXPERTS, 64]),
    ("self_attn.sinks", &[4]),
    ("self_attn.q_proj.bias", &[64]),
    ("self_attn.k_proj.bias", &[32]),
    ("self_attn.v_proj.bias", &[32]),
    ("self_attn.o_proj.bias", &[64]),
];

fn gpt_oss(changes: Json) -> (Json, Tensors) {
    let base = json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "truncate": false } });
    model("gpt_oss", &GPT_OSS, with(&base, changes))
}

#[test]
fn columns_of_gate_and_up_alternate_in_gpt_oss() {
    let (description, map) = open(&gpt_oss(json!({}))).unwrap();
    let windows = super::windows(&description);
    assert_eq!(windows, [Some(128), None, Some(128), None]);
    let every_second = Run {
        first: 1,
        length: 1,
        period: 2,
        count: WIDTH,
    };
    let up = &map.blocks[0].linears[&Linear::ExpertUp(3)];
    let part = |rows| {
        let columns = Runs::from([every_second]);
        Some(Part::Columns { rows, columns })
    };
    assert_eq!(up.weight.part, part(3 * 64..4 * 64));
    assert_eq!(up.bias.as_ref().unwrap().part, part(3..4));
    let down = &map.blocks[0].linears[&Linear::ExpertDown(3)];
    let whole_row = Some(Part::Rows(consecutive(3, 1)));
    assert_eq!(down.bias.as_ref().unwrap().part, whole_row);
}

#[test]
fn experts_stand_in_one_matrix_only_if_they_are_quantized() {
    let mut quantized = gpt_oss(json!({}));
    for block in 0..4 {
        let name = |part: &str| format!("model.layers.{block}.mlp.experts.{part}");
        quantized.1.extend([
            tensor(&name("gate_up_proj"), &[EXPERTS * 2 * WIDTH, 64]),
            tensor(&name("down_proj"), &[EXPERTS * 64, WIDTH]),
        ]);
    }
    let (_, map) = open_quantized(&quantized).unwrap();
    let every_second = Run {
        first: 3 * 2 * WIDTH + 1,
        length: 1,
        period: 2,
        count: WIDTH,
    };
    let rows = Runs::from([every_second]);
    assert_eq!(
        weight(&map, Linear::ExpertUp(3)).part,
        Some(Part::Rows(rows))
    );
    for (file, is_quantized) in [(&quantized, false), (&gpt_oss(json!({})), true)] {
        let opened = match is_quantized {
            true => open_quantized(file),
            false => open(file),
        };
        let error = opened.expect_err("refused").to_string();
        assert!(error.contains("gate_up_proj` has shape"), "{error}");
    }
}

#[test]
fn what_gpt_oss_does_not_compute_is_refused_by_name() {
    for (changes, expected) in [
        (json!({ "swiglu_limit": 6.0 }), "swiglu_limit"),
        (json!({ "swiglu_alpha": 1.0 }), "swiglu_alpha"),
        (json!({ "rope_scaling": "absent" }), "rope_scaling"),
        (json!({ "rope_scaling": {} }), "rope_scaling"),
        (json!({ "num_experts": 9 }), "mlp.router.weight"),
    ] {
        let error = open(&gpt_oss(changes)).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

#[test]
fn blocks_of_glm_that_predict_more_than_one_token_are_left_out_where_the_file_counts_them() {
    let experts: [(&str, &[usize]); 3] = [
        ("mlp.gate.weight", &[EXPERTS, 64]),
        ("mlp.gate.e_score_correction_bias", &[EXPERTS]),
        ("mlp.experts.down_proj", &[EXPERTS, 64, WIDTH]),
    ];
    let mut experts = experts.to_vec();
    experts.push(("mlp.experts.gate_up_proj", &[EXPERTS, 2 * WIDTH, 64]));
    let changes = json!({
        "use_qk_norm": true, "n_shared_experts": 0, "first_k_dense_replace": 0, "num_nextn_predict_layers": 1,
    });
    let mut file = model("glm4_moe", &experts, changes);
    file.1.extend([
        tensor("model.layers.4.eh_proj.weight", &[64, 128]),
        tensor("model.layers.4.self_attn.q_proj.weight", &[64, 64]),
    ]);
    let (description, map) = open(&file).unwrap();
    assert_eq!(description.blocks.len(), 4);
    let names = ["eh_proj", "self_attn.q_proj"].map(|name| format!("model.layers.4.{name}.weight"));
    assert_eq!(map.more_tokens, names);
    for (field, value) in [("num_nextn_predict_layers", 0), ("num_hidden_layers", 3)] {
        let config = with(&file.0, json!({ field: value }));
        let error = open(&(config, file.1.clone()))
            .expect_err("refused")
            .to_string();
        assert!(error.contains("has no part"), "{error} for {field}");
    }
    // In GGUF, the number of blocks includes them.
    let mut numbers = vec![
        ("expert_count", Value::Integer(3)),
        ("expert_used_count", Value::Integer(2)),
        ("expert_feed_forward_length", Value::Integer(8)),
        ("leading_dense_block_count", Value::Integer(2)),
        ("expert_shared_count", Value::Integer(0)),
        ("block_count", Value::Integer(3)),
        ("nextn_predict_layers", Value::Integer(1)),
    ];
    let mut stored = tensors(&GGUF_OUTER, "blk.", 2, &GGUF_BLOCK);
    let predicting = [
        tensor("blk.2.nextn.eh_proj.weight", &[64, 128]),
        tensor("blk.2.attn_q.weight", &[64, 64]),
    ];
    stored.extend(predicting.clone());
    let (description, map) = from_file(&metadata("glm4moe", &numbers), &stored).unwrap();
    assert_eq!(description.blocks.len(), 2);
    assert_eq!(
        map.more_tokens,
        ["blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight"]
    );
    numbers.pop();
    let error = from_file(&metadata("glm4moe", &numbers), &stored).expect_err("refused");
    assert!(error.to_string().contains("blk.2."), "{error}");
}

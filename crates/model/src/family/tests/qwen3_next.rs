//! Tests the reading of Qwen3-Next.

use serde_json::{Value as Json, json};

use super::hugging_face::with;
use super::{Tensors, tensors};
use crate::description::{HeadSharing, Linear, Mixer, ModelDescription};
use crate::error::Result;
use crate::family::{Modules, from_gguf, from_hugging_face};
use crate::gguf::{Metadata, Value};
use crate::tensor_map::{Part, TensorMap};

/// Two key heads of width 8, each with three value heads of width 8. The second of two blocks has attention.
const OF_NET: [(&str, &[usize]); 7] = [
    ("linear_attn.in_proj_qkvz.weight", &[2 * 64, 64]),
    ("linear_attn.in_proj_ba.weight", &[2 * 6, 64]),
    ("linear_attn.conv1d.weight", &[80, 1, 4]),
    ("linear_attn.A_log", &[6]),
    ("linear_attn.dt_bias", &[6]),
    ("linear_attn.norm.weight", &[8]),
    ("linear_attn.out_proj.weight", &[64, 48]),
];
const OF_ATTENTION: [(&str, &[usize]); 6] = [
    ("self_attn.q_proj.weight", &[128, 64]),
    ("self_attn.k_proj.weight", &[32, 64]),
    ("self_attn.v_proj.weight", &[32, 64]),
    ("self_attn.o_proj.weight", &[64, 64]),
    ("self_attn.q_norm.weight", &[16]),
    ("self_attn.k_norm.weight", &[16]),
];
const OF_BOTH: [(&str, &[usize]); 9] = [
    ("input_layernorm.weight", &[64]),
    ("post_attention_layernorm.weight", &[64]),
    ("mlp.gate.weight", &[4, 64]),
    ("mlp.experts.gate_up_proj", &[4, 48, 64]),
    ("mlp.experts.down_proj", &[4, 64, 24]),
    ("mlp.shared_expert.gate_proj.weight", &[40, 64]),
    ("mlp.shared_expert.up_proj.weight", &[40, 64]),
    ("mlp.shared_expert.down_proj.weight", &[64, 40]),
    ("mlp.shared_expert_gate.weight", &[1, 64]),
];

fn config(changes: Json) -> Json {
    let config = json!({
        "model_type": "qwen3_next", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 2,
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
        "rope_theta": 1e7,
    });
    with(&config, changes)
}

fn stored() -> Tensors {
    let outer: [(&str, &[usize]); 3] = [
        ("model.embed_tokens.weight", &[100, 64]),
        ("model.norm.weight", &[64]),
        ("lm_head.weight", &[100, 64]),
    ];
    let mut all = tensors(&outer, "model.layers.", 2, &OF_BOTH);
    all.extend(tensors(&[], "model.layers.", 1, &OF_NET));
    let attention = tensors(&[], "model.layers.", 2, &OF_ATTENTION);
    all.extend(
        attention
            .into_iter()
            .filter(|(name, _)| name.contains(".1.")),
    );
    all
}

fn open(changes: Json) -> Result<(ModelDescription, TensorMap)> {
    from_hugging_face(&config(changes), (&stored(), &|_| false), &|_, _| true)
}

/// Returns the ranges of rows of a layer of the first block.
fn rows(map: &TensorMap, linear: Linear) -> Vec<std::ops::Range<usize>> {
    match &map.blocks[0].linears[&linear].weight.part {
        Some(Part::Rows(rows)) => rows.ranges().collect(),
        other => panic!("{other:?} of {linear:?}"),
    }
}

fn check_parts(map: &TensorMap) {
    // Of each key head: a query, a key, three values and three gates.
    let mixed = [0..8, 64..72, 8..16, 72..80, 16..40, 80..104];
    assert_eq!(rows(map, Linear::MixerInput), mixed);
    assert_eq!(rows(map, Linear::MixerGate), [40..64, 104..128]);
}

fn check_rates(map: &TensorMap) {
    assert_eq!(rows(map, Linear::MixerRate), [0..3, 6..9]);
    assert_eq!(rows(map, Linear::MixerDecay), [3..6, 9..12]);
}

#[test]
fn the_parts_of_a_key_head_are_next_to_each_other() {
    let (description, map) = open(json!({})).unwrap();
    check_parts(&map);
    check_rates(&map);
    let attention = description.blocks[1].attention().unwrap();
    assert!(attention.output_gate);
    assert_eq!(attention.rope.dims, 4);
    let experts = description.blocks[0].feed_forward.experts.unwrap();
    assert!(experts.normalized && experts.shared_gate);
    // Adapters can't have these layers.
    let modules = Modules::hugging_face(&description).unwrap();
    let name = |layer: &str| format!("model.layers.0.linear_attn.{layer}");
    assert!(modules.find(&name("in_proj_qkvz")).is_none());
    assert!(modules.find(&name("in_proj_ba")).is_none());
    assert!(modules.find(&name("out_proj")).is_some());
    let error = open(json!({ "linear_num_value_heads": 4 })).unwrap_err();
    assert!(error.to_string().contains("in_proj_qkvz"), "{error}");
}

#[test]
fn old_and_new_files_of_gguf_have_the_same_model() {
    let mut metadata = Metadata::default();
    let architecture = Value::String("qwen3next".to_owned());
    metadata.insert("general.architecture", architecture);
    for (field, number) in [
        ("embedding_length", 64),
        ("block_count", 2),
        ("context_length", 32_768),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("rope.dimension_count", 4),
        ("full_attention_interval", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 6),
        ("ssm.inner_size", 48),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 24),
        ("expert_shared_feed_forward_length", 40),
    ] {
        metadata.insert(format!("qwen3next.{field}"), Value::Integer(number));
    }
    metadata.insert(
        "qwen3next.attention.layer_norm_rms_epsilon",
        Value::Float(1e-6),
    );
    metadata.insert("qwen3next.rope.freq_base", Value::Float(1e7));
    let outer: [(&str, &[usize]); 3] = [
        ("token_embd.weight", &[100, 64]),
        ("output_norm.weight", &[64]),
        ("output.weight", &[100, 64]),
    ];
    let both: [(&str, &[usize]); 9] = [
        ("attn_norm.weight", &[64]),
        ("post_attention_norm.weight", &[64]),
        ("ffn_gate_inp.weight", &[4, 64]),
        ("ffn_gate_up_exps.weight", &[4, 48, 64]),
        ("ffn_down_exps.weight", &[4, 64, 24]),
        ("ffn_gate_shexp.weight", &[40, 64]),
        ("ffn_up_shexp.weight", &[40, 64]),
        ("ffn_down_shexp.weight", &[64, 40]),
        ("ffn_gate_inp_shexp.weight", &[64]),
    ];
    let net: [(&str, &[usize]); 6] = [
        ("ssm_ba.weight", &[12, 64]),
        ("ssm_conv1d.weight", &[80, 4]),
        ("ssm_a", &[6]),
        ("ssm_dt.bias", &[6]),
        ("ssm_norm.weight", &[8]),
        ("ssm_out.weight", &[64, 48]),
    ];
    let attention: [(&str, &[usize]); 6] = [
        ("attn_q.weight", &[128, 64]),
        ("attn_k.weight", &[32, 64]),
        ("attn_v.weight", &[32, 64]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
    ];
    let old: [(&str, &[usize]); 1] = [("ssm_in.weight", &[128, 64])];
    let new: [(&str, &[usize]); 2] = [
        ("attn_qkv.weight", &[80, 64]),
        ("attn_gate.weight", &[48, 64]),
    ];
    let open = |inputs: &[(&str, &[usize])]| {
        let mut all = tensors(&outer, "blk.", 2, &both);
        all.extend(tensors(&[], "blk.", 1, &net));
        all.extend(tensors(&[], "blk.", 1, inputs));
        let of_attention = tensors(&[], "blk.", 2, &attention);
        all.extend(
            of_attention
                .into_iter()
                .filter(|(name, _)| name.contains(".1.")),
        );
        from_gguf(&metadata, &all, &|_: &_| unreachable!("no tensor is read")).unwrap()
    };
    let (description, map) = open(&old);
    check_parts(&map);
    check_rates(&map);
    let (same, map) = open(&new);
    assert_eq!(description, same);
    check_rates(&map);
    assert_eq!(map.blocks[0].linears[&Linear::MixerInput].weight.part, None);
    let Mixer::DeltaNet(net) = &same.blocks[0].mixer else {
        panic!("expected a DeltaNet")
    };
    assert_eq!(net.sharing, HeadSharing::Adjacent);
}

#[test]
fn adapters_in_gguf_have_the_order_of_heads_of_the_models_in_gguf() {
    let (description, _) = open(json!({})).unwrap();
    let modules = Modules::gguf("qwen3next", &description).unwrap();
    for (name, linear) in [
        ("blk.0.ssm_out", Linear::MixerOutput),
        ("blk.0.attn_qkv", Linear::MixerInput),
        ("blk.0.attn_gate", Linear::MixerGate),
    ] {
        let (block, linears) = modules.find(name).expect(name);
        assert_eq!((block, linears), (0, &[linear][..]), "{name}");
    }
    // Rows of rates and decays take turns.
    for name in ["blk.0.ssm_ba", "blk.0.ssm_alpha", "blk.0.ssm_beta"] {
        assert!(modules.find(name).is_none(), "{name}");
    }
}

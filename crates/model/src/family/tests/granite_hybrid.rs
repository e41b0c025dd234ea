//! Tests the reading of Granite 4 with Mamba-2.

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::hugging_face::with;
use super::{Tensors, tensors};
use crate::description::{GateNorm, Mamba2, Mixer, MixerWeight, ModelDescription};
use crate::error::Result;
use crate::family::from_gguf;
use crate::gguf::{Metadata, Value};
use crate::tensor_map::{StoredAs, TensorMap};

fn described(changes: Json) -> Result<ModelDescription> {
    let config = json!({
        "model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 0, "shared_intermediate_size": 96,
        "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 24,
        "residual_multiplier": 0.25,
    });
    Ok(hugging_face::describe(&with(&config, changes))?.1)
}

const MAMBA: Mamba2 = Mamba2 {
    heads: 8,
    head_dim: 16,
    groups: 1,
    state: 24,
    taps: 4,
    conv_bias: true,
    bias: false,
    norm: GateNorm::AfterGate,
    factors: None,
    epsilon: 1e-6,
};

#[test]
fn blocks_of_granite_4_have_a_mamba_2_or_attention_without_rope() {
    let plain = described(json!({})).unwrap();
    let mixer = Mixer::Mamba2(MAMBA);
    assert!(plain.blocks[0].mixer == mixer && plain.blocks[2].mixer == mixer);
    assert_eq!(plain.blocks[1].attention().unwrap().rope.dims, 0);
    assert_eq!(plain.blocks[0].feed_forward.width, 96);
    assert!(!plain.has_experts());
    assert_eq!(plain.residual_scale, 0.25);
    let types = ["linear_attention", "full_attention", "linear_attention"];
    let newer = json!({ "layer_types": types, "mamba_d_head": "auto", "time_step_limit": [0.0, { "__float__": "Infinity" }] });
    assert_eq!(described(newer).unwrap(), plain);
    let with_rope = described(json!({ "position_embedding_type": "rope" })).unwrap();
    assert_eq!(with_rope.blocks[1].attention().unwrap().rope.dims, 16);
    let with_experts = json!({ "num_local_experts": 4, "intermediate_size": 24 });
    let with_experts = described(with_experts).unwrap().blocks[0].feed_forward;
    let experts = with_experts.experts.unwrap();
    assert_eq!(
        (with_experts.width, experts.width, experts.count),
        (96, 24, 4)
    );
}

#[test]
fn the_kinds_of_blocks_have_two_names_and_must_not_differ() {
    let plain = described(json!({})).unwrap();
    let types = ["mamba", "attention", "mamba"];
    for changes in [
        json!({ "layer_types": "absent", "layers_block_type": types }),
        json!({ "layer_types": null, "layers_block_type": types }),
        json!({ "layers_block_type": types }),
        json!({ "layers_block_type": ["linear_attention", "full_attention", "linear_attention"] }),
        json!({ "layers_block_type": null }),
    ] {
        assert_eq!(described(changes).unwrap(), plain);
    }
    for (changes, expected) in [
        (
            json!({ "layers_block_type": ["mamba", "mamba", "attention"] }),
            "`layers_block_type` differs from `layer_types`",
        ),
        (
            json!({ "layer_types": "absent", "layers_block_type": ["mamba"] }),
            "`layers_block_type` has 1 entries",
        ),
        (
            json!({ "layer_types": "absent", "layers_block_type": ["mamba", "conv", "mamba"] }),
            "`layers_block_type[1]` is `conv`",
        ),
    ] {
        let error = described(changes).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

#[test]
fn what_granite_4_does_not_compute_is_refused_by_name() {
    for (changes, expected) in [
        (json!({ "mamba_n_groups": 2 }), "mamba_n_groups"),
        (json!({ "mamba_d_head": 8 }), "mamba_d_head"),
        (json!({ "mamba_expand": 3 }), "mamba_expand"),
        (json!({ "time_step_limit": [0.0, 1.0] }), "time_step_limit"),
        (
            json!({ "time_step_limit": [0.1, "inf"] }),
            "time_step_limit",
        ),
        (
            json!({ "time_step_limit": [0.0, { "__float__": "NaN" }] }),
            "time_step_limit",
        ),
        (
            json!({ "position_embedding_type": "alibi" }),
            "position_embedding_type",
        ),
        (
            json!({ "layer_types": ["mamba", "conv", "mamba"] }),
            "`layer_types[1]` is `conv`",
        ),
        (
            json!({ "hidden_act": "gelu" }),
            "`hidden_act` is other than silu",
        ),
        (
            json!({ "mamba_d_conv": 1 }),
            "a convolution over 1 positions",
        ),
        (
            json!({ "shared_intermediate_size": "absent" }),
            "shared_intermediate_size",
        ),
    ] {
        let error = described(changes).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

fn of_gguf(changes: &[(&str, Value)], groups: usize) -> Result<(ModelDescription, TensorMap)> {
    let mut metadata = Metadata::default();
    let architecture = Value::String("granitehybrid".to_owned());
    metadata.insert("general.architecture", architecture);
    for (field, number) in [
        ("embedding_length", 64),
        ("block_count", 2),
        ("context_length", 512),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 24),
        ("ssm.group_count", groups as i128),
        ("ssm.time_step_rank", 8),
        ("ssm.inner_size", 128),
    ] {
        metadata.insert(format!("granitehybrid.{field}"), Value::Integer(number));
    }
    let heads = Value::Integers(vec![0, 2]);
    metadata.insert("granitehybrid.attention.head_count_kv", heads);
    metadata.insert(
        "granitehybrid.attention.layer_norm_rms_epsilon",
        Value::Float(1e-6),
    );
    for (field, value) in changes {
        metadata.insert(format!("granitehybrid.{field}"), value.clone());
    }
    let outer: [(&str, &[usize]); 2] = [
        ("token_embd.weight", &[100, 64]),
        ("output_norm.weight", &[64]),
    ];
    let both: [(&str, &[usize]); 5] = [
        ("attn_norm.weight", &[64]),
        ("ffn_norm.weight", &[64]),
        ("ffn_gate.weight", &[96, 64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_down.weight", &[64, 96]),
    ];
    let channels = 128 + 2 * groups * 24;
    let input = [128 + channels + 8, 64];
    let (of_taps, norm) = ([channels, 4], [groups, 128 / groups]);
    let mamba: [(&str, &[usize]); 8] = [
        ("ssm_in.weight", &input),
        ("ssm_conv1d.weight", &of_taps),
        ("ssm_conv1d.bias", &[channels]),
        ("ssm_a", &[8, 1]),
        ("ssm_d", &[8, 1]),
        ("ssm_dt.bias", &[8]),
        ("ssm_norm.weight", &norm),
        ("ssm_out.weight", &[64, 128]),
    ];
    let attention: [(&str, &[usize]); 4] = [
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[32, 64]),
        ("attn_v.weight", &[32, 64]),
        ("attn_output.weight", &[64, 64]),
    ];
    let mut all: Tensors = tensors(&outer, "blk.", 2, &both);
    all.extend(tensors(&[], "blk.", 1, &mamba));
    let of_attention = tensors(&[], "blk.", 2, &attention);
    all.extend(
        of_attention
            .into_iter()
            .filter(|(name, _)| name.contains(".1.")),
    );
    from_gguf(&metadata, &all, &|_: &_| unreachable!("no tensor is read"))
}

#[test]
fn blocks_without_keys_have_a_mamba_2_in_gguf() {
    let (description, map) = of_gguf(&[], 2).unwrap();
    let expected = Mamba2 { groups: 2, ..MAMBA };
    assert_eq!(description.blocks[0].mixer, Mixer::Mamba2(expected));
    assert_eq!(description.blocks[1].attention().unwrap().rope.dims, 16);
    assert_eq!(
        map.blocks[0].mixer[&MixerWeight::Decay].stored,
        StoredAs::Itself
    );
    let is_stored = [("rope.scaling.finetuned", Value::Bool(false))];
    let (description, _) = of_gguf(&is_stored, 1).unwrap();
    assert_eq!(description.blocks[1].attention().unwrap().rope.dims, 0);
}

#[test]
fn groups_of_a_mamba_2_in_gguf_divide_its_width_and_its_heads() {
    for groups in [4, 8] {
        let (description, _) = of_gguf(&[], groups).unwrap();
        let expected = Mamba2 { groups, ..MAMBA };
        assert_eq!(description.blocks[0].mixer, Mixer::Mamba2(expected));
    }
    for (field, number, expected) in [
        ("ssm.inner_size", 124, "a multiple of 8 heads"),
        ("ssm.group_count", 3, "of 3 groups"),
        ("ssm.group_count", 16, "the number of groups"),
        ("ssm.group_count", 4, "blk.0.ssm_in.weight"),
        ("ssm.time_step_rank", 7, "a multiple of 7 heads"),
        ("ssm.time_step_rank", 1, "the number of groups"),
    ] {
        let error = of_gguf(&[(field, Value::Integer(number))], 2).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains(expected), "{error} for {field} = {number}");
    }
}

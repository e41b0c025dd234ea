use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::{Tensors, tensor};
use crate::description::{Linear, Mixer, MixerWeight, ModelDescription, ShortConv};
use crate::error::Result;
use crate::family::{from_gguf, from_hugging_face};
use crate::gguf::{Metadata, Value};
use crate::tensor_map::{StoredAs, TensorMap};

fn config(changes: Json) -> Json {
    let mut config = json!({
        "model_type": "lfm2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "block_multiple_of": 16,
        "layer_types": ["conv", "full_attention", "conv"]
    });
    let Json::Object(changes) = changes else {
        panic!("expected an object")
    };
    for (field, value) in changes {
        match value.as_str() {
            Some("absent") => config.as_object_mut().unwrap().remove(&field),
            _ => config.as_object_mut().unwrap().insert(field, value),
        };
    }
    config
}

fn described(changes: Json) -> Result<ModelDescription> {
    Ok(hugging_face::describe(&config(changes))?.1)
}

fn refusal(changes: Json) -> String {
    described(changes).expect_err("refused").to_string()
}

#[test]
fn blocks_of_lfm2_have_attention_or_a_convolution_of_the_width_of_the_model() {
    let description = described(json!({})).unwrap();
    let conv = |taps, bias| {
        Mixer::ShortConv(ShortConv {
            channels: 64,
            taps,
            bias,
        })
    };
    assert_eq!(description.blocks[0].mixer, conv(3, false));
    assert_eq!(description.blocks[2].mixer, conv(3, false));
    let attention = description.blocks[1].attention().unwrap();
    assert_eq!(
        (attention.kv_heads, attention.head_dim, attention.rope.base),
        (2, 16, 1e6)
    );
    assert!(attention.qk_norm.is_some() && !attention.qkv_bias && description.tied_output);
    assert_eq!(description.output_norm.epsilon, 1e-5);
    let other =
        json!({ "conv_L_cache": 5, "conv_bias": true, "attention_bias": true, "norm_eps": 1e-3 });
    let other = described(other).unwrap();
    assert_eq!(other.blocks[0].mixer, conv(5, true));
    // `transformers` reads no bias of attention.
    assert!(!other.blocks[1].attention().unwrap().qkv_bias);
    assert_eq!(other.output_norm.epsilon, 1e-3);
    let absent = described(json!({ "num_key_value_heads": "absent", "num_attention_heads": 8 }));
    assert_eq!(absent.unwrap().blocks[1].attention().unwrap().kv_heads, 8);
}

#[test]
fn without_types_of_layers_lfm2_has_attention_where_the_indices_say_or_everywhere() {
    let has_attention = |changes| -> Vec<bool> {
        let description = described(changes).unwrap();
        let blocks = description.blocks.iter();
        blocks.map(|block| block.attention().is_some()).collect()
    };
    let indices = json!({ "layer_types": "absent", "full_attn_idxs": [0, 2, 7] });
    assert_eq!(has_attention(indices), [true, false, true]);
    let none = json!({ "layer_types": null, "full_attn_idxs": [] });
    assert_eq!(has_attention(none), [false; 3]);
    assert_eq!(has_attention(json!({ "layer_types": null })), [true; 3]);
    let both = json!({ "full_attn_idxs": [0] });
    assert_eq!(has_attention(both), [false, true, false]);
}

#[test]
fn the_width_of_lfm2s_feed_forward_is_adjusted_as_transformers_does() {
    let width = |changes| described(changes).unwrap().blocks[0].feed_forward.width;
    // 2 · 96 / 3 is a multiple of 16.
    assert_eq!(width(json!({})), 64);
    assert_eq!(width(json!({ "intermediate_size": 100 })), 80);
    assert_eq!(width(json!({ "block_ff_dim": 48 })), 32);
    assert_eq!(width(json!({ "block_multiple_of": "absent" })), 256);
    assert_eq!(width(json!({ "block_ffn_dim_multiplier": 1.3 })), 96);
    // Without a multiplier the width is not rounded, either.
    let null = json!({ "intermediate_size": 100, "block_ffn_dim_multiplier": null });
    assert_eq!(width(null), 66);
    for off in [json!(false), json!(null)] {
        let changes = json!({ "intermediate_size": 100, "block_auto_adjust_ff_dim": off });
        assert_eq!(width(changes), 100);
    }
    let huge = json!({ "block_ffn_dim_multiplier": 1e30 });
    assert!(refusal(huge).contains("block_ffn_dim_multiplier"));
}

#[test]
fn what_lfm2_does_not_say_in_one_way_is_refused_by_name() {
    for (changes, expected) in [
        (json!({ "theta": 5e5 }), "`theta`"),
        (json!({ "layer_types": ["conv", "conv"] }), "2 entries"),
        (
            json!({ "layer_types": ["conv", "sliding_attention", "conv"] }),
            "`layer_types[1]` is `sliding_attention`",
        ),
        (json!({ "conv_L_cache": 1 }), "over 1 positions"),
        (json!({ "conv_L_cache": 65 }), "conv_L_cache"),
        (
            json!({ "full_attn_idxs": [-1], "layer_types": null }),
            "full_attn_idxs",
        ),
    ] {
        let refusal = refusal(changes);
        assert!(refusal.contains(expected), "{refusal} for {expected}");
    }
    assert!(described(json!({ "theta": 1e6, "rope_theta": 1e6 })).is_ok());
    assert!(
        !described(json!({ "tie_embedding": false }))
            .unwrap()
            .tied_output
    );
}

/// Returns the tensors of the model, with the shape of the convolutions' factors.
fn tensors(names: [&str; 13], root: &str, block: &str, conv: &[usize]) -> Tensors {
    let mut all = vec![
        (format!("{root}{}", names[0]), vec![100, 64]),
        (format!("{root}{}", names[1]), vec![64]),
    ];
    for index in 0..3 {
        let mut add = |name: &str, shape: &[usize]| {
            all.push((
                format!("{root}{block}{index}.{name}.weight"),
                shape.to_vec(),
            ));
        };
        add(names[2], &[64]);
        add(names[3], &[64]);
        let [gate, up, down] = [names[10], names[11], names[12]];
        add(gate, &[64, 64]);
        add(up, &[64, 64]);
        add(down, &[64, 64]);
        if index == 1 {
            add(names[4], &[16]);
            add(names[5], &[16]);
            for (name, rows) in [("q", 64), ("k", 32), ("v", 32)] {
                add(&names[6].replace('*', name), &[rows, 64]);
            }
            add(names[7], &[64, 64]);
        } else {
            add(&format!("{}.conv", names[8]), conv);
            add(&format!("{}.in_proj", names[8]), &[192, 64]);
            add(&format!("{}.{}", names[8], names[9]), &[64, 64]);
        }
    }
    all.iter()
        .map(|(name, shape)| tensor(name, shape))
        .collect()
}

fn of_transformers() -> Tensors {
    tensors(
        [
            "embed_tokens.weight",
            "embedding_norm.weight",
            "operator_norm",
            "ffn_norm",
            "self_attn.q_layernorm",
            "self_attn.k_layernorm",
            "self_attn.*_proj",
            "self_attn.out_proj",
            "conv",
            "out_proj",
            "feed_forward.w1",
            "feed_forward.w3",
            "feed_forward.w2",
        ],
        "model.",
        "layers.",
        &[64, 1, 3],
    )
}

fn of_llama_cpp() -> Tensors {
    tensors(
        [
            "token_embd.weight",
            "token_embd_norm.weight",
            "attn_norm",
            "ffn_norm",
            "attn_q_norm",
            "attn_k_norm",
            "attn_*",
            "attn_output",
            "shortconv",
            "out_proj",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ],
        "",
        "blk.",
        &[64, 3],
    )
}

fn metadata(kv_heads: &[i64]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("lfm2".to_owned()));
    for (field, number) in [
        ("embedding_length", 64),
        ("block_count", 3),
        ("feed_forward_length", 64),
        ("context_length", 512),
        ("attention.head_count", 4),
        ("shortconv.l_cache", 3),
    ] {
        metadata.insert(format!("lfm2.{field}"), Value::Integer(number));
    }
    let kv_heads = Value::Integers(kv_heads.to_vec());
    metadata.insert("lfm2.attention.head_count_kv", kv_heads);
    metadata.insert("lfm2.attention.layer_norm_rms_epsilon", Value::Float(1e-5));
    metadata.insert("lfm2.rope.freq_base", Value::Float(1e6));
    metadata
}

#[test]
fn lfm2_is_the_same_model_in_either_file() {
    let check = |map: &TensorMap| {
        let conv = &map.blocks[0];
        let weight = &conv.mixer[&MixerWeight::Convolution];
        assert!(weight.stored == StoredAs::Transposed && weight.name.ends_with("conv.weight"));
        assert!(conv.linears.contains_key(&Linear::MixerInput));
        assert!(conv.linears.contains_key(&Linear::MixerOutput));
        assert!(map.blocks[1].mixer.is_empty() && conv.query_norm.is_none());
        assert!(
            map.output_norm.weight.ends_with("embd_norm.weight")
                || map.output_norm.weight.ends_with("embedding_norm.weight")
        );
    };
    let changes = json!({ "max_position_embeddings": 512 });
    let (one, map) = from_hugging_face(
        &config(changes),
        (&of_transformers(), &|_| false),
        &|_, _| true,
    )
    .unwrap();
    check(&map);
    let no_values = &|_: &_| unreachable!("no tensor is read");
    let (other, map) = from_gguf(&metadata(&[0, 2, 0]), &of_llama_cpp(), no_values).unwrap();
    check(&map);
    assert_eq!(one, other);
    // Two norms of four, of 16 each, and two convolutions.
    let sizes: usize = of_llama_cpp()
        .values()
        .map(|tensor| tensor.shape.iter().product::<usize>())
        .sum();
    assert_eq!(one.parameters(), sizes);
}

#[test]
fn a_gguf_file_of_lfm2_with_other_heads_or_biases_is_refused() {
    let no_values = &|_: &_| unreachable!("no tensor is read");
    for (kv_heads, expected) in [
        (&[0, 2][..], "has 2 numbers, expected 3"),
        (&[2, 4, 0], "the same number of heads"),
        (&[0, -1, 0], "-1"),
        (&[0, 3, 0], "can't share 3"),
    ] {
        let error = from_gguf(&metadata(kv_heads), &of_llama_cpp(), no_values);
        let error = error.expect_err("refused").to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
    let mut biased = of_llama_cpp();
    biased.extend([tensor("blk.0.shortconv.conv.bias", &[64])]);
    let error = from_gguf(&metadata(&[0, 2, 0]), &biased, no_values);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("shortconv.conv.bias"), "{error}");
}

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::{Tensors, tensor};
use crate::description::{DeltaNet, HeadSharing, Linear, Mixer, MixerWeight, ModelDescription};
use crate::error::Result;
use crate::family::{Modules, from_gguf, from_hugging_face};
use crate::gguf::{Metadata, Value};
use crate::tensor_map::{StoredAs, TensorMap};

/// The blocks of the model; the third has attention.
const BLOCKS: usize = 4;

fn config(changes: Json) -> Json {
    let mut config = json!({
        "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": BLOCKS,
        "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "full_attention_interval": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "mrope_interleaved": true, "mrope_section": [1, 1, 0]
        }
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

fn net(sharing: HeadSharing) -> DeltaNet {
    DeltaNet {
        key_heads: 2,
        value_heads: 6,
        key_dim: 8,
        value_dim: 8,
        taps: 4,
        sharing,
        epsilon: 1e-6,
    }
}

#[test]
fn blocks_of_qwen3_5_have_attention_with_gates_or_a_delta_net() {
    let description = described(json!({})).unwrap();
    let mixers: Vec<_> = description
        .blocks
        .iter()
        .map(|block| &block.mixer)
        .collect();
    let expected = Mixer::DeltaNet(net(HeadSharing::Adjacent));
    assert!(
        [0, 1, 3]
            .into_iter()
            .all(|block| *mixers[block] == expected)
    );
    let attention = description.blocks[2].attention().unwrap();
    assert!(attention.output_gate && !attention.qkv_bias);
    assert_eq!((attention.query_width(), attention.rope.dims), (2 * 64, 4));
    assert_eq!(attention.rope.base, 1e7);
    // Norms are stored less one.
    assert_eq!(attention.qk_norm.unwrap().norm.weight_offset, 1.0);
    assert_eq!(description.output_norm.weight_offset, 1.0);
    assert!(!description.tied_output);
    let absent = [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "full_attention_interval",
        "head_dim",
        "num_key_value_heads",
        "rope_parameters",
    ];
    let absent: serde_json::Map<_, _> = absent
        .into_iter()
        .map(|field| (field.to_owned(), json!("absent")))
        .collect();
    let defaults = described(Json::Object(absent)).unwrap();
    let Mixer::DeltaNet(net) = &defaults.blocks[0].mixer else {
        panic!("expected a DeltaNet")
    };
    assert_eq!(
        (net.key_heads, net.value_heads, net.key_dim, net.value_dim),
        (16, 32, 128, 128)
    );
    let attention = defaults.blocks[3].attention().unwrap();
    assert_eq!(
        (attention.head_dim, attention.kv_heads, attention.rope.dims),
        (256, 4, 64)
    );
    assert_eq!(attention.rope.base, 1e4);
}

#[test]
fn types_of_layers_come_before_their_interval() {
    let types = [
        "full_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ];
    let description = described(json!({ "layer_types": types })).unwrap();
    let has_attention = description
        .blocks
        .iter()
        .map(|block| block.attention().is_some());
    assert_eq!(
        has_attention.collect::<Vec<_>>(),
        [true, false, false, true]
    );
}

#[test]
fn what_qwen3_5_does_not_compute_is_refused_by_name() {
    for (changes, expected) in [
        (
            json!({ "hidden_act": "gelu" }),
            "`hidden_act` is other than silu",
        ),
        (json!({ "layer_types": ["linear_attention"] }), "1 entries"),
        (
            json!({ "layer_types": ["linear_attention", "conv", "full_attention", "full_attention"] }),
            "`layer_types[1]` is `conv`",
        ),
        (
            json!({ "linear_num_key_heads": 4 }),
            "can't share 4 key heads",
        ),
        (
            json!({ "linear_num_value_heads": 0 }),
            "linear_num_value_heads",
        ),
        (
            json!({ "linear_key_head_dim": 1025 }),
            "linear_key_head_dim",
        ),
        (json!({ "linear_conv_kernel_dim": 1 }), "over 1 positions"),
        (
            json!({ "partial_rotary_factor": null }),
            "partial_rotary_factor",
        ),
        (
            json!({ "linear_num_value_heads": 1024, "linear_key_head_dim": 1024, "linear_value_head_dim": 1024 }),
            "values of a block's state",
        ),
        (json!({ "num_experts": 4 }), "num_experts"),
    ] {
        let refusal = described(changes).expect_err("refused").to_string();
        assert!(refusal.contains(expected), "{refusal} for {expected}");
    }
}

/// Names of tensors: of the norms, of attention, of the feed-forward, of the DeltaNet, and of its weights.
struct Layout {
    root: &'static str,
    block: &'static str,
    outer: [&'static str; 3],
    norms: [&'static str; 4],
    attention: [&'static str; 4],
    feed_forward: [&'static str; 3],
    mixer: [&'static str; 5],
    weights: [&'static str; 4],
    convolution: &'static [usize],
}

const OF_TRANSFORMERS: Layout = Layout {
    root: "model.language_model.",
    block: "layers.",
    outer: [
        "model.language_model.embed_tokens",
        "model.language_model.norm",
        "lm_head",
    ],
    norms: [
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
    ],
    attention: [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    ],
    feed_forward: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    mixer: [
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
        "linear_attn.out_proj",
    ],
    weights: [
        "linear_attn.conv1d.weight",
        "linear_attn.A_log",
        "linear_attn.dt_bias",
        "linear_attn.norm.weight",
    ],
    convolution: &[80, 1, 4],
};

const OF_LLAMA_CPP: Layout = Layout {
    root: "",
    block: "blk.",
    outer: ["token_embd", "output_norm", "output"],
    norms: [
        "attn_norm",
        "post_attention_norm",
        "attn_q_norm",
        "attn_k_norm",
    ],
    attention: ["attn_q", "attn_k", "attn_v", "attn_output"],
    feed_forward: ["ffn_gate", "ffn_up", "ffn_down"],
    mixer: ["attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_out"],
    weights: [
        "ssm_conv1d.weight",
        "ssm_a",
        "ssm_dt.bias",
        "ssm_norm.weight",
    ],
    convolution: &[80, 4],
};

impl Layout {
    fn tensors(&self) -> Tensors {
        let mut all: Vec<(String, Vec<usize>)> = Vec::new();
        for (name, shape) in self
            .outer
            .iter()
            .zip([vec![100, 64], vec![64], vec![100, 64]])
        {
            all.push((format!("{name}.weight"), shape));
        }
        for index in 0..BLOCKS {
            let prefix = format!("{}{}{index}.", self.root, self.block);
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("{prefix}{name}"), shape.to_vec()));
            };
            let mut layers = |names: &[&str], shapes: &[[usize; 2]]| {
                for (name, shape) in names.iter().zip(shapes) {
                    add(&format!("{name}.weight"), shape);
                }
            };
            layers(&self.feed_forward, &[[96, 64], [96, 64], [64, 96]]);
            if index == 2 {
                layers(&self.attention, &[[128, 64], [32, 64], [32, 64], [64, 64]]);
            } else {
                layers(
                    &self.mixer,
                    &[[80, 64], [48, 64], [6, 64], [6, 64], [64, 48]],
                );
            }
            let norms = if index == 2 {
                &self.norms[..]
            } else {
                &self.norms[..2]
            };
            for (name, width) in norms.iter().zip([64, 64, 16, 16]) {
                add(&format!("{name}.weight"), &[width]);
            }
            if index != 2 {
                let shapes = [self.convolution, &[6], &[6], &[8]];
                for (name, shape) in self.weights.iter().zip(shapes) {
                    add(name, shape);
                }
            }
        }
        all.iter()
            .map(|(name, shape)| tensor(name, shape))
            .collect()
    }
}

fn metadata(changes: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("qwen35".to_owned()));
    for (field, number) in [
        ("embedding_length", 64),
        ("block_count", 4),
        ("feed_forward_length", 96),
        ("context_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("rope.dimension_count", 4),
        ("full_attention_interval", 3),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 6),
        ("ssm.inner_size", 48),
    ] {
        metadata.insert(format!("qwen35.{field}"), Value::Integer(number));
    }
    metadata.insert(
        "qwen35.rope.dimension_sections",
        Value::Integers(vec![1, 1, 0, 0]),
    );
    metadata.insert(
        "qwen35.attention.layer_norm_rms_epsilon",
        Value::Float(1e-6),
    );
    metadata.insert("qwen35.rope.freq_base", Value::Float(1e7));
    for (field, value) in changes {
        metadata.insert(format!("qwen35.{field}"), value.clone());
    }
    metadata
}

fn of_gguf(changes: &[(&str, Value)], tensors: &Tensors) -> Result<(ModelDescription, TensorMap)> {
    from_gguf(&metadata(changes), tensors, &|_: &_| {
        unreachable!("no tensor is read")
    })
}

#[test]
fn qwen3_5_is_the_same_model_in_either_file_but_for_norms_and_the_order_of_heads() {
    let check = |map: &TensorMap, decay: StoredAs| {
        let net = &map.blocks[0];
        assert_eq!(
            net.mixer[&MixerWeight::Convolution].stored,
            StoredAs::Transposed
        );
        assert_eq!(net.mixer[&MixerWeight::Decay].stored, decay);
        assert_eq!(net.mixer[&MixerWeight::HeadNorm].stored, StoredAs::Itself);
        let linears = [
            Linear::MixerInput,
            Linear::MixerGate,
            Linear::MixerRate,
            Linear::MixerDecay,
            Linear::MixerOutput,
        ];
        assert!(
            linears
                .iter()
                .all(|linear| net.linears.contains_key(linear))
        );
        assert!(map.blocks[2].mixer.is_empty() && net.query_norm.is_none());
    };
    let mut tensors = OF_TRANSFORMERS.tensors();
    // Others are for more than one token, and for images.
    tensors.extend([
        tensor("mtp.fc.weight", &[64, 128]),
        tensor("model.visual.norm.weight", &[9]),
    ]);
    let with_images = json!({ "model_type": "qwen3_5", "text_config": config(json!({})) });
    let (mut one, map) =
        from_hugging_face(&with_images, (&tensors, &|_| false), &|_, _| true).unwrap();
    check(&map, StoredAs::Logarithm);
    assert_eq!(map.unused, ["model.visual.norm.weight"]);
    assert_eq!(map.more_tokens, ["mtp.fc.weight"]);
    let (other, map) = of_gguf(&[], &OF_LLAMA_CPP.tensors()).unwrap();
    check(&map, StoredAs::Itself);
    one.output_norm.weight_offset = 0.0;
    for block in &mut one.blocks {
        block.norm.weight_offset = 0.0;
        match &mut block.mixer {
            Mixer::DeltaNet(net) => net.sharing = HeadSharing::Remainder,
            Mixer::Attention(attention) => {
                attention.qk_norm.as_mut().unwrap().norm.weight_offset = 0.0;
            }
            Mixer::ShortConv(_) | Mixer::Mamba2(_) => {
                unreachable!("Qwen3.5 has no such blocks")
            }
        }
    }
    assert_eq!(one, other);
    let sizes: usize = OF_LLAMA_CPP
        .tensors()
        .values()
        .map(|tensor| tensor.shape.iter().product::<usize>())
        .sum();
    assert_eq!(one.parameters(), sizes);
}

#[test]
fn blocks_that_predict_more_than_one_token_are_left_out() {
    let mut tensors = OF_LLAMA_CPP.tensors();
    tensors.extend([
        tensor("blk.4.nextn.eh_proj.weight", &[64, 128]),
        tensor("blk.4.attn_q.weight", &[128, 64]),
    ]);
    let more = [
        ("block_count", Value::Integer(5)),
        ("nextn_predict_layers", Value::Integer(1)),
    ];
    let (description, map) = of_gguf(&more, &tensors).unwrap();
    assert_eq!((description.blocks.len(), map.blocks.len()), (4, 4));
    assert_eq!(
        map.more_tokens,
        ["blk.4.attn_q.weight", "blk.4.nextn.eh_proj.weight"]
    );
    let too_many = [("nextn_predict_layers", Value::Integer(4))];
    let error = of_gguf(&too_many, &tensors)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("nextn_predict_layers` is 4"), "{error}");
    // A block that is not for that is a part of the model that the configuration does not have.
    tensors.extend([tensor("blk.5.attn_q.weight", &[128, 64])]);
    let error = of_gguf(&more, &tensors).expect_err("refused").to_string();
    assert!(error.contains("blk.5.attn_q.weight"), "{error}");
}

#[test]
fn a_gguf_file_of_qwen3_5_of_other_sizes_is_refused() {
    let tensors = OF_LLAMA_CPP.tensors();
    for (changes, expected) in [
        (
            ("ssm.inner_size", Value::Integer(50)),
            "a multiple of 6 heads",
        ),
        (("ssm.inner_size", Value::Integer(60)), "attn_qkv.weight"),
        (
            ("attention.layer_norm_rms_epsilon", Value::Float(0.25)),
            "layer_norm_rms_epsilon",
        ),
        (
            ("ssm.group_count", Value::Integer(4)),
            "can't share 4 key heads",
        ),
        (
            ("attention.recurrent_layers", Value::Bools(vec![true; 3])),
            "recurrent_layers",
        ),
        (
            ("attention.recurrent_layers", Value::Bools(vec![true; 4])),
            "attn_qkv.weight` is missing",
        ),
        (
            ("rope.dimension_sections", Value::Integers(vec![2, 1, 0, 0])),
            "dimension_sections",
        ),
    ] {
        let error = of_gguf(&[changes], &tensors)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

#[test]
fn an_adapter_reaches_a_delta_net_only_in_the_order_of_its_heads() {
    let (of_gguf, _) = of_gguf(&[], &OF_LLAMA_CPP.tensors()).unwrap();
    let of_transformers = described(json!({})).unwrap();
    let name = "model.layers.0.linear_attn.in_proj_z";
    let linears = Modules::hugging_face(&of_transformers).unwrap();
    assert_eq!(linears.find(name), Some((0, &[Linear::MixerGate][..])));
    let linears = Modules::hugging_face(&of_gguf).unwrap();
    assert!(linears.find(name).is_none());
    assert!(linears.find("model.layers.0.mlp.up_proj").is_some());
    let linears = Modules::gguf("qwen35", &of_gguf).unwrap();
    assert_eq!(
        linears.find("blk.0.attn_gate"),
        Some((0, &[Linear::MixerGate][..]))
    );
    let linears = Modules::gguf("qwen35", &of_transformers).unwrap();
    assert!(linears.find("blk.0.attn_gate").is_none());
}

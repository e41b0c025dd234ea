use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::{Tensors, llama_description, tensor, tensors, windows};
use crate::description::{
    Activation, FeedForward, Linear, ModelDescription, Norm, NormKind, QkNorm, Residual,
    RopeScaling,
};
use crate::error::{ErrorKind, Result};
use crate::family;
use crate::tensor_map::{TensorMap, TensorSlice};

fn from_hugging_face(config: &Json, tensors: &Tensors) -> Result<(ModelDescription, TensorMap)> {
    family::from_hugging_face(config, (tensors, &|_| false), &|_, _| true)
}

/// Returns `base` with the fields of `changes`; a field with the string `absent` is removed.
pub(super) fn with(base: &Json, changes: Json) -> Json {
    let mut config = base.clone();
    let fields = config.as_object_mut().expect("an object");
    let Json::Object(changes) = changes else {
        panic!("expected an object")
    };
    for (key, value) in changes {
        if value == "absent" {
            fields.remove(&key);
        } else {
            fields.insert(key, value);
        }
    }
    config
}

fn described(config: &Json) -> ModelDescription {
    hugging_face::describe(config)
        .expect("a good configuration")
        .1
}

fn llama() -> Json {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "hidden_act": "silu", "tie_word_embeddings": false, "rope_scaling": null, "head_dim": null
    })
}

const LLAMA_OUTER: [(&str, &[usize]); 3] = [
    ("model.embed_tokens.weight", &[100, 64]),
    ("model.norm.weight", &[64]),
    ("lm_head.weight", &[100, 64]),
];

const LLAMA_BLOCK: [(&str, &[usize]); 9] = [
    ("input_layernorm.weight", &[64]),
    ("post_attention_layernorm.weight", &[64]),
    ("self_attn.q_proj.weight", &[64, 64]),
    ("self_attn.k_proj.weight", &[32, 64]),
    ("self_attn.v_proj.weight", &[32, 64]),
    ("self_attn.o_proj.weight", &[64, 64]),
    ("mlp.gate_proj.weight", &[96, 64]),
    ("mlp.up_proj.weight", &[96, 64]),
    ("mlp.down_proj.weight", &[64, 96]),
];

fn llama_tensors() -> Tensors {
    tensors(&LLAMA_OUTER, "model.layers.", 2, &LLAMA_BLOCK)
}

#[test]
fn a_llama_checkpoint_is_described_and_mapped() {
    let (description, map) =
        from_hugging_face(&llama(), &llama_tensors()).expect("a good checkpoint");
    assert_eq!(description, llama_description());
    assert_eq!(map.output.weight.name, "lm_head.weight");
    let block = &map.blocks[1];
    assert_eq!(
        block.attention_norm.as_ref().expect("a norm").weight,
        "model.layers.1.input_layernorm.weight"
    );
    let feed_forward_norm = block.feed_forward_norm.as_ref().expect("a norm");
    assert_eq!(
        feed_forward_norm.weight,
        "model.layers.1.post_attention_layernorm.weight"
    );
    assert_eq!(block.linears.len(), 7);
    let key = TensorSlice::whole("model.layers.1.self_attn.k_proj.weight");
    assert_eq!(block.linears[&Linear::Key].weight, key);
}

#[test]
fn a_checkpoint_of_the_model_without_its_output_matrix_has_no_prefix() {
    let tied = with(&llama(), json!({ "tie_word_embeddings": true }));
    let all = tensors(&LLAMA_OUTER[..2], "model.layers.", 2, &LLAMA_BLOCK);
    let (expected, _) = from_hugging_face(&tied, &all).expect("a good file");
    for prefix in ["", "language_model."] {
        let rename = |(name, tensor): (&String, &crate::tensor::TensorInfo)| {
            let name = name.replace("model.", prefix);
            (
                name.clone(),
                crate::tensor::TensorInfo {
                    name,
                    ..tensor.clone()
                },
            )
        };
        let mut renamed: Tensors = all.iter().map(rename).collect();
        let (description, map) = from_hugging_face(&tied, &renamed).expect("a good file");
        assert_eq!(description, expected);
        assert_eq!(map.embedding.name, format!("{prefix}embed_tokens.weight"));
        // An output matrix is not made up, and no tensor is left over.
        let error = from_hugging_face(&llama(), &renamed)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`lm_head.weight` is missing"), "{error}");
        let other = format!("{prefix}layers.0.self_attn.q_norm.weight");
        renamed.extend([tensor(&other, &[16])]);
        let error = from_hugging_face(&tied, &renamed).unwrap_err().to_string();
        assert!(error.contains(&other), "{error}");
    }
}

#[test]
fn the_two_styles_of_configuration_say_the_same() {
    let numbers = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    let old = with(&llama(), json!({ "rope_scaling": numbers }));
    let new = with(&numbers, json!({ "rope_theta": 5e5 }));
    let new = with(
        &llama(),
        json!({ "rope_parameters": new, "rope_theta": "absent", "rope_scaling": "absent" }),
    );
    assert_eq!(described(&old), described(&new));
    let RopeScaling::Factors { factors } = described(&old).blocks[0]
        .attention()
        .unwrap()
        .rope
        .scaling
        .clone()
    else {
        panic!("expected factors");
    };
    assert_eq!(factors.len(), 8);
    assert_eq!(factors[0], 1.0, "the fastest frequency stays");
    assert!(
        factors[1] > 1.0 && factors[1] < 8.0,
        "one is between: {factors:?}"
    );
    assert_eq!(
        factors[7], 8.0,
        "the slowest is divided by the whole factor"
    );
}

#[test]
fn biases_follow_the_configuration() {
    let attention = &described(&with(&llama(), json!({ "attention_bias": true }))).blocks[0];
    assert!(
        attention.attention().unwrap().qkv_bias
            && attention.attention().unwrap().output_bias
            && !attention.feed_forward.bias
    );
    let mlp = &described(&with(&llama(), json!({ "mlp_bias": true }))).blocks[0];
    assert!(!mlp.attention().unwrap().qkv_bias && mlp.feed_forward.bias);
}

#[test]
fn absent_key_value_heads_mean_one_for_each_query_head() {
    for absent in [json!("absent"), json!(null)] {
        let description = described(&with(&llama(), json!({ "num_key_value_heads": absent })));
        assert_eq!(description.blocks[0].attention().unwrap().kv_heads, 4);
    }
}

#[test]
fn tied_embeddings_default_by_family() {
    for (model_type, tied) in [
        ("llama", false),
        ("mistral", false),
        ("qwen2", false),
        ("qwen3", false),
        ("gemma", true),
        ("phi3", false),
    ] {
        let config = with(
            &llama(),
            json!({ "model_type": model_type, "tie_word_embeddings": "absent" }),
        );
        assert_eq!(described(&config).tied_output, tied, "{model_type}");
    }
}

#[test]
fn every_mistral_block_has_the_window_unless_it_is_null() {
    let mistral = with(&llama(), json!({ "model_type": "mistral" }));
    let window = |window: Json| {
        windows(&described(&with(
            &mistral,
            json!({ "sliding_window": window }),
        )))
    };
    assert_eq!(window(json!(8)), [Some(8), Some(8)]);
    assert_eq!(window(json!(null)), [None, None]);
    assert_eq!(window(json!("absent")), [Some(4096), Some(4096)]);
}

#[test]
fn layer_types_say_which_blocks_of_mistral_have_the_window() {
    let types =
        |types: Json| json!({ "model_type": "mistral", "sliding_window": 8, "layer_types": types });
    let mixed = types(json!(["full_attention", "sliding_attention"]));
    assert_eq!(windows(&described(&with(&llama(), mixed))), [None, Some(8)]);
    assert_eq!(
        windows(&described(&with(&llama(), types(json!(null))))),
        [Some(8), Some(8)]
    );
}

#[test]
fn qwen2_has_biases_on_query_key_value_and_windows_only_where_in_use() {
    let qwen2 = with(
        &llama(),
        json!({ "model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1 }),
    );
    let description = described(&qwen2);
    assert!(
        description.blocks[0].attention().unwrap().qkv_bias
            && !description.blocks[0].attention().unwrap().output_bias
    );
    assert_eq!(windows(&description), [None, None]);
    let in_use = with(&qwen2, json!({ "use_sliding_window": true }));
    assert_eq!(windows(&described(&in_use)), [None, Some(8)]);
    let types = json!({ "layer_types": ["sliding_attention", "full_attention"] });
    assert_eq!(windows(&described(&with(&in_use, types))), [Some(8), None]);
}

#[test]
fn qwen3_normalizes_query_and_key_heads_of_its_own_width() {
    let qwen3 = with(&llama(), json!({ "model_type": "qwen3", "head_dim": 32 }));
    let attention = described(&qwen3).blocks[0].attention().unwrap().clone();
    assert_eq!(
        (attention.head_dim, attention.rope.dims, attention.qkv_bias),
        (32, 32, false)
    );
    assert_eq!(
        attention.qk_norm,
        Some(QkNorm {
            norm: Norm {
                kind: NormKind::Rms,
                epsilon: 1e-5,
                weight_offset: 0.0
            },
            spans_heads: false,
            after_rope: false
        })
    );
    assert_eq!(
        described(&with(&qwen3, json!({ "head_dim": "absent" }))).blocks[0]
            .attention()
            .unwrap()
            .head_dim,
        128
    );
}

#[test]
fn gemma_scales_its_embedding_and_stores_norms_less_one() {
    let config =
        json!({ "model_type": "gemma", "hidden_act": "gelu", "tie_word_embeddings": "absent" });
    let description = described(&with(&llama(), config));
    assert_eq!(description.embedding_scale, 8.0);
    assert_eq!(description.output_norm.weight_offset, 1.0);
    assert_eq!(description.blocks[0].norm.weight_offset, 1.0);
    assert_eq!(description.blocks[0].attention().unwrap().head_dim, 256);
    assert_eq!(
        description.blocks[0].feed_forward.activation,
        Activation::GeluTanh,
        "`gelu` is its tanh form"
    );
    assert!(description.tied_output);
}

#[test]
fn gemma2_alternates_windows_and_caps_scores_and_logits() {
    let gemma2 = with(
        &llama(),
        json!({ "model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 144 }),
    );
    let description = described(&gemma2);
    assert_eq!(windows(&description), [Some(8), None]);
    assert_eq!(description.logit_soft_cap, Some(30.0));
    let block = &description.blocks[0];
    assert_eq!(
        (
            block.attention().unwrap().soft_cap,
            block.attention().unwrap().scale
        ),
        (Some(50.0), 1.0 / 12.0)
    );
    assert_eq!(block.residual, Residual::SerialPostNorm);
    let uncapped = json!({ "attn_logit_softcapping": null, "final_logit_softcapping": null });
    let uncapped = described(&with(&gemma2, uncapped));
    assert_eq!(
        (
            uncapped.logit_soft_cap,
            uncapped.blocks[0].attention().unwrap().soft_cap
        ),
        (None, None)
    );
}

/// Returns the published configuration of Gemma 3 4B, which is nested and omits default values.
fn gemma3_nested() -> Json {
    json!({ "model_type": "gemma3", "vision_config": {}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34,
        "rope_scaling": { "factor": 8.0, "rope_type": "linear" }, "sliding_window": 1024
    } })
}

#[test]
fn gemma3_has_two_ropes_and_fills_in_what_a_nested_configuration_leaves_out() {
    let description = described(&gemma3_nested());
    assert_eq!(
        (
            description.vocab,
            description.context,
            description.tied_output
        ),
        (262_208, 131_072, true)
    );
    let local: Vec<usize> = (0..34).filter(|block| (block + 1) % 6 != 0).collect();
    for (index, block) in description.blocks.iter().enumerate() {
        let attention = block.attention().unwrap();
        assert_eq!(
            (attention.heads, attention.kv_heads, attention.head_dim),
            (8, 4, 256)
        );
        assert_eq!((attention.scale, attention.soft_cap), (1.0 / 16.0, None));
        assert_eq!(
            attention.qk_norm.map(|norm| norm.norm.weight_offset),
            Some(1.0)
        );
        let expected = if local.contains(&index) {
            (Some(1024), 10_000.0, RopeScaling::None)
        } else {
            (None, 1_000_000.0, RopeScaling::Linear { factor: 8.0 })
        };
        assert_eq!(
            (
                attention.window,
                attention.rope.base,
                attention.rope.scaling.clone()
            ),
            expected,
            "block {index}"
        );
    }
}

#[test]
fn gemma3_in_the_new_style_means_the_same_as_in_the_old() {
    let old = gemma3_nested()["text_config"].clone();
    let types: Vec<&str> = (0..34)
        .map(|block| {
            if (block + 1) % 6 == 0 {
                "full_attention"
            } else {
                "sliding_attention"
            }
        })
        .collect();
    let parameters = json!({
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 }
    });
    let changes =
        json!({ "rope_scaling": "absent", "layer_types": types, "rope_parameters": parameters });
    let new = with(&old, changes);
    assert_eq!(described(&old), described(&new));
    let flat = with(
        &new,
        json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 1e6 } }),
    );
    let error = hugging_face::describe(&flat)
        .expect_err("no local RoPE")
        .to_string();
    assert!(error.contains("rope_parameters.full_attention"), "{error}");
}

#[test]
fn rope_scaling_takes_the_place_of_rope_parameters() {
    let linear = json!({ "rope_type": "linear", "factor": 2.0 });
    for model_type in ["llama", "mistral", "qwen2", "qwen3", "gemma"] {
        let changes = json!({
            "model_type": model_type, "rope_theta": "absent", "rope_scaling": linear,
            "rope_parameters": { "rope_type": "default", "rope_theta": 777.0 }
        });
        let rope = described(&with(&llama(), changes)).blocks[0]
            .attention()
            .unwrap()
            .rope
            .clone();
        let expected = (10_000.0, &RopeScaling::Linear { factor: 2.0 });
        assert_eq!((rope.base, &rope.scaling), expected, "{model_type}");
    }
    let yarn =
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 });
    let changes = json!({ "rope_scaling": yarn, "rope_parameters": { "rope_type": "default", "rope_theta": 1e6 } });
    let scaling = described(&with(&llama(), changes)).blocks[0]
        .attention()
        .unwrap()
        .rope
        .scaling
        .clone();
    let RopeScaling::Yarn {
        factors,
        attention_factor,
    } = scaling
    else {
        panic!("{scaling:?}")
    };
    assert_eq!((factors[0], factors.last()), (1.0, Some(&4.0)));
    assert!((attention_factor - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    let empty = json!({ "rope_scaling": {}, "rope_parameters": { "rope_type": "default", "rope_theta": 777.0 } });
    assert_eq!(
        described(&with(&llama(), empty)).blocks[0]
            .attention()
            .unwrap()
            .rope
            .base,
        777.0
    );
}

#[test]
fn numbers_of_rope_that_rope_parameters_lack_are_taken_from_the_top_level() {
    let parameters = json!({ "rope_type": "linear", "factor": 2.0 });
    let outside = with(
        &llama(),
        json!({ "rope_parameters": parameters, "rope_theta": 777.0 }),
    );
    assert_eq!(
        described(&outside).blocks[0].attention().unwrap().rope.base,
        777.0
    );
    let phi = with(
        &phi2(),
        json!({ "rope_parameters": parameters, "partial_rotary_factor": 0.25 }),
    );
    assert_eq!(described(&phi).blocks[0].attention().unwrap().rope.dims, 4);
    let parameters = json!({ "full_attention": { "rope_type": "default" }, "sliding_attention": { "rope_type": "default" } });
    let outside =
        json!({ "rope_parameters": parameters, "rope_theta": 777.0, "rope_local_base_freq": 55.0 });
    let gemma3 = described(&with(
        &with(&gemma3_nested()["text_config"], outside),
        json!({ "rope_scaling": "absent" }),
    ));
    assert_eq!(
        [0, 5].map(|block: usize| gemma3.blocks[block].attention().unwrap().rope.base),
        [55.0, 777.0]
    );
}

fn qwen3_vl() -> Json {
    with(&llama(), json!({ "model_type": "qwen3_vl_text" }))
}

#[test]
fn a_rope_that_versions_of_transformers_read_differently_is_refused() {
    let linear = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 777.0 });
    let cases = [
        (json!({ "rope_scaling": linear }), "versions 4 and 5"),
        (
            json!({ "rope_scaling": { "rope_type": "linear", "type": "default", "factor": 2.0 } }),
            "`type` is `default`",
        ),
        (
            json!({ "rope_parameters": { "full_attention": linear } }),
            "`rope_parameters.full_attention`",
        ),
    ];
    for (changes, named) in cases {
        let error = hugging_face::describe(&with(&llama(), changes.clone())).expect_err(named);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{changes}: {error}");
        assert!(error.to_string().contains(named), "{changes}: {error}");
    }
    // Their defaults of the base differ.
    let config = with(&qwen3_vl(), json!({ "rope_theta": null }));
    let error = hugging_face::describe(&config).expect_err("no base");
    assert!(error.to_string().contains("`rope_theta`"), "{error}");
    let newer = json!({ "rope_theta": null, "rope_parameters": { "rope_type": "default" } });
    assert_eq!(
        described(&with(&qwen3_vl(), newer)).blocks[0]
            .attention()
            .expect("attention")
            .rope
            .base,
        5e5
    );
    let same = with(&linear, json!({ "rope_theta": 5e5 }));
    assert_eq!(
        described(&with(&llama(), json!({ "rope_scaling": same }))).blocks[0]
            .attention()
            .unwrap()
            .rope
            .base,
        5e5
    );
}

#[test]
fn a_field_of_another_family_changes_nothing() {
    let cases = [
        (
            "llama",
            json!({ "hidden_activation": "gelu", "sliding_window_pattern": 2 }),
        ),
        ("gemma", json!({ "hidden_activation": "silu" })),
        (
            "gemma2",
            json!({ "hidden_act": "gelu", "sliding_window_pattern": 1 }),
        ),
        (
            "qwen3",
            json!({ "layer_norm_eps": 0.5, "query_pre_attn_scalar": 3 }),
        ),
    ];
    for (model_type, changes) in cases {
        let base = with(
            &llama(),
            json!({ "model_type": model_type, "hidden_act": "gelu_pytorch_tanh" }),
        );
        assert_eq!(
            described(&with(&base, changes)),
            described(&base),
            "{model_type}"
        );
    }
}

fn phi2() -> Json {
    with(
        &llama(),
        json!({
            "model_type": "phi", "hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "partial_rotary_factor": 0.5,
            "num_key_value_heads": null, "rope_theta": 1e4
        }),
    )
}

#[test]
fn phi2_is_parallel_with_layer_norms_biases_and_half_rotary_heads() {
    let names: [(&str, &[usize]); 14] = [
        ("input_layernorm.weight", &[64]),
        ("input_layernorm.bias", &[64]),
        ("self_attn.q_proj.weight", &[64, 64]),
        ("self_attn.q_proj.bias", &[64]),
        ("self_attn.k_proj.weight", &[64, 64]),
        ("self_attn.k_proj.bias", &[64]),
        ("self_attn.v_proj.weight", &[64, 64]),
        ("self_attn.v_proj.bias", &[64]),
        ("self_attn.dense.weight", &[64, 64]),
        ("self_attn.dense.bias", &[64]),
        ("mlp.fc1.weight", &[96, 64]),
        ("mlp.fc1.bias", &[96]),
        ("mlp.fc2.weight", &[64, 96]),
        ("mlp.fc2.bias", &[64]),
    ];
    let outer: [(&str, &[usize]); 5] = [
        ("model.embed_tokens.weight", &[100, 64]),
        ("model.final_layernorm.weight", &[64]),
        ("model.final_layernorm.bias", &[64]),
        ("lm_head.weight", &[100, 64]),
        ("lm_head.bias", &[100]),
    ];
    let (description, map) =
        from_hugging_face(&phi2(), &tensors(&outer, "model.layers.", 2, &names))
            .expect("a good checkpoint");
    assert_eq!(
        (description.family.as_str(), description.output_bias),
        ("phi2", true)
    );
    let block = &description.blocks[0];
    assert_eq!(
        (block.norm.kind, block.norm.epsilon),
        (NormKind::Layer, 1e-6)
    );
    assert_eq!(block.residual, Residual::Parallel);
    assert_eq!(
        (
            block.attention().unwrap().rope.dims,
            block.attention().unwrap().head_dim
        ),
        (8, 16)
    );
    let expected = FeedForward {
        width: 96,
        gated: false,
        activation: Activation::GeluTanh,
        gate_scale: 1.0,
        cutoff: None,
        bias: true,
        experts: None,
    };
    assert_eq!(block.feed_forward, expected);
    assert!(map.blocks[0].feed_forward_norm.is_none());
    assert!(map.output.bias.is_some());
}

fn phi3() -> Json {
    with(
        &llama(),
        json!({ "model_type": "phi3", "sliding_window": 8 }),
    )
}

const PHI3_BLOCK: [(&str, &[usize]); 6] = [
    ("input_layernorm.weight", &[64]),
    ("post_attention_layernorm.weight", &[64]),
    ("self_attn.qkv_proj.weight", &[128, 64]),
    ("self_attn.o_proj.weight", &[64, 64]),
    ("mlp.gate_up_proj.weight", &[192, 64]),
    ("mlp.down_proj.weight", &[64, 96]),
];

#[test]
fn phi3_finds_its_linears_in_the_rows_of_fused_tensors() {
    let stored = tensors(&LLAMA_OUTER, "model.layers.", 2, &PHI3_BLOCK);
    let (description, map) = from_hugging_face(&phi3(), &stored).expect("a good checkpoint");
    assert_eq!(windows(&description), [Some(8), Some(8)]);
    let rows = |linear| super::rows(&map.blocks[0].linears[&linear].weight);
    assert_eq!(rows(Linear::Query), Some(0..64));
    assert_eq!(rows(Linear::Key), Some(64..96));
    assert_eq!(rows(Linear::Value), Some(96..128));
    assert_eq!(rows(Linear::Gate), Some(0..96));
    assert_eq!(rows(Linear::Up), Some(96..192));
    assert_eq!(rows(Linear::Down), None);
}

#[test]
fn phi3_long_rope_takes_its_attention_factor_from_the_stretch_of_the_context() {
    for kind in ["longrope", "su"] {
        let scaling =
            json!({ "type": kind, "short_factor": vec![1.0; 6], "long_factor": vec![2.5; 6] });
        let changes = json!({
            "rope_scaling": scaling, "max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75
        });
        let rope = described(&with(&phi3(), changes)).blocks[0]
            .attention()
            .unwrap()
            .rope
            .clone();
        assert_eq!(rope.dims, 12);
        let RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        } = &rope.scaling
        else {
            panic!("expected LongRoPE");
        };
        assert_eq!((short.len(), long[5], *original_context), (6, 2.5, 4096));
        assert!(
            (attention_factor - 1.190_238).abs() < 1e-6,
            "{attention_factor}"
        );
    }
}

#[test]
fn a_language_model_inside_one_with_images_is_found_and_the_rest_ignored() {
    let text = with(
        &llama(),
        json!({ "model_type": "gemma3_text", "head_dim": 16 }),
    );
    let config =
        json!({ "model_type": "gemma3", "text_config": text, "tie_word_embeddings": true });
    let block: Vec<(&str, &[usize])> = LLAMA_BLOCK
        .into_iter()
        .chain([
            ("pre_feedforward_layernorm.weight", &[64][..]),
            ("post_feedforward_layernorm.weight", &[64][..]),
            ("self_attn.q_norm.weight", &[16][..]),
            ("self_attn.k_norm.weight", &[16][..]),
        ])
        .collect();
    for (root, head) in [
        ("model.", ""),
        ("language_model.model.", "language_model."),
        ("model.language_model.", ""),
    ] {
        let names = ["embed_tokens.weight", "norm.weight"].map(|name| format!("{root}{name}"));
        let output = format!("{head}lm_head.weight");
        let outer: [(&str, &[usize]); 4] = [
            (&names[0], &[100, 64]),
            (&names[1], &[64]),
            (&output, &[100, 64]),
            ("vision_tower.bias", &[5]),
        ];
        let stored = tensors(&outer, &format!("{root}layers."), 2, &block);
        let (description, map) = from_hugging_face(&config, &stored).expect(root);
        assert_eq!(
            (description.family.as_str(), description.tied_output),
            ("gemma3", false)
        );
        assert_eq!(map.output.weight.name, output);
        assert!(map.blocks[1].attention_post_norm.is_some());
    }
}

#[test]
fn what_triad_does_not_run_is_refused_by_name() {
    let cases = [
        (json!({ "model_type": "jetmoe" }), "jetmoe"),
        (json!({ "hidden_act": "relu6" }), "relu6"),
        (
            json!({ "rope_scaling": { "type": "dynamic", "factor": 4.0 } }),
            "dynamic",
        ),
        (
            json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 4.0 } }),
            "dynamic",
        ),
        (
            json!({ "rope_parameters": { "rope_type": "dynamic", "factor": 4.0 } }),
            "dynamic",
        ),
        (
            json!({ "quantization_config": { "quant_method": "awq" } }),
            "quantization_config",
        ),
        (json!({ "num_local_experts": 8 }), "num_local_experts"),
        (
            json!({ "partial_rotary_factor": 0.5 }),
            "partial_rotary_factor",
        ),
        (
            json!({ "final_logit_softcapping": 30.0 }),
            "final_logit_softcapping",
        ),
        (
            json!({ "model_type": "gemma3_text", "attn_logit_softcapping": 50.0 }),
            "attn_logit_softcapping",
        ),
        (
            json!({ "model_type": "gemma3", "use_bidirectional_attention": true }),
            "use_bidirectional_attention",
        ),
        (
            json!({ "model_type": "phi", "qk_layernorm": true }),
            "qk_layernorm",
        ),
        (json!({ "is_causal": false }), "is_causal"),
        // `transformers` treats null as false.
        (json!({ "is_causal": null }), "is_causal"),
        (
            json!({ "layer_types": ["full_attention", "chunked_attention"] }),
            "chunked_attention",
        ),
    ];
    for (changes, named) in cases {
        let error = hugging_face::describe(&with(&llama(), changes.clone())).expect_err(named);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{changes}: {error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn senseless_values_are_errors_that_name_the_field() {
    let cases = [
        (json!({ "hidden_size": 0 }), "`hidden_size` is 0"),
        (json!({ "hidden_size": -64 }), "`hidden_size` is -64"),
        (json!({ "hidden_size": "64" }), "`hidden_size` is \"64\""),
        (json!({ "hidden_size": "absent" }), "no field `hidden_size`"),
        (json!({ "hidden_size": 65 }), "65"),
        (
            json!({ "num_hidden_layers": 1_000_000_000 }),
            "`num_hidden_layers` is 1000000000",
        ),
        (json!({ "num_attention_heads": 0 }), "`num_attention_heads`"),
        (json!({ "num_key_value_heads": 0 }), "`num_key_value_heads`"),
        (json!({ "num_key_value_heads": 3 }), "3 key-value heads"),
        (json!({ "vocab_size": 1e30 }), "`vocab_size`"),
        (
            json!({ "max_position_embeddings": 0 }),
            "`max_position_embeddings`",
        ),
        (json!({ "head_dim": 15 }), "15 dimensions"),
        (json!({ "rms_norm_eps": -1.0 }), "`rms_norm_eps`"),
        (json!({ "rms_norm_eps": 1e-60 }), "epsilon is 0"),
        (json!({ "rope_theta": 0 }), "`rope_theta`"),
        (json!({ "rope_theta": 1e300 }), "base of RoPE is inf"),
        (
            json!({ "rope_scaling": { "factor": 2.0 } }),
            "`rope_scaling.rope_type`",
        ),
        (
            json!({ "rope_scaling": { "type": "linear" } }),
            "`rope_scaling.factor`",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "factor": 0 } }),
            "`rope_scaling.factor`",
        ),
        (json!({ "rope_scaling": [] }), "`rope_scaling` is an array"),
        (
            json!({ "model_type": "mistral", "sliding_window": 0 }),
            "`sliding_window`",
        ),
        (
            json!({ "layer_types": ["full_attention"] }),
            "`layer_types` has 1",
        ),
        (
            json!({ "layer_types": ["full_attention", "sliding_attention"] }),
            "`layer_types[1]`",
        ),
        (
            json!({ "model_type": "phi", "partial_rotary_factor": 0.01 }),
            "0 dimensions",
        ),
        (
            json!({ "model_type": "phi", "partial_rotary_factor": 2.0 }),
            "32 dimensions",
        ),
        (
            json!({ "tie_word_embeddings": "no" }),
            "`tie_word_embeddings`",
        ),
        (json!({ "model_type": 5 }), "`model_type`"),
    ];
    for (changes, expected) in cases {
        let error = hugging_face::describe(&with(&llama(), changes.clone()))
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{changes}: {error}");
    }
    let long = json!({ "type": "longrope", "short_factor": [1.0], "long_factor": vec![1.0; 8] });
    let long = with(
        &phi3(),
        json!({ "rope_scaling": long, "original_max_position_embeddings": 64 }),
    );
    let error = hugging_face::describe(&long)
        .expect_err("too few factors")
        .to_string();
    assert!(
        error.contains("short_factor") && error.contains("an array of 8 numbers"),
        "{error}"
    );
    assert!(hugging_face::describe(&json!([])).is_err());
}

#[test]
fn tensors_must_be_there_in_the_shape_demanded() {
    let error = |change: &dyn Fn(&mut Tensors)| {
        let mut stored = llama_tensors();
        change(&mut stored);
        from_hugging_face(&llama(), &stored)
            .expect_err("a bad checkpoint")
            .to_string()
    };
    let name = "model.layers.1.mlp.down_proj.weight";
    let missing = error(&|stored| drop(stored.remove(name)));
    assert!(
        missing.contains(name) && missing.contains("[64, 96]"),
        "{missing}"
    );
    let transposed = error(&|stored| stored.get_mut(name).expect("there").shape = vec![96, 64]);
    assert!(
        transposed.contains(name) && transposed.contains("[96, 64], expected [64, 96]"),
        "{transposed}"
    );
    let untied = error(&|stored| drop(stored.remove("lm_head.weight")));
    assert!(untied.contains("lm_head.weight"), "{untied}");
}

#[test]
fn a_tensor_that_would_change_the_answer_is_not_ignored() {
    for name in [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.2.input_layernorm.weight",
        "model.norm.bias",
        "lm_head.bias",
    ] {
        let mut stored = llama_tensors();
        stored.extend([tensor(name, &[64])]);
        let error = from_hugging_face(&llama(), &stored).expect_err(name);
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains(name),
            "{error}"
        );
    }
    let mut harmless = llama_tensors();
    harmless.extend([
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]),
        tensor("vision.weight", &[1]),
    ]);
    assert!(from_hugging_face(&llama(), &harmless).is_ok());
}

#[test]
fn the_output_matrix_of_a_tied_model_is_a_copy_of_the_embedding() {
    let tied = with(&llama(), json!({ "tie_word_embeddings": true }));
    assert!(from_hugging_face(&tied, &llama_tensors()).is_ok());
    let error = family::from_hugging_face(&tied, (&llama_tensors(), &|_| false), &|_, _| false)
        .expect_err("another matrix");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let names = [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "tie_word_embeddings",
    ];
    assert!(
        names.iter().all(|name| error.to_string().contains(name)),
        "{error}"
    );
    assert!(
        family::from_hugging_face(&llama(), (&llama_tensors(), &|_| false), &|_, _| false).is_ok(),
        "it isn't tied"
    );
}

#[test]
fn blocks_without_rope_are_those_of_the_list_or_every_fourth() {
    let smollm3 = json!({ "model_type": "smollm3", "num_hidden_layers": 5 });
    let rotated = |changes: Json| -> Vec<bool> {
        let described = described(&with(&with(&llama(), smollm3.clone()), changes));
        let blocks = described.blocks.iter();
        blocks
            .map(|block| block.attention().unwrap().rope.dims > 0)
            .collect()
    };
    let every_fourth = [true, true, true, false, true];
    assert_eq!(rotated(json!({})), every_fourth);
    assert_eq!(
        rotated(json!({ "no_rope_layer_interval": 2 })),
        [true, false, true, false, true]
    );
    let listed = json!({ "no_rope_layers": [0, 1, 1, 0, 1, 0] });
    assert_eq!(rotated(listed), [false, true, true, false, true]);
    for (changes, field) in [
        (json!({ "no_rope_layers": [1, 1] }), "no_rope_layers"),
        (
            json!({ "no_rope_layers": [1, 1, 2, 1, 1] }),
            "no_rope_layers",
        ),
        (
            json!({ "use_sliding_window": true, "sliding_window": 8 }),
            "sliding_window",
        ),
    ] {
        let config = with(&with(&llama(), smollm3.clone()), changes);
        let error = hugging_face::describe(&config)
            .expect_err(field)
            .to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn granites_factors_are_followed_and_others_have_none() {
    let factors = json!({
        "embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.25, "logits_scaling": 8.0
    });
    let granite = with(&llama(), json!({ "model_type": "granite" }));
    let described_as = described(&with(&granite, factors.clone()));
    let found = [
        described_as.embedding_scale,
        described_as.blocks[0].attention().unwrap().scale,
        described_as.residual_scale,
        described_as.logit_scale,
    ];
    assert_eq!(found, [3.0, 0.5, 0.25, 0.125]);
    let error = hugging_face::describe(&with(&granite, json!({ "residual_multiplier": 0.0 })))
        .expect_err("a factor of zero")
        .to_string();
    assert!(error.contains("residual_multiplier"), "{error}");
    // transformers ignores them under another name.
    assert_eq!(described(&with(&llama(), factors)), described(&llama()));
}

#[test]
fn minicpms_factors_follow_from_its_numbers_and_its_rope_is_long_at_one_context() {
    let numbers = json!({
        "model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.5, "dim_model_base": 8, "tie_word_embeddings": false,
    });
    let minicpm = with(&llama(), numbers);
    let found = described(&minicpm);
    let (hidden, blocks) = (found.hidden as f32, found.blocks.len() as f32);
    assert_eq!(found.embedding_scale, 12.0);
    assert!((found.residual_scale - 1.5 / blocks.sqrt()).abs() < 1e-6);
    assert_eq!(found.logit_scale, 8.0 / hidden);
    let head = found.blocks[0].attention().unwrap();
    let pairs = head.head_dim / 2;
    let long = |original: usize| {
        json!({ "rope_scaling": {
            "rope_type": "longrope", "short_factor": vec![1.5; pairs], "long_factor": vec![3.0; pairs],
            "original_max_position_embeddings": original,
        }})
    };
    let rope = &described(&with(&minicpm, long(found.context)));
    match &rope.blocks[0].attention().unwrap().rope.scaling {
        RopeScaling::LongRope {
            original_context,
            attention_factor,
            ..
        } => assert_eq!((*original_context, *attention_factor), (found.context, 1.0)),
        other => panic!("{other:?}"),
    }
    for (changes, named) in [
        (json!({ "scale_depth": null }), "scale_depth"),
        (json!({ "dim_model_base": null }), "dim_model_base"),
        (json!({ "scale_emb": 0 }), "scale_emb"),
        (json!({ "sparse_config": { "topk": 64 } }), "sparse_config"),
        (json!({ "head_dim": 2 * head.head_dim }), "head_dim"),
        (
            json!({ "rope_parameters": { "rope_theta": 5.0 } }),
            "rope_parameters",
        ),
        (long(found.context / 2), "max_position_embeddings"),
        (
            json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } }),
            "rope_scaling",
        ),
    ] {
        let error = hugging_face::describe(&with(&minicpm, changes))
            .expect_err(named)
            .to_string();
        assert!(error.contains(named), "{error} for {named}");
    }
}

#[test]
fn llava_may_omit_the_defaults_of_llama() {
    let vision = json!({
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14
    });
    // As LLaVA 1.5 is published.
    let config = json!({
        "model_type": "llava",
        "text_config": {
            "max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32_064
        },
        "tie_word_embeddings": false,
        "vision_config": vision,
    });
    let text = described(&config);
    assert_eq!(
        (&text.family[..], text.hidden, text.vocab, text.blocks.len()),
        ("llama", 4096, 32_064, 32)
    );
    assert_eq!(crate::vision::describe(&config).unwrap().width, 4096);
    // Llama alone states its sizes.
    let alone = hugging_face::describe(&with(
        &config["text_config"],
        json!({ "tie_word_embeddings": false }),
    ));
    assert!(
        alone
            .expect_err("sizes")
            .to_string()
            .contains("hidden_size")
    );
}

#[test]
fn the_text_of_a_model_with_images_is_of_the_family_that_it_names() {
    let text = |model_type: &str| with(&llama(), json!({ "model_type": model_type }));
    for (outer, inner, family) in [
        ("llava", "mistral", "mistral"),
        ("internvl", "qwen3", "qwen3"),
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2vl"),
    ] {
        let config = json!({ "model_type": outer, "text_config": text(inner) });
        assert_eq!(described(&config).family, family);
    }
    let config = json!({ "model_type": "llava", "text_config": text("opt") });
    let error = hugging_face::describe(&config)
        .expect_err("opt")
        .to_string();
    assert!(
        error.contains("`text_config.model_type` is `opt`"),
        "{error}"
    );
    // All fields at the top level, as in the oldest files of Qwen2-VL.
    let mrope = json!({ "type": "mrope", "mrope_section": [2, 1, 1] });
    let old = with(&text("qwen2_vl"), json!({ "rope_scaling": mrope }));
    assert_eq!(described(&old).family, "qwen2vl");
    let error = hugging_face::describe(&with(&llama(), json!({ "rope_scaling": mrope })))
        .expect_err("a text model")
        .to_string();
    assert!(error.contains("mrope"), "{error}");
}

//! RoPE in both styles of configuration.

use serde_json::{Value as Json, json};

use super::{described, llama, phi2, phi3, with};
use crate::description::RopeScaling;
use crate::error::ErrorKind;
use crate::family::hugging_face;

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

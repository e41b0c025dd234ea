//! Configurations and tensors that are refused, and models with images.

use serde_json::json;

use super::super::{Tensors, tensor, tensors};
use super::{LLAMA_BLOCK, described, from_hugging_face, llama, llama_tensors, phi3, with};
use crate::error::ErrorKind;
use crate::family;
use crate::family::hugging_face;

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

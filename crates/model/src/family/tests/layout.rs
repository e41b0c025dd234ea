//! Blocks of one part (Nemotron-H) and blocks with two mixers (Falcon-H1).

use serde_json::{Value, json};

use super::super::hugging_face;
use super::gguf::{GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::tensors;
use crate::description::{GateNorm, Mixer, ModelDescription, Residual};
use crate::error::Result;
use crate::gguf::Value as OfGguf;

fn nemotron(changes: Value) -> Result<ModelDescription> {
    let config = json!({
        "model_type": "nemotron_h", "hidden_size": 64, "vocab_size": 100, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "n_groups": 2, "ssm_state_size": 24, "hybrid_override_pattern": "M-M*-ME",
        "moe_shared_expert_intermediate_size": 32,
    });
    Ok(hugging_face::describe(&with(&config, changes))?.1)
}

fn falcon(changes: Value) -> Result<ModelDescription> {
    let config = json!({
        "model_type": "falcon_h1", "hidden_size": 64, "vocab_size": 100, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_ssm": 128,
        "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24,
        "attention_in_multiplier": 0.5, "key_multiplier": 2.0, "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0],
        "ssm_in_multiplier": 0.5, "rope_theta": 1e4,
    });
    Ok(hugging_face::describe(&with(&config, changes))?.1)
}

#[test]
fn a_feed_forward_belongs_to_the_mixer_before_it() {
    let description = nemotron(json!({})).unwrap();
    let blocks = description.blocks.iter();
    let found: Vec<_> = blocks
        .map(|block| {
            let experts = block.feed_forward.experts.is_some();
            (
                block.attention().is_some(),
                block.feed_forward.width,
                experts,
            )
        })
        .collect();
    let expected = [
        (false, 96, false),
        (false, 0, false),
        (true, 96, false),
        (false, 32, true),
    ];
    assert_eq!(found, expected);
    assert_eq!(description.blocks[1].residual, Residual::MixerAlone);
    assert_eq!(description.blocks[2].attention().unwrap().rope.dims, 0);
    let types = [
        "linear_attention",
        "mlp",
        "mamba",
        "attention",
        "mlp",
        "mamba",
        "moe",
    ];
    let listed = nemotron(json!({"hybrid_override_pattern": null, "layers_block_type": types}));
    assert_eq!(listed.unwrap(), description);
}

#[test]
fn a_published_configuration_without_experts_is_read() {
    // The fields of Nemotron Nano 2 9B that describe the model, without those of experts.
    let pattern = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
    let config = json!({
        "model_type": "nemotron_h", "attention_bias": false, "conv_kernel": 4, "head_dim": 128, "hidden_size": 4480,
        "hybrid_override_pattern": pattern, "intermediate_size": 15680, "layer_norm_epsilon": 1e-5, "mamba_head_dim": 80,
        "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 131072,
        "mlp_bias": false, "mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 40, "num_hidden_layers": 56,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": null, "ssm_state_size": 128,
        "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_limit": [0.0, { "__float__": "Infinity" }],
        "time_step_max": 0.1, "time_step_min": 0.001, "use_bias": false, "use_conv_bias": true, "vocab_size": 131072,
    });
    let (_, description) = hugging_face::describe(&config).unwrap();
    let mixers = pattern.chars().filter(|it| *it != '-').count();
    assert_eq!(description.blocks.len(), mixers);
    assert!(!description.has_experts());
    let attention = description.blocks.iter().filter_map(|it| it.attention());
    assert_eq!(attention.count(), 4);
}

#[test]
fn tokens_that_nemotrons_files_predict_next_are_refused() {
    let lists = ["feed_forward_length", "attention.head_count_kv"];
    let mut fields = lists
        .map(|field| (field, OfGguf::Integers(vec![0, 0])))
        .to_vec();
    fields.push(("nextn_predict_layers", OfGguf::Integer(1)));
    let stored = tensors(&GGUF_OUTER, "blk.", 0, &[]);
    for architecture in ["nemotron_h", "nemotron_h_moe"] {
        let error = from_file(&metadata(architecture, &fields), &stored).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("nextn_predict_layers"), "{error}");
    }
}

#[test]
fn a_base_of_rope_that_versions_of_transformers_take_differently_is_refused() {
    let error = falcon(json!({"rope_theta": "absent"})).unwrap_err();
    assert!(error.to_string().contains("rope_theta"), "{error}");
}

#[test]
fn two_mixers_read_one_norm() {
    let description = falcon(json!({})).unwrap();
    let residuals: Vec<_> = description.blocks.iter().map(|it| it.residual).collect();
    let pair = [Residual::MixerAlone, Residual::SecondMixer];
    assert_eq!(residuals, [pair, pair].concat());
    let attention = description.blocks[0].attention().unwrap();
    assert!((attention.scale - 0.5 * 0.5 * 2.0 / 4.0).abs() < 1e-6);
    assert_eq!(description.blocks[0].mixer_scale, 0.5);
    let Mixer::Mamba2(mamba) = &description.blocks[1].mixer else {
        panic!("expected a Mamba-2");
    };
    assert_eq!(mamba.factors, Some([0.5, 1.0, 1.5, 2.0, 2.5]));
    assert_eq!(mamba.norm, GateNorm::Never);
}

#[test]
fn adapters_of_models_with_other_blocks_are_refused() {
    for description in [nemotron(json!({})), falcon(json!({}))] {
        let refused = crate::family::Modules::hugging_face(&description.unwrap());
        let error = refused.err().expect("refused").to_string();
        assert!(error.contains("no adapter"), "{error}");
    }
}

#[test]
fn fields_that_would_change_parts_of_blocks_are_refused() {
    for (changes, expected) in [
        (json!({"hybrid_override_pattern": "-M"}), "follows no mixer"),
        (
            json!({"hybrid_override_pattern": "M--"}),
            "follows no mixer",
        ),
        (
            json!({"hybrid_override_pattern": "MX"}),
            "hybrid_override_pattern",
        ),
        (json!({"layers_block_type": ["mamba"]}), "differ"),
        (
            json!({"hybrid_override_pattern": null}),
            "layers_block_type",
        ),
        (json!({"moe_latent_size": 16}), "moe_latent_size"),
        (json!({"mamba_n_groups": 2}), "mamba_n_groups"),
        (json!({"mamba_hidden_act": "gelu"}), "mamba_hidden_act"),
        (json!({"time_step_min": 0.3}), "time_step_min"),
        (json!({"time_step_limit": [0.1, 1.0]}), "time_step_limit"),
        (json!({"mamba_dt_min": 0.3}), "mamba_dt_min"),
        (json!({"mamba_dt_limit": [0.1, 1.0]}), "mamba_dt_limit"),
    ] {
        let error = nemotron(changes.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{changes}: {error}");
    }
    for field in [
        "attention_bias",
        "mlp_bias",
        "mamba_proj_bias",
        "projectors_bias",
    ] {
        let error = falcon(json!({field: true})).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

//! Tests the families whose norms, RoPE or queries differ from LLaMA's: OLMo, EXAONE, Cohere, Hunyuan, GLM, Ministral 3.

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::gguf::{GGUF_BLOCK, GGUF_OUTER, from_file, metadata};
use super::hugging_face::with;
use super::{Tensors, tensors, windows};
use crate::description::{
    Activation, ModelDescription, NormKind, Residual, RopePairing, RopeScaling, Temperature,
};
use crate::error::Result;
use crate::gguf::Value;

fn config(model_type: &str, changes: Json) -> Json {
    let base = json!({
        "model_type": model_type, "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512,
    });
    with(&base, changes)
}

fn describe(model_type: &str, changes: Json) -> Result<ModelDescription> {
    hugging_face::describe(&config(model_type, changes)).map(|(_, description)| description)
}

fn has_rope(description: &ModelDescription) -> Vec<bool> {
    let dims = description.blocks.iter();
    dims.map(|block| block.attention().unwrap().rope.dims > 0)
        .collect()
}

/// Returns the tensors of `blocks` blocks whose norms are those of OLMo 2 and EXAONE 4.
fn post_norm_tensors(blocks: usize, query_norm: &[usize], key_norm: &[usize]) -> Tensors {
    let mut block: Vec<(&str, &[usize])> = GGUF_BLOCK
        .iter()
        .filter(|(name, _)| !name.contains("norm"))
        .copied()
        .collect();
    block.push(("attn_q_norm.weight", query_norm));
    block.push(("attn_k_norm.weight", key_norm));
    block.push(("post_attention_norm.weight", &[64]));
    block.push(("post_ffw_norm.weight", &[64]));
    tensors(&GGUF_OUTER, "blk.", blocks, &block)
}

#[test]
fn blocks_of_exaone_without_a_window_have_no_rope_if_others_have_one() {
    let windowed = describe("exaone4", json!({ "sliding_window": 8 })).unwrap();
    let expected = [Some(8), Some(8), Some(8), None, Some(8)];
    assert_eq!(windows(&windowed), expected);
    assert_eq!(has_rope(&windowed), [true, true, true, false, true]);
    let pattern = json!({ "sliding_window": 8, "sliding_window_pattern": 2 });
    let pattern = describe("exaone4", pattern).unwrap();
    assert_eq!(has_rope(&pattern), [true, false, true, false, true]);
    let plain = describe("exaone4", json!({ "sliding_window": null })).unwrap();
    assert_eq!(windows(&plain), [None; 5]);
    assert_eq!(has_rope(&plain), [true; 5]);
}

#[test]
fn exaone_in_gguf_has_windows_if_it_has_64_blocks() {
    let describe = |blocks: usize, more: &[(&str, Value)]| {
        let count = ("block_count", Value::Integer(blocks as i128));
        let more: Vec<_> = [count].iter().chain(more).cloned().collect();
        let tensors = post_norm_tensors(blocks, &[16], &[16]);
        from_file(&metadata("exaone4", &more), &tensors).map(|(description, _)| description)
    };
    let small = describe(2, &[]).unwrap();
    assert_eq!(
        (windows(&small), has_rope(&small)),
        (vec![None; 2], vec![true; 2])
    );
    let large = describe(64, &[]).unwrap();
    assert_eq!(
        windows(&large)[..4],
        [Some(4096), Some(4096), Some(4096), None]
    );
    assert_eq!(has_rope(&large)[..4], [true, true, true, false]);
    let error = describe(2, &[("attention.sliding_window", Value::Integer(8))]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("exaone4.attention.sliding_window"),
        "{error}"
    );
}

#[test]
fn blocks_of_cohere_without_a_window_have_no_rope_and_a_model_without_windows_is_refused() {
    let description = describe("cohere2", json!({ "sliding_window": 8 })).unwrap();
    let expected = [Some(8), Some(8), Some(8), None, Some(8)];
    assert_eq!(windows(&description), expected);
    assert_eq!(has_rope(&description), [true, true, true, false, true]);
    let block = &description.blocks[0];
    assert_eq!(
        (block.residual, block.norm.kind),
        (Residual::Parallel, NormKind::Centered)
    );
    let pairing = block.attention().unwrap().rope.pairing;
    assert_eq!(pairing, RopePairing::Adjacent);
    assert_eq!(description.logit_scale, 0.0625);
    let pattern = json!({ "sliding_window_pattern": 2, "logit_scale": 0.5 });
    let pattern = describe("cohere2", pattern).unwrap();
    assert_eq!(has_rope(&pattern), [true, false, true, false, true]);
    assert_eq!(pattern.logit_scale, 0.5);
    let full = json!({ "layer_types": vec!["full_attention"; 5] });
    assert_eq!(has_rope(&describe("cohere2", full).unwrap()), [false; 5]);
    let error = describe("cohere2", json!({ "sliding_window": null })).unwrap_err();
    assert!(error.to_string().contains("sliding_window"), "{error}");
}

#[test]
fn cohere_in_gguf_states_its_window_and_its_factor_on_logits() {
    let tensors: Tensors = tensors(&GGUF_OUTER, "blk.", 2, &GGUF_BLOCK)
        .into_iter()
        .filter(|(name, _)| !name.contains("ffn_norm"))
        .collect();
    let describe = |fields: &[(&str, Value)]| {
        from_file(&metadata("cohere2", fields), &tensors).map(|(description, _)| description)
    };
    let window = ("attention.sliding_window", Value::Integer(8));
    let factor = ("logit_scale", Value::Float(0.25));
    let pattern = ("attention.sliding_window_pattern", Value::Integer(2));
    // This field is one of ModernBERT.
    let activation = ("hidden_activation", Value::String("gelu".to_owned()));
    let stated = [window.clone(), factor.clone(), pattern, activation];
    let description = describe(&stated).unwrap();
    assert_eq!(windows(&description), [Some(8), None]);
    assert_eq!(has_rope(&description), [true, false]);
    assert_eq!(description.logit_scale, 0.25);
    let activation = description.blocks[0].feed_forward.activation;
    assert_eq!(activation, Activation::Silu);
    let zero = ("attention.sliding_window", Value::Integer(0));
    let residual = ("residual_scale", Value::Float(0.5));
    for (fields, named) in [
        (vec![factor.clone()], "cohere2.attention.sliding_window"),
        (
            vec![zero, factor.clone()],
            "cohere2.attention.sliding_window",
        ),
        (vec![window.clone()], "cohere2.logit_scale"),
        (vec![window, factor, residual], "cohere2.residual_scale"),
    ] {
        let error = describe(&fields).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn norms_of_olmo_follow_both_halves_and_span_all_heads() {
    let description = describe("olmo2", json!({})).unwrap();
    let block = &description.blocks[0];
    assert_eq!(block.residual, Residual::PostNorm);
    assert_eq!(block.residual.norms(), 2);
    assert_eq!(block.attention().unwrap().qk_norm_widths(), [64, 32]);
    let found = from_file(&metadata("olmo2", &[]), &post_norm_tensors(2, &[64], &[32]));
    assert_eq!(
        found.unwrap().0.blocks[0].attention().unwrap().qk_norm,
        block.attention().unwrap().qk_norm
    );
    let narrow = from_file(&metadata("olmo2", &[]), &post_norm_tensors(2, &[16], &[16]));
    let error = narrow.unwrap_err().to_string();
    assert!(
        error.contains("blk.0.attn_q_norm.weight") && error.contains("[64]"),
        "{error}"
    );
}

#[test]
fn windows_of_olmo3_have_unscaled_rope_on_a_base_that_the_versions_agree_on() {
    let yarn =
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 });
    let changes = json!({ "sliding_window": 8, "rope_theta": 5e5, "rope_scaling": yarn });
    let description = describe("olmo3", changes).unwrap();
    assert_eq!(
        windows(&description),
        [Some(8), Some(8), Some(8), None, Some(8)]
    );
    let ropes = description
        .blocks
        .iter()
        .map(|block| &block.attention().unwrap().rope);
    for (block, rope) in ropes.enumerate() {
        let is_scaled = matches!(rope.scaling, RopeScaling::Yarn { .. });
        assert_eq!((rope.base, is_scaled), (5e5, block == 3), "block {block}");
    }
    // Version 5 has another default, and gives the blocks with a window no other base.
    for changes in [json!({}), json!({ "rope_theta": 1e4 })] {
        let error = describe("olmo3", changes).unwrap_err().to_string();
        assert!(error.contains("versions 4 and 5"), "{error}");
    }
}

#[test]
fn alpha_stretches_the_base_of_hunyuan_and_no_other() {
    let scaling = json!({ "rope_scaling": { "type": "dynamic", "alpha": 1000.0 } });
    let description = describe("hunyuan_v1_dense", scaling.clone()).unwrap();
    let attention = description.blocks[0].attention().unwrap();
    let stretched = (1e4 * 1000f64.powf(16.0 / 14.0)) as f32;
    assert_eq!(
        (attention.rope.base, &attention.rope.scaling),
        (stretched, &RopeScaling::None)
    );
    assert!(
        attention
            .qk_norm
            .is_some_and(|norm| norm.after_rope && !norm.spans_heads)
    );
    let dynamic = json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } });
    for (model_type, changes) in [("hunyuan_v1_dense", dynamic), ("llama", scaling)] {
        let error = describe(model_type, changes).unwrap_err().to_string();
        assert!(error.contains("`dynamic`"), "{error}");
    }
}

#[test]
fn glm_rotates_adjacent_pairs_of_half_a_head_and_has_biases_unless_told_otherwise() {
    for (model_type, residual) in [
        ("glm", Residual::Serial),
        ("glm4", Residual::SerialPostNorm),
    ] {
        let description = describe(model_type, json!({})).unwrap();
        let block = &description.blocks[0];
        assert_eq!(block.residual, residual);
        let rope = &block.attention().unwrap().rope;
        assert_eq!((rope.dims, rope.pairing), (8, RopePairing::Adjacent));
        assert!(block.attention().unwrap().qkv_bias && !block.attention().unwrap().output_bias);
        let plain = describe(model_type, json!({ "attention_bias": false })).unwrap();
        assert!(!plain.blocks[0].attention().unwrap().qkv_bias);
    }
}

#[test]
fn the_temperature_of_ministral3_comes_from_the_numbers_of_rope() {
    let rope = json!({
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64,
        "llama_4_scaling_beta": 0.5,
    });
    let description = describe("ministral3", json!({ "rope_parameters": rope })).unwrap();
    let expected = Temperature {
        scale: 0.5,
        context: 64,
    };
    assert_eq!(
        description.blocks[0].attention().unwrap().temperature,
        Some(expected)
    );
    assert_eq!([0, 63].map(|position| expected.factor(position)), [1.0; 2]);
    assert_eq!(expected.factor(64), 1.0 + 0.5 * 2f32.ln());
    let incomplete = with(&rope, json!({ "llama_4_scaling_beta": "absent" }));
    for (changes, named) in [
        (json!({}), "rope_parameters"),
        (
            json!({ "rope_parameters": incomplete }),
            "llama_4_scaling_beta",
        ),
    ] {
        let error = describe("ministral3", changes).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_gguf_file_may_stretch_hunyuans_base_and_no_other() {
    let base = |architecture: &str, alpha: f32| {
        let numbers = [
            ("rope.scaling.alpha", Value::Float(f64::from(alpha))),
            ("rope.freq_base", Value::Float(100.0)),
        ];
        let mut block = GGUF_BLOCK.to_vec();
        if architecture == "hunyuan-dense" {
            block.push(("attn_q_norm.weight", &[16]));
            block.push(("attn_k_norm.weight", &[16]));
        }
        let tensors = tensors(&GGUF_OUTER, "blk.", 2, &block);
        let (description, _) = from_file(&metadata(architecture, &numbers), &tensors).unwrap();
        description.blocks[0].attention().unwrap().rope.base
    };
    assert_eq!(base("hunyuan-dense", 3.0), 100.0 * 3f32.powf(16.0 / 14.0));
    assert_eq!(base("hunyuan-dense", 0.0), 100.0);
    assert_eq!(base("hunyuan-dense", -1.0), 100.0);
    assert_eq!(base("llama", 3.0), 100.0);
}

#[test]
fn axes_of_rope_are_refused_in_the_text_models_in_which_llama_cpp_reads_them() {
    for (sections, is_refused) in [(vec![2, 3, 2, 3], true), (vec![0; 4], false)] {
        let numbers = [("rope.dimension_sections", Value::Integers(sections))];
        let found = from_file(&metadata("glm4", &numbers), &Tensors::new());
        let error = found.unwrap_err().to_string();
        assert_eq!(error.contains("dimension_sections"), is_refused, "{error}");
    }
}

#[test]
fn a_gguf_file_of_ministral_3_has_no_windows() {
    let numbers = [("attention.sliding_window", Value::Integer(4))];
    let tensors = tensors(&GGUF_OUTER, "blk.", 2, &GGUF_BLOCK);
    let (description, _) = from_file(&metadata("mistral3", &numbers), &tensors).unwrap();
    assert_eq!(windows(&description), [None; 2]);
}

#[test]
fn a_part_of_a_head_that_is_null_is_refused_in_glm() {
    for model_type in ["glm", "glm4", "glm4_moe"] {
        let null = json!({ "partial_rotary_factor": null });
        let error = describe(model_type, null).unwrap_err().to_string();
        assert!(error.contains("partial_rotary_factor"), "{error}");
    }
}

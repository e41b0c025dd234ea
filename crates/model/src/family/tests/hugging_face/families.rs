//! Fields of single families.

use serde_json::{Value as Json, json};

use super::super::{tensors, windows};
use super::{LLAMA_OUTER, described, from_hugging_face, llama, phi2, phi3, with};
use crate::description::{
    Activation, FeedForward, Linear, Norm, NormKind, QkNorm, Residual, RopeScaling,
};
use crate::family::hugging_face;

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
    let rows = |linear| super::super::rows(&map.blocks[0].linears[&linear].weight);
    assert_eq!(rows(Linear::Query), Some(0..64));
    assert_eq!(rows(Linear::Key), Some(64..96));
    assert_eq!(rows(Linear::Value), Some(96..128));
    assert_eq!(rows(Linear::Gate), Some(0..96));
    assert_eq!(rows(Linear::Up), Some(96..192));
    assert_eq!(rows(Linear::Down), None);
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

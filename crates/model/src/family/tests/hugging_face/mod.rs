//! `config.json` and tensors of checkpoints: which model they describe.

mod families;
mod refused;
mod ropes;

use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::{Tensors, llama_description, tensor, tensors};
use crate::description::{Linear, ModelDescription, RopeScaling};
use crate::error::Result;
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

fn phi2() -> Json {
    with(
        &llama(),
        json!({
            "model_type": "phi", "hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "partial_rotary_factor": 0.5,
            "num_key_value_heads": null, "rope_theta": 1e4
        }),
    )
}

fn phi3() -> Json {
    with(
        &llama(),
        json!({ "model_type": "phi3", "sliding_window": 8 }),
    )
}

//! Tests each number of a configuration and of metadata that enters computations, with values that no model has.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use triad_model::family::{from_gguf, from_hugging_face};
use triad_model::gguf::{Metadata, Value};
use triad_model::tensor::{Format, TensorInfo};
use triad_model::{ErrorKind, Result};

/// Zero, negative, subnormal and tiny in f32 or f64, huge in f32, and beyond f32.
const EXTREMES: [f64; 12] = [
    0.0, -0.0, -1.0, -1e300, 5e-324, 1e-45, 1e-40, 1e-30, 1e30, 3.4e38, 1e39, 1.7e308,
];

fn tensor(name: &str, shape: &[usize]) -> (String, TensorInfo) {
    let info = TensorInfo {
        name: name.to_owned(),
        shape: shape.to_vec(),
        format: Format::F32,
        file: 0,
        bytes: 0..0,
    };
    (name.to_owned(), info)
}

fn config(model_type: &str) -> Json {
    let activation = match model_type {
        "phi" => "gelu_new",
        "gemma2" | "gemma3_text" => "gelu_pytorch_tanh",
        _ => "silu",
    };
    json!({
        "model_type": model_type, "hidden_act": activation, "hidden_activation": activation, "sliding_window": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_theta": 1e4, "rope_scaling": {"rope_type": "default"}
    })
}

fn scaling(kind: &str) -> Json {
    json!({
        "rope_type": kind, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128, "attention_factor": 1.0, "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]
    })
}

#[test]
fn each_number_of_a_configuration_has_a_range_that_is_checked() {
    let cases = [
        ("llama", "default", "/rms_norm_eps"),
        ("qwen2", "default", "/rms_norm_eps"),
        ("phi", "default", "/layer_norm_eps"),
        ("llama", "default", "/rope_theta"),
        ("phi", "default", "/partial_rotary_factor"),
        ("gemma2", "default", "/query_pre_attn_scalar"),
        ("gemma2", "default", "/attn_logit_softcapping"),
        ("gemma2", "default", "/final_logit_softcapping"),
        ("gemma3_text", "default", "/rope_local_base_freq"),
        ("llama", "linear", "/rope_scaling/factor"),
        ("llama", "llama3", "/rope_scaling/factor"),
        ("phi3", "longrope", "/rope_scaling/attention_factor"),
        ("phi3", "longrope", "/rope_scaling/short_factor/3"),
        ("phi3", "longrope", "/rope_scaling/long_factor/0"),
    ];
    for (model_type, kind, field) in cases {
        let mut config = config(model_type);
        config["rope_scaling"] = scaling(kind);
        if let (None, Some(name)) = (config.pointer(field), field.strip_prefix('/')) {
            config[name] = json!(0.5);
        }
        for value in EXTREMES {
            let mut changed = config.clone();
            *changed.pointer_mut(field).unwrap() = json!(value);
            let refused = from_hugging_face(&changed, (&BTreeMap::new(), &|_| false), &|_, _| true)
                .map(|_| ());
            refuses(&format!("{model_type}: {field} = {value:e}"), refused);
        }
    }
}

#[test]
fn bounds_of_llama_3s_frequencies_may_be_any_numbers() {
    for field in ["low_freq_factor", "high_freq_factor"] {
        for value in EXTREMES {
            let mut config = config("llama");
            config["rope_scaling"] = scaling("llama3");
            config["rope_scaling"][field] = json!(value);
            from_hugging_face(&config, (&BTreeMap::new(), &|_| false), &|_, _| true).unwrap_err();
        }
    }
}

#[test]
fn each_number_of_metadata_has_a_range_that_is_checked() {
    let cases = [
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("phi2", "attention.layer_norm_epsilon"),
        ("llama", "rope.freq_base"),
        // Fields where 0 means none.
        ("llama", "rope.scaling.factor"),
        ("llama", "attention.scale"),
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("gemma3", "rope.freq_base_swa"),
        ("phi3", "rope.scaling.attn_factor"),
    ];
    let tensors: BTreeMap<_, _> = [
        tensor("token_embd.weight", &[100, 64]),
        tensor("rope_factors_long.weight", &[8]),
        tensor("rope_factors_short.weight", &[8]),
    ]
    .into();
    for (architecture, field) in cases {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::String(architecture.into()));
        let numbers = [
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "context_length",
            "attention.head_count",
        ];
        for (field, number) in numbers.into_iter().zip([64, 2, 96, 512, 4]) {
            metadata.insert(format!("{architecture}.{field}"), Value::Integer(number));
        }
        for epsilon in [
            "attention.layer_norm_epsilon",
            "attention.layer_norm_rms_epsilon",
        ] {
            metadata.insert(format!("{architecture}.{epsilon}"), Value::Float(1e-5));
        }
        metadata.insert(format!("{architecture}.rope.freq_base"), Value::Float(1e4));
        metadata.insert(
            format!("{architecture}.attention.sliding_window"),
            Value::Integer(32),
        );
        metadata.insert(
            format!("{architecture}.rope.scaling.type"),
            Value::String("linear".into()),
        );
        if architecture == "phi3" {
            metadata.insert("phi3.rope.scaling.type", Value::String("longrope".into()));
            metadata.insert(
                "phi3.rope.scaling.original_context_length",
                Value::Integer(128),
            );
        }
        for value in EXTREMES
            .into_iter()
            .chain([f64::NAN, f64::INFINITY, f64::NEG_INFINITY])
        {
            if value as f32 == 0.0 && field == "rope.scaling.factor" {
                continue;
            }
            let mut changed = metadata.clone();
            changed.insert(format!("{architecture}.{field}"), Value::Float(value));
            let refused =
                from_gguf(&changed, &tensors, &|info| Ok(vec![1.0; info.elements()])).map(|_| ());
            refuses(&format!("{architecture}.{field} = {value:e}"), refused);
        }
    }
    for value in EXTREMES {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::String("llama".into()));
        let numbers = [
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "context_length",
            "attention.head_count",
        ];
        for (field, number) in numbers.into_iter().zip([64, 2, 96, 512, 4]) {
            metadata.insert(format!("llama.{field}"), Value::Integer(number));
        }
        metadata.insert("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5));
        let tensors = [
            tensor("token_embd.weight", &[100, 64]),
            tensor("rope_freqs.weight", &[8]),
        ]
        .into();
        let refused = from_gguf(&metadata, &tensors, &|info| {
            Ok(vec![value as f32; info.elements()])
        })
        .map(|_| ());
        refuses(&format!("rope_freqs.weight of {value:e}"), refused);
    }
}

/// Fails unless the error is about the number itself: these files lack most tensors, which is detected later.
#[track_caller]
fn refuses(case: &str, refused: Result<()>) {
    let Err(error) = refused else {
        panic!("{case}: accepted")
    };
    let is_number = matches!(error.kind(), ErrorKind::Malformed | ErrorKind::Unsupported)
        && !error.to_string().contains("shape");
    assert!(is_number, "{case}: {error}");
}

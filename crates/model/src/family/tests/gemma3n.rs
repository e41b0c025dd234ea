use serde_json::{Value as Json, json};

use super::super::{gguf, hugging_face};
use super::{tensor, windows};
use crate::description::{Attention, KeyValues, ModelDescription, Residual, RopeScaling, Streams};
use crate::error::Result;
use crate::gguf::{Metadata, Value};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Returns a configuration in which the last two blocks read the keys and values of others.
fn config(changes: Json) -> Json {
    let mut config = json!({
        "model_type": "gemma3n_text", "hidden_size": 64, "intermediate_size": [96, 96, 48, 96], "num_hidden_layers": 4,
        "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
        "layer_types": [SLIDING, FULL, SLIDING, FULL], "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 90,
        "hidden_size_per_layer_input": 12, "altup_num_inputs": 3, "laurel_rank": 6,
        "activation_sparsity_pattern": [0.95, 0.0, 0.5, 0.25]
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

fn cutoffs(description: &ModelDescription) -> Vec<Option<f32>> {
    let blocks = description.blocks.iter();
    blocks.map(|block| block.feed_forward.cutoff).collect()
}

fn sources(description: &ModelDescription) -> Vec<Option<usize>> {
    let attentions = description.blocks.iter().map(|it| it.attention().unwrap());
    attentions.map(Attention::shared_from).collect()
}

#[test]
fn gemma3n_has_streams_inputs_by_token_and_blocks_of_its_own_shapes() {
    let description = described(json!({})).unwrap();
    let streams = Streams {
        count: 3,
        rank: 6,
        scaled: true,
    };
    assert_eq!(description.streams, Some(streams));
    let inputs = description.token_inputs.unwrap();
    assert_eq!((inputs.width, inputs.rows), (12, Some(90)));
    let widths = description.blocks.iter().map(|it| it.feed_forward.width);
    assert_eq!(widths.collect::<Vec<_>>(), [96, 96, 48, 96]);
    assert_eq!(sources(&description), [None, None, Some(0), Some(1)]);
    assert_eq!(windows(&description), [Some(8), None, Some(8), None]);
    let [first, second, third, fourth] = cutoffs(&description)[..] else {
        panic!("four blocks")
    };
    // Quantiles of the normal distribution.
    assert!((first.unwrap() - 1.644_853_6).abs() < 1e-5);
    assert_eq!(second, None);
    assert!(third.unwrap().abs() < 1e-6);
    assert!((fourth.unwrap() + 0.674_489_8).abs() < 1e-5);
    let attention = description.blocks[0].attention().unwrap();
    assert_eq!((attention.scale, attention.rope.base), (1.0, 1e4));
    assert!(attention.value_norm.is_some() && attention.qk_norm.is_some());
    let attention = description.blocks[1].attention().unwrap();
    assert_eq!(attention.rope.base, 1e6);
    assert_eq!(attention.rope.scaling, RopeScaling::None);
    assert_eq!(description.logit_soft_cap, Some(30.0));
    let unscaled =
        described(json!({ "altup_correct_scale": false, "intermediate_size": 96 })).unwrap();
    assert!(!unscaled.streams.unwrap().scaled);
    let whole = described(json!({ "vocab_size_per_layer_input": 100 })).unwrap();
    assert_eq!(whole.token_inputs.unwrap().rows, None);
}

#[test]
fn the_first_ten_blocks_of_a_longer_gemma3n_cut_gates_off_if_the_file_says_nothing() {
    for (blocks, expected) in [(10, 0), (11, 10)] {
        let changes = json!({
            "num_hidden_layers": blocks, "layer_types": "absent", "activation_sparsity_pattern": null,
            "intermediate_size": 96, "num_kv_shared_layers": 0
        });
        let description = described(changes).unwrap();
        let cutoffs = cutoffs(&description);
        let first = cutoffs.iter().take_while(|it| it.is_some()).count();
        assert_eq!(first, expected);
        assert!(cutoffs[first..].iter().all(Option::is_none));
        let windows = windows(&description);
        assert_eq!(windows[..5], [Some(8), Some(8), Some(8), Some(8), None]);
    }
}

#[test]
fn what_gemma3n_states_that_is_not_computed_is_refused_by_name() {
    for (changes, field) in [
        (json!({ "altup_active_idx": 1 }), "altup_active_idx"),
        (json!({ "altup_num_inputs": 1 }), "residual streams"),
        (json!({ "altup_num_inputs": 17 }), "altup_num_inputs"),
        (json!({ "laurel_rank": 0 }), "laurel_rank"),
        (json!({ "num_kv_shared_layers": 4 }), "num_kv_shared_layers"),
        (
            json!({ "num_kv_shared_layers": 3 }),
            "block 1 reads the keys",
        ),
        (json!({ "intermediate_size": [96] }), "intermediate_size"),
        (
            json!({ "intermediate_size": [96, 0, 96, 96] }),
            "intermediate_size",
        ),
        (
            json!({ "activation_sparsity_pattern": 0.5 }),
            "activation_sparsity_pattern",
        ),
        (
            json!({ "activation_sparsity_pattern": [0.5] }),
            "activation_sparsity_pattern",
        ),
        (
            json!({ "activation_sparsity_pattern": [0.5, 0.0, 1.0, 0.0] }),
            "activation_sparsity_pattern",
        ),
        (
            json!({ "vocab_size_per_layer_input": 101 }),
            "vocab_size_per_layer_input",
        ),
        (
            json!({ "hidden_size_per_layer_input": 0 }),
            "hidden_size_per_layer_input",
        ),
        (
            json!({ "use_bidirectional_attention": true }),
            "use_bidirectional_attention",
        ),
    ] {
        let error = described(changes.clone()).expect_err("refused").to_string();
        assert!(error.contains(field), "{changes}: {error}");
    }
}

/// Returns the metadata of 22 blocks, of which every second has a window.
fn metadata(changes: &[(&str, Value)]) -> Metadata {
    let sparse = |block: usize| {
        if block < 10 {
            1.644_853_5
        } else {
            f32::NEG_INFINITY
        }
    };
    let mut fields = vec![
        ("context_length", Value::Integer(512)),
        ("embedding_length", Value::Integer(64)),
        ("block_count", Value::Integer(22)),
        ("feed_forward_length", Value::Integers(vec![96; 22])),
        ("attention.head_count", Value::Integer(4)),
        ("attention.head_count_kv", Value::Integer(2)),
        ("attention.key_length", Value::Integer(16)),
        ("attention.value_length", Value::Integer(16)),
        ("attention.layer_norm_rms_epsilon", Value::Float(1e-6)),
        ("attention.sliding_window", Value::Integer(8)),
        (
            "attention.sliding_window_pattern",
            Value::Bools((0..22).map(|block| block % 2 == 0).collect()),
        ),
        ("attention.shared_kv_layers", Value::Float(2.0)),
        ("rope.freq_base", Value::Float(1e6)),
        ("altup.active_idx", Value::Integer(0)),
        ("altup.num_inputs", Value::Integer(4)),
        ("embedding_length_per_layer_input", Value::Integer(256)),
        (
            "activation_sparsity_scale",
            Value::Floats((0..22).map(sparse).collect()),
        ),
    ];
    for (field, value) in changes {
        fields.retain(|(name, _)| name != field);
        fields.push((field, value.clone()));
    }
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("gemma3n".into()));
    for (field, value) in fields {
        metadata.insert(format!("gemma3n.{field}"), value);
    }
    metadata
}

fn described_by_gguf(changes: &[(&str, Value)]) -> Result<ModelDescription> {
    let tensors = [
        tensor("token_embd.weight", &[100, 64]),
        tensor("blk.0.laurel_l.weight", &[64, 64]),
    ];
    let tensors = tensors.into_iter().collect();
    Ok(gguf::describe(&metadata(changes), &tensors, &|_| unreachable!())?.1)
}

#[test]
fn gemma3n_in_gguf_has_the_numbers_of_published_models() {
    let description = described_by_gguf(&[]).unwrap();
    let streams = Streams {
        count: 4,
        rank: 64,
        scaled: true,
    };
    assert_eq!(description.streams, Some(streams));
    assert_eq!(description.token_inputs.unwrap().width, 256);
    let sources = sources(&description);
    assert!(sources[..20].iter().all(Option::is_none));
    assert_eq!(sources[20..], [Some(18), Some(19)]);
    let attention = description.blocks[20].attention().unwrap();
    assert_eq!(attention.key_values, KeyValues::OfBlock(18));
    assert_eq!((attention.scale, attention.rope.base), (1.0, 1e4));
    assert_eq!(description.blocks[19].attention().unwrap().rope.base, 1e6);
    let cutoffs = cutoffs(&description);
    // llama.cpp divides by the number of gates less 1.
    let expected = 1.644_853_5 * (96.0f32 / 95.0).sqrt();
    assert!((cutoffs[9].unwrap() - expected).abs() < 1e-6);
    assert_eq!(cutoffs[10], None);
    assert_eq!(description.logit_soft_cap, Some(30.0));
}

#[test]
fn numbers_that_llama_cpp_has_in_its_code_are_refused_if_a_file_states_others() {
    let other = |block: usize| {
        if block < 9 {
            1.644_853_5
        } else {
            f32::NEG_INFINITY
        }
    };
    for (field, value) in [
        ("attention.shared_kv_layers", Value::Integer(3)),
        ("altup.active_idx", Value::Integer(1)),
        ("final_logit_softcapping", Value::Float(20.0)),
        (
            "activation_sparsity_scale",
            Value::Floats((0..22).map(other).collect()),
        ),
        (
            "activation_sparsity_scale",
            Value::Floats(vec![1.644_853_5]),
        ),
        ("activation_sparsity_scale", Value::Integer(1)),
    ] {
        let error = described_by_gguf(&[(field, value)]).expect_err("refused");
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn streams_and_cutoffs_that_the_engine_does_not_compute_are_no_valid_description() {
    let valid = described(json!({})).unwrap();
    let refusal = |change: &dyn Fn(&mut ModelDescription)| {
        let mut description = valid.clone();
        change(&mut description);
        description.check().expect_err("refused").to_string()
    };
    for (error, expected) in [
        (refusal(&|it| it.token_inputs = None), "inputs by token"),
        (refusal(&|it| it.residual_scale = 0.5), "no factors"),
        (
            refusal(&|it| it.blocks[1].residual = Residual::Serial),
            "both halves",
        ),
        (refusal(&|it| it.blocks[1].scaled = true), "no factors"),
        (
            refusal(&|it| it.blocks[0].feed_forward.cutoff = Some(f32::NAN)),
            "standard deviations",
        ),
        (
            refusal(&|it| it.blocks[0].feed_forward.gated = false),
            "with gates",
        ),
        (
            refusal(&|it| it.token_inputs.as_mut().unwrap().rows = Some(101)),
            "rows of the table",
        ),
    ] {
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

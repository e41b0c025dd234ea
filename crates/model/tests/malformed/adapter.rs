//! Adapters that are damaged, incomplete, for another model or of a kind that is not supported.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value as Json, json};
use triad_model::ErrorKind::{self, Io, Malformed, Missing, Unsupported};
use triad_model::adapter::Adapter;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{Linear, ModelDescription};
use triad_model::gguf::Value;
use triad_model::tensor::Format;
use triad_model::testing::{GgufBuilder, safetensors_file, tiny_llama};

use crate::assert_refused;

/// One block of width 32 with keys of one head of 16, and the configuration that PEFT writes for an adapter of rank 2
/// on them.
static BASE: LazyLock<(ModelDescription, Json)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, tiny_llama().build()).unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["k_proj"], "bias": "none"});
    (
        Checkpoint::open(path).unwrap().description().clone(),
        config,
    )
});

pub fn base() -> &'static (ModelDescription, Json) {
    &BASE
}

fn head(kind: &str) -> GgufBuilder {
    GgufBuilder::new()
        .field("general.type", Value::String(kind.into()))
        .field("adapter.type", Value::String("lora".into()))
        .field("general.architecture", Value::String("llama".into()))
}

/// Returns an adapter of rank 2 on keys.
pub fn gguf() -> GgufBuilder {
    let builder = head("adapter").field("adapter.lora.alpha", Value::Float(4.0));
    let builder = builder.tensor_f32("blk.0.attn_k.weight.lora_a", &[2, 32], &[0.5; 64]);
    builder.tensor_f32("blk.0.attn_k.weight.lora_b", &[16, 2], &[0.25; 32])
}

const KEY: &str = "base_model.model.model.layers.0.self_attn.k_proj";

/// Returns f32 tensors with these shapes, whose numbers are all `value`.
fn safetensors(tensors: &[(&str, [usize; 2])], value: f32) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let start = data.len();
        data.extend((0..shape[0] * shape[1]).flat_map(|_| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    safetensors_file(&Json::Object(header).to_string(), &data)
}

pub fn weights() -> Vec<u8> {
    let (a, b) = (
        format!("{KEY}.lora_A.weight"),
        format!("{KEY}.lora_B.weight"),
    );
    safetensors(&[(&a, [2, 32]), (&b, [16, 2])], 0.5)
}

#[test]
fn adapters_without_a_fault_are_accepted() {
    let (description, config) = base();
    let adapter = Adapter::from_gguf(&gguf().build(), description).unwrap();
    let low_rank = adapter.low_rank(0, Linear::Key).unwrap();
    assert_eq!(
        (
            low_rank.rank,
            low_rank.scale,
            adapter.ranks(),
            adapter.parameters()
        ),
        (2, 2.0, (2, 2), 96)
    );
    assert!(
        adapter.low_rank(0, Linear::Query).is_none() && adapter.low_rank(7, Linear::Key).is_none()
    );
    let adapter = Adapter::from_peft(config, &weights(), description).unwrap();
    assert_eq!(adapter.low_rank(0, Linear::Key).unwrap().scale, 2.0);
    // As in llama.cpp.
    let scaled = head("adapter").field("adapter.lora.alpha", Value::Float(0.0));
    let scaled = scaled.tensor_f32("blk.0.attn_k.weight.lora_a", &[2, 32], &[0.5; 64]);
    let scaled = scaled.tensor_f32("blk.0.attn_k.weight.lora_b", &[16, 2], &[0.25; 32]);
    assert_eq!(
        Adapter::from_gguf(&scaled.build(), description)
            .unwrap()
            .low_rank(0, Linear::Key)
            .unwrap()
            .scale,
        1.0
    );
}

#[test]
fn a_gguf_file_with_another_adapter_is_refused_by_name() {
    let (description, _) = base();
    let refused = |case: &str, builder: GgufBuilder, kind: ErrorKind, mentions: &[&str]| {
        assert_refused(
            case,
            Adapter::from_gguf(&builder.build(), description),
            kind,
            mentions,
        );
    };
    let alpha = |builder: GgufBuilder| builder.field("adapter.lora.alpha", Value::Float(4.0));
    let a = |builder: GgufBuilder| {
        builder.tensor_f32("blk.0.attn_k.weight.lora_a", &[2, 32], &[0.5; 64])
    };
    let b = |builder: GgufBuilder| {
        builder.tensor_f32("blk.0.attn_k.weight.lora_b", &[16, 2], &[0.25; 32])
    };
    refused(
        "a model",
        tiny_llama(),
        Missing,
        &["`general.type`", "`adapter`"],
    );
    refused(
        "a model that says so",
        alpha(head("model")),
        Unsupported,
        &["`general.type`", "`model`", "`adapter`"],
    );
    refused(
        "no alpha",
        a(b(head("adapter"))),
        Missing,
        &["`adapter.lora.alpha`"],
    );
    let infinite = head("adapter").field("adapter.lora.alpha", Value::Float(f64::INFINITY));
    refused(
        "alpha",
        infinite,
        Malformed,
        &["`adapter.lora.alpha`", "inf"],
    );
    refused(
        "no tensors",
        alpha(head("adapter")),
        Missing,
        &["no tensor"],
    );
    refused(
        "A alone",
        a(alpha(head("adapter"))),
        Missing,
        &["`blk.0.attn_k`", "matrix A and no B"],
    );
    refused(
        "B alone",
        b(alpha(head("adapter"))),
        Missing,
        &["`blk.0.attn_k`", "matrix B and no A"],
    );
    let activated = gguf().field("adapter.alora.invocation_tokens", Value::Integers(vec![1]));
    refused(
        "aLoRA",
        activated,
        Unsupported,
        &["adapter.alora.invocation_tokens"],
    );
    let other = GgufBuilder::new()
        .field("general.type", Value::String("adapter".into()))
        .field("adapter.type", Value::String("lora".into()))
        .field("general.architecture", Value::String("qwen2".into()));
    refused(
        "another architecture",
        a(b(alpha(other))),
        Unsupported,
        &["general.architecture", "`qwen2`", "llama"],
    );
    for name in [
        "token_embd.weight.lora_a",
        "output.weight.lora_b",
        "blk.1.attn_k.weight.lora_a",
        "blk.00.attn_k.weight.lora_a",
    ] {
        let module = name.split(".weight").next().unwrap();
        refused(
            name,
            gguf().tensor_f32(name, &[2, 32], &[0.0; 64]),
            Unsupported,
            &[module, "linear layer"],
        );
    }
    refused(
        "a norm",
        gguf().tensor_f32("blk.0.attn_norm.weight", &[32], &[0.0; 32]),
        Unsupported,
        &["attn_norm.weight"],
    );
    let fused = gguf().tensor_f32("blk.0.attn_qkv.weight.lora_a", &[1, 32], &[0.0; 32]);
    let fused = fused.tensor_f32("blk.0.attn_qkv.weight.lora_b", &[64, 1], &[0.0; 64]);
    refused(
        "keys twice",
        fused,
        Malformed,
        &["changes a layer that another tensor changes"],
    );
    let shape = |dimensions: [u64; 2]| {
        let mut builder = gguf();
        builder.entries[1].dimensions = dimensions.to_vec();
        builder
    };
    refused(
        "shape of B",
        shape([4, 8]),
        Malformed,
        &["lora_b", "[8, 4]", "[16, rank]", "[rank, 32]"],
    );
    refused(
        "ranks",
        shape([1, 16]),
        Malformed,
        &["lora_b", "[16, 1]", "[2, 32]"],
    );
    let wide = alpha(head("adapter")).tensor(
        "blk.0.attn_k.weight.lora_a",
        &[5000, 32],
        Format::F16,
        &[0; 320_000],
    );
    let wide = wide.tensor(
        "blk.0.attn_k.weight.lora_b",
        &[16, 5000],
        Format::F16,
        &[0; 160_000],
    );
    refused("rank", wide, Malformed, &["rank 5000", "4096"]);
    let mut not_a_number = [0.25; 32];
    not_a_number[7] = f32::NAN;
    let builder =
        a(alpha(head("adapter"))).tensor_f32("blk.0.attn_k.weight.lora_b", &[16, 2], &not_a_number);
    refused("not a number", builder, Malformed, &["lora_b", "NaN"]);
}

#[test]
fn what_a_configuration_asks_for_is_done_or_refused_by_name() {
    let ((description, config), weights) = (base(), weights());
    let refused = |field: &str, value: Json, kind: ErrorKind, mentions: &[&str]| {
        let mut config = config.clone();
        config[field] = value;
        let mentions = [&[field], mentions].concat();
        assert_refused(
            field,
            Adapter::from_peft(&config, &weights, description),
            kind,
            &mentions,
        );
    };
    for field in [
        "use_dora",
        "fan_in_fan_out",
        "lora_bias",
        "use_qalora",
        "something_new",
    ] {
        refused(field, json!(true), Unsupported, &["true", "not supported"]);
    }
    refused("bias", json!("all"), Unsupported, &["all"]);
    refused(
        "modules_to_save",
        json!(["lm_head"]),
        Unsupported,
        &["lm_head"],
    );
    refused(
        "layer_replication",
        json!([[0, 4]]),
        Unsupported,
        &["[[0,4]]"],
    );
    refused("trainable_token_indices", json!([3]), Unsupported, &["[3]"]);
    for value in ["pissa", "olora", "loftq", "corda"] {
        refused(
            "init_lora_weights",
            json!(value),
            Unsupported,
            &[value, "differ from the model's"],
        );
    }
    refused("peft_type", json!("IA3"), Unsupported, &["`IA3`", "`LORA`"]);
    refused("r", json!(0), Malformed, &["is 0", "1 to 4096"]);
    refused("r", json!(2.5), Malformed, &["2.5"]);
    refused("r", json!("many"), Malformed, &["many", "a number"]);
    refused(
        "r",
        json!(3),
        Malformed,
        &[
            "has rank 2",
            "rank_pattern` in adapter_config.json gives it 3",
        ],
    );
    refused("lora_alpha", json!(null), Malformed, &["null", "a number"]);
    refused("lora_alpha", json!(1e300), Malformed, &["inf"]);
    refused(
        "use_rslora",
        json!("yes"),
        Malformed,
        &["yes", "true or false"],
    );
    for targets in [json!(3), json!(true), json!(["k_proj", 3])] {
        refused(
            "target_modules",
            targets,
            Malformed,
            &["neither a text nor an array of texts"],
        );
    }
    refused(
        "rank_pattern",
        json!(["k_proj"]),
        Malformed,
        &["k_proj", "an object"],
    );
    refused(
        "rank_pattern",
        json!({"k_proj": "much"}),
        Malformed,
        &["much", "numbers"],
    );
    refused(
        "alpha_pattern",
        json!({"k_proj(": 3}),
        Unsupported,
        &["regular expression"],
    );
    refused(
        "target_modules",
        json!(["k_proj", "q_proj"]),
        Missing,
        &["`q_proj`", "no tensor"],
    );
    assert_refused(
        "no object",
        Adapter::from_peft(&json!([]), &weights, description),
        Malformed,
        &["object"],
    );
    let accepted = |field: &str, value: Json| {
        let mut config = config.clone();
        config[field] = value;
        Adapter::from_peft(&config, &weights, description)
            .unwrap()
            .low_rank(0, Linear::Key)
            .unwrap()
            .scale
    };
    for (field, value) in [
        ("init_lora_weights", json!("gaussian")),
        ("use_dora", json!(false)),
        ("rank_pattern", json!({"q_proj": 7})),
        ("target_modules", json!("all-linear")),
        ("target_modules", json!(["self_attn.k_proj"])),
    ] {
        assert_eq!(accepted(field, value), 2.0, "{field}");
    }
    assert_eq!(
        accepted("use_rslora", json!(true)),
        (4.0 / f64::sqrt(2.0)) as f32
    );
    assert_eq!(
        accepted("alpha_pattern", json!({"k_proj": 6, "self_attn.k_proj": 8})),
        3.0,
        "the first that fits"
    );
    assert_eq!(
        accepted("alpha_pattern", json!({"proj": 6, ".*_proj": 8})),
        4.0,
        "a whole part of the name"
    );
}

#[test]
fn tensors_of_another_kind_in_a_folder_are_refused_by_name() {
    let (description, config) = base();
    let (a, b) = (
        format!("{KEY}.lora_A.weight"),
        format!("{KEY}.lora_B.weight"),
    );
    for name in [
        format!("{KEY}.lora_magnitude_vector"),
        format!("{KEY}.lora_B.bias"),
        "base_model.model.lm_head.lora_A.weight".to_owned(),
        "base_model.model.model.embed_tokens.lora_embedding_A".to_owned(),
        "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight".to_owned(),
        "model.layers.0.self_attn.q_proj.lora_A.weight".to_owned(),
    ] {
        let bytes = safetensors(&[(&a, [2, 32]), (&b, [16, 2]), (&name, [2, 32])], 0.5);
        let module = name
            .split(".lora_A")
            .next()
            .unwrap()
            .trim_start_matches("base_model.model.");
        assert_refused(
            &name,
            Adapter::from_peft(config, &bytes, description),
            Unsupported,
            &[module, "LoRA"],
        );
    }
    let infinite = safetensors(&[(&a, [2, 32]), (&b, [16, 2])], f32::INFINITY);
    assert_refused(
        "infinite",
        Adapter::from_peft(config, &infinite, description),
        Malformed,
        &["lora_A", "inf"],
    );
}

#[test]
fn an_adapter_in_place_of_a_model_is_refused_with_where_it_belongs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    fs::write(&path, gguf().build()).unwrap();
    assert_refused(
        "adapter",
        Checkpoint::open(&path),
        Unsupported,
        &["adapter.gguf", "an adapter", "--lora"],
    );
}

#[test]
fn a_path_without_an_adapter_is_refused_with_what_was_expected() {
    let (description, config) = base();
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let open = |path: &Path| Adapter::open(path, description);
    assert_refused(
        "absent",
        open(&place("absent")),
        Missing,
        &["absent", "expected a .gguf file"],
    );
    assert_refused(
        "empty folder",
        open(folder.path()),
        Missing,
        &["adapter_config.json"],
    );
    fs::write(place("notes.txt"), "hello").unwrap();
    assert_refused(
        "text",
        open(&place("notes.txt")),
        Malformed,
        &["notes.txt", "expected a .gguf file"],
    );
    fs::write(place("adapter_config.json"), "{").unwrap();
    fs::write(place("adapter_model.bin"), "").unwrap();
    assert_refused(
        "broken JSON",
        open(folder.path()),
        Malformed,
        &["adapter_config.json", "not valid JSON"],
    );
    fs::write(place("adapter_config.json"), config.to_string()).unwrap();
    assert_refused(
        "no tensors",
        open(folder.path()),
        Missing,
        &["adapter_model.safetensors"],
    );
    fs::write(place("adapter_model.safetensors"), &weights()[..100]).unwrap();
    assert_refused(
        "cut off",
        open(folder.path()),
        Malformed,
        &["adapter_model.safetensors"],
    );
    fs::write(place("adapter_model.safetensors"), weights()).unwrap();
    let adapter = open(folder.path()).unwrap();
    assert_eq!(adapter.path(), folder.path());
    assert_eq!(
        open(&place("adapter_model.safetensors"))
            .unwrap()
            .fingerprint(),
        adapter.fingerprint()
    );
    fs::remove_file(place("adapter_model.safetensors")).unwrap();
    fs::create_dir(place("adapter_model.safetensors")).unwrap();
    assert_refused(
        "a folder",
        open(folder.path()),
        Io,
        &["adapter_model.safetensors", "regular file"],
    );
}

//! Quantized safetensors with missing, swapped or impossible parts, and configurations that Triad does not follow.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use triad_model::ErrorKind::{self, Malformed, Missing, Unsupported};
use triad_model::Result;
use triad_model::checkpoint::Checkpoint;
use triad_model::testing::safetensors_file;

use crate::assert_refused;

const K: &str = "model.layers.0.self_attn.k_proj";

/// A golden checkpoint in memory, to be changed.
#[derive(Clone)]
struct Edited {
    config: Value,
    /// Type, shape and bytes of each tensor.
    tensors: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>,
}

impl Edited {
    fn new(case: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/quantized")
            .join(case);
        let config =
            serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
        let tensor = |(name, entry): (String, Value)| {
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let shape = entry["shape"].as_array()?.iter().map(number).collect();
            let offsets: Vec<_> = entry["data_offsets"]
                .as_array()?
                .iter()
                .map(number)
                .collect();
            let bytes = data[offsets[0]..offsets[1]].to_vec();
            Some((name, (entry["dtype"].as_str()?.to_owned(), shape, bytes)))
        };
        Self {
            config,
            tensors: header.into_iter().filter_map(tensor).collect(),
        }
    }

    fn field(mut self, key: &str, value: Value) -> Self {
        let place = match self.config.get("quantization") {
            Some(_) => "quantization",
            None => "quantization_config",
        };
        self.config[place][key] = value;
        if place == "quantization" {
            self.config
                .as_object_mut()
                .unwrap()
                .remove("quantization_config");
        }
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).expect(name);
        self
    }

    fn shape(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.get_mut(name).expect(name).1 = shape.to_vec();
        self
    }

    fn element(mut self, name: &str, element: &str) -> Self {
        element.clone_into(&mut self.tensors.get_mut(name).expect(name).0);
        self
    }

    fn byte(mut self, name: &str, place: usize, byte: u8) -> Self {
        self.tensors.get_mut(name).expect(name).2[place] = byte;
        self
    }

    fn tensor(mut self, name: &str, element: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        let tensor = (element.to_owned(), shape.to_vec(), bytes);
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    fn file(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut data = Vec::new();
        for (name, (element, shape, bytes)) in &self.tensors {
            let end = data.len() + bytes.len();
            let entry =
                json!({"dtype": element, "shape": shape, "data_offsets": [data.len(), end]});
            header.insert(name.clone(), entry);
            data.extend_from_slice(bytes);
        }
        safetensors_file(&Value::Object(header).to_string(), &data)
    }

    fn open(&self) -> Result<Checkpoint> {
        open(&self.config, &self.file())
    }
}

fn open(config: &Value, file: &[u8]) -> Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(folder.path())?;
    dequantize(&checkpoint);
    Ok(checkpoint)
}

/// Reads all rows of all quantized tensors.
fn dequantize(checkpoint: &Checkpoint) {
    for tensor in checkpoint.quantized().values() {
        let [rows, width] = tensor.shape();
        checkpoint.dequantize(tensor, 0..rows, &mut vec![0.0; rows * width]);
    }
}

fn refused(edited: &Edited, kind: ErrorKind, mentions: &[&str]) {
    assert_refused(mentions[0], edited.open(), kind, mentions);
}

#[test]
fn a_part_that_is_missing_is_named_with_its_matrix() {
    for (case, part, matrix) in [
        ("gptq-4", "scales", "qweight"),
        ("gptq-4", "qzeros", "qweight"),
        ("awq", "scales", "qweight"),
        ("awq", "qzeros", "qweight"),
        ("ct-int8-channel", "weight_scale", "weight"),
        ("ct-int8-asymmetric", "weight_zero_point", "weight"),
        ("ct-int4-zeros", "weight_zero_point", "weight_packed"),
        ("ct-int4-group", "weight_shape", "weight_packed"),
        ("ct-fp8-tensor", "weight_scale", "weight"),
        ("fp8-block", "weight_scale_inv", "weight"),
        ("bnb-int8", "SCB", "weight"),
        ("bnb-nf4", "weight.absmax", "weight"),
        ("bnb-nf4", "weight.quant_map", "weight"),
        ("bnb-nf4", "weight.quant_state.bitsandbytes__nf4", "weight"),
        ("bnb-nf4-nested", "weight.nested_absmax", "weight"),
        ("bnb-nf4-nested", "weight.nested_quant_map", "weight"),
        ("mlx-4", "scales", "weight"),
        ("mlx-4", "biases", "weight"),
    ] {
        let (part, matrix) = (format!("{K}.{part}"), format!("{K}.{matrix}"));
        let mentions = [
            format!("`{part}` is missing"),
            format!("`{matrix}`"),
            "model.safetensors".into(),
        ];
        let mentions = mentions.each_ref().map(String::as_str);
        refused(&Edited::new(case).without(&part), Missing, &mentions);
    }
}

#[test]
fn a_part_of_another_type_or_shape_is_refused_with_what_was_expected() {
    let k = |part: &str| format!("{K}.{part}");
    for (case, part, element, mentions) in [
        ("gptq-4", "scales", "I16", ["I16", "expected one of"]),
        ("gptq-4", "g_idx", "F32", ["type F32", "expected I32"]),
        ("awq", "qzeros", "F32", ["type F32", "expected I32"]),
        ("bnb-int8", "SCB", "I32", ["type I32", "expected F32"]),
        ("mlx-4", "biases", "BF16", ["type BF16", "expected F16"]),
    ] {
        refused(
            &Edited::new(case).element(&k(part), element),
            Unsupported,
            &[&k(part), mentions[0], mentions[1]],
        );
    }
    for (case, part, shape, expected) in [
        ("gptq-4", "scales", &[16, 1][..], "[1, 16]"),
        ("gptq-4", "qzeros", &[2, 1], "[1, 2]"),
        ("gptq-4", "g_idx", &[2, 16], "[32]"),
        ("awq", "scales", &[16, 1], "[1, 16]"),
        ("awq", "qweight", &[64], "a matrix"),
        ("ct-int8-channel", "weight_scale", &[1, 16], "[16, 1]"),
        ("ct-int8-asymmetric", "weight_zero_point", &[16], "[16, 1]"),
        ("ct-int4-group", "weight_packed", &[8, 8], "[16, 32]"),
        ("ct-int4-group", "weight_shape", &[1, 2], "[2]"),
        ("ct-fp8-block", "weight_scale", &[2, 1], "[1, 2]"),
        ("fp8-block", "weight_scale_inv", &[2, 1], "[1, 2]"),
        ("fp8-row", "weight_scale", &[1, 16], "[16, 1]"),
        ("bnb-int8", "SCB", &[16, 1], "[16]"),
        ("bnb-nf4", "weight.absmax", &[2, 4], "[8]"),
        ("bnb-nf4", "weight", &[1, 256], ""),
        ("mlx-4", "scales", &[1, 16], "[16, 1]"),
        ("mlx-4", "weight", &[8, 8], "[8, 2]"),
    ] {
        let edited = Edited::new(case).shape(&k(part), shape);
        if expected.is_empty() {
            // Codes are flat: their number counts.
            edited.open().unwrap();
            continue;
        }
        refused(&edited, Malformed, &[&k(""), expected, "model.safetensors"]);
    }
}

#[test]
fn a_matrix_whose_shape_contradicts_the_model_is_refused() {
    // Rows and columns in another order, with all parts in agreement.
    let edited = Edited::new("ct-int8-tensor").shape(&format!("{K}.weight"), &[32, 16]);
    refused(
        &edited,
        Malformed,
        &["k_proj.weight` has shape [32, 16]", "expected [16, 32]"],
    );
}

#[test]
fn a_group_index_out_of_range_is_refused() {
    let down = "model.layers.0.mlp.down_proj.g_idx";
    for (byte, group) in [(2, "2"), (255, "255")] {
        let edited = Edited::new("gptq-4-act-order").byte(down, 4, byte);
        refused(
            &edited,
            Malformed,
            &[down, &format!("group {group} for column 1"), "0 to 1"],
        );
    }
    // −1, which some libraries take for the last group.
    let edited = (0..4).fold(Edited::new("gptq-4"), |edited, byte| {
        edited.byte(down, byte, 255)
    });
    refused(&edited, Malformed, &[down, "group -1 for column 0"]);
}

#[test]
fn group_sizes_that_do_not_divide_or_are_no_sizes_are_refused() {
    for size in [0i64, -2, 1 << 40] {
        for case in ["gptq-4", "awq"] {
            let edited = Edited::new(case).field("group_size", json!(size));
            refused(
                &edited,
                Malformed,
                &[
                    "quantization_config.group_size",
                    "a number of columns, or -1",
                ],
            );
        }
    }
    // Groups of more columns than there are: one group, but the scales have two for `down_proj`.
    let edited = Edited::new("gptq-4").field("group_size", json!(1 << 20));
    refused(&edited, Malformed, &["down_proj.scales", "[1, 32]"]);
    let edited = Edited::new("awq").field("group_size", json!(24));
    refused(&edited, Malformed, &["multiple of 24 input features"]);
    let edited = Edited::new("mlx-4").field("group_size", json!(48));
    refused(&edited, Unsupported, &["quantization.group_size", "48"]);
    for block in [
        json!([0, 128]),
        json!([128]),
        json!([128, -1]),
        json!("128"),
    ] {
        let edited = Edited::new("fp8-block").field("weight_block_size", block);
        refused(
            &edited,
            Malformed,
            &["quantization_config.weight_block_size"],
        );
    }
}

#[test]
fn a_zero_point_that_programs_read_differently_is_refused() {
    let zeros = format!("{K}.qzeros");
    refused(
        &Edited::new("gptq-4").byte(&zeros, 1, 0x7f),
        Malformed,
        &[&zeros, "zero point of 15 in word 0"],
    );
    refused(
        &Edited::new("gptq-8").byte(&zeros, 6, 0xff),
        Malformed,
        &[&zeros, "zero point of 255 in word 1"],
    );
    // Version 2 stores them as they are.
    Edited::new("gptq-4-v2")
        .byte(&zeros, 1, 0x7f)
        .open()
        .unwrap();
}

#[test]
fn a_linear_layer_must_be_quantized_unless_the_configuration_excludes_it() {
    let plain = |case: &str, parts: &[&str]| {
        let edited = Edited::new(case);
        let edited = parts.iter().fold(edited, |edited, part| {
            edited.without(&format!("{K}.{part}"))
        });
        edited.tensor(
            &format!("{K}.weight"),
            "F16",
            &[16, 32],
            vec![0; 2 * 16 * 32],
        )
    };
    for (case, parts, field) in [
        (
            "gptq-4",
            &["qweight", "qzeros", "scales", "g_idx"][..],
            "modules_to_not_convert",
        ),
        (
            "awq",
            &["qweight", "qzeros", "scales"],
            "modules_to_not_convert",
        ),
        (
            "ct-int4-group",
            &["weight_packed", "weight_scale", "weight_shape"],
            "ignore",
        ),
        (
            "fp8-block",
            &["weight", "weight_scale_inv"],
            "modules_to_not_convert",
        ),
        (
            "bnb-int8",
            &["weight", "SCB", "weight_format"],
            "llm_int8_skip_modules",
        ),
    ] {
        let edited = plain(case, parts);
        refused(&edited, Missing, &[K, "is not quantized", field]);
        for excluded in [K, "k_proj", "self_attn"] {
            let checkpoint = edited
                .clone()
                .field(field, json!([excluded]))
                .open()
                .unwrap();
            assert!(
                checkpoint.tensors().contains_key(&format!("{K}.weight")),
                "{case}"
            );
        }
        let other = edited
            .clone()
            .field(field, json!(["model.layers.1", "mlp"]));
        refused(&other, Missing, &[K, "is not quantized"]);
        let contrary = Edited::new(case).field(field, json!([K]));
        refused(&contrary, Malformed, &[K, "excludes"]);
    }
    let excluded = plain(
        "ct-int4-group",
        &["weight_packed", "weight_scale", "weight_shape"],
    );
    let expression = json!(["re:.*self_attn\\.k_proj$", "lm_head"]);
    excluded.clone().field("ignore", expression).open().unwrap();
    let unreadable = excluded.field("ignore", json!(["re:(?!lm_head)"]));
    refused(
        &unreadable,
        Unsupported,
        &["quantization_config.ignore", "regular expression"],
    );
    let listed = json!([["self_attn.q_proj", "self_attn.v_proj"], ["mlp.gate_proj"]]);
    let edited = plain("gptq-4", &["qweight", "qzeros", "scales", "g_idx"]);
    edited
        .field("modules_in_block_to_quantize", listed)
        .open()
        .unwrap();
    // MLX's configuration need not name what is not quantized.
    plain("mlx-4", &["weight", "scales", "biases"])
        .open()
        .unwrap();
}

#[test]
fn a_configuration_without_quantized_tensors_and_tensors_without_one_are_refused() {
    let mut none = Edited::new("gptq-4");
    none.tensors.retain(|name, _| !name.contains("proj"));
    refused(
        &none,
        Missing,
        &[
            "`quantization_config` (GPTQ)",
            "no quantized tensor",
            ".qweight",
        ],
    );
    for (case, element) in [
        ("gptq-4", "I32"),
        ("mlx-4", "U32"),
        ("fp8-block", "F8_E4M3"),
    ] {
        let mut edited = Edited::new(case);
        for field in ["quantization", "quantization_config"] {
            edited.config.as_object_mut().unwrap().remove(field);
        }
        refused(
            &edited,
            Unsupported,
            &[element, "expected one of F32, F16, BF16"],
        );
    }
    // The scheme of another file.
    let mut edited = Edited::new("awq");
    edited.config["quantization_config"] =
        Edited::new("bnb-int8").config["quantization_config"].clone();
    refused(&edited, Missing, &["bitsandbytes", "no quantized tensor"]);
    // A part that no matrix takes.
    let extra =
        Edited::new("ct-int8-channel").tensor("lm_head.weight_scale", "F32", &[1], vec![0; 4]);
    refused(
        &extra,
        Unsupported,
        &["lm_head.weight_scale", "has no part"],
    );
    let extra =
        Edited::new("ct-int8-channel").tensor("lm_head.weight_packed", "I32", &[1], vec![0; 4]);
    refused(&extra, Unsupported, &["lm_head.weight_packed", "type I32"]);
    let both =
        Edited::new("gptq-4").tensor(&format!("{K}.weight"), "F16", &[16, 32], vec![0; 1024]);
    assert_refused("both", both.open(), Missing, &[K, "is not quantized"]);
}

#[test]
fn a_field_that_triad_does_not_follow_is_named() {
    for (case, field, value) in [
        ("gptq-4", "quant_method", json!("aqlm")),
        ("gptq-4", "quant_method", json!(null)),
        ("gptq-4", "bits", json!(3)),
        ("gptq-4", "checkpoint_format", json!("marlin")),
        ("gptq-4", "is_marlin_format", json!(true)),
        ("gptq-4", "dynamic", json!({"+:mlp": {"bits": 8}})),
        ("gptq-4", "pack_dtype", json!("int64")),
        ("gptq-4", "future", json!(1)),
        ("awq", "bits", json!(8)),
        ("awq", "version", json!("gemv")),
        ("awq", "backend", json!("llm-awq")),
        ("awq", "future", json!("x")),
        ("fp8-block", "fmt", json!("e5m2")),
        ("fp8-block", "kv_cache_scheme", json!({"num_bits": 8})),
        ("fp8-block", "activation_scheme", json!("other")),
        ("bnb-nf4", "load_in_8bit", json!(true)),
        ("bnb-nf4", "bnb_4bit_quant_type", json!("af4")),
        ("bnb-nf4", "bnb_4bit_quant_storage", json!("bfloat16")),
        ("bnb-int8", "llm_int8_has_fp16_weight", json!(true)),
        ("ct-int8-channel", "format", json!("marlin-24")),
        ("ct-int8-channel", "format", json!("nvfp4-pack-quantized")),
        ("ct-int8-channel", "format", json!("mixed-precision")),
        (
            "ct-int8-channel",
            "kv_cache_scheme",
            json!({"num_bits": 8, "type": "float"}),
        ),
        (
            "ct-int8-channel",
            "sparsity_config",
            json!({"format": "sparse-24-bitmask"}),
        ),
        ("ct-int8-channel", "transform_config", json!({"R1": {}})),
        ("ct-int8-channel", "quantization_status", json!("frozen")),
        ("mlx-4", "bits", json!(3)),
        ("mlx-4", "mode", json!("mxfp4")),
        ("mlx-4", "future", json!(7)),
    ] {
        let edited = Edited::new(case).field(field, value.clone());
        let error = edited.open().expect_err(&format!("{case} {field} {value}"));
        let message = error.to_string();
        println!("{message}");
        assert_eq!(error.kind(), Unsupported, "{message}");
        // One of two fields that exclude each other is named.
        let named = if field == "load_in_8bit" {
            "load_in_"
        } else {
            field
        };
        assert!(
            message.contains(named) && message.contains("config.json"),
            "{message}"
        );
    }
}

#[test]
fn fields_of_groups_are_followed_or_named() {
    for (path, value) in [
        ("weights/num_bits", json!(2)),
        ("weights/type", json!("float")),
        ("weights/dynamic", json!(true)),
        ("weights/strategy", json!("tensor_group")),
        ("weights/future", json!(1)),
        ("weights/actorder", json!("other")),
        ("output_activations", json!({"num_bits": 8})),
        ("format", json!("sparse-bitmask")),
        ("weights", json!(null)),
    ] {
        let mut edited = Edited::new("ct-int4-group");
        let group = &mut edited.config["quantization_config"]["config_groups"]["group_0"];
        match path.split_once('/') {
            Some((part, field)) => group[part][field] = value,
            None => group[path] = value,
        }
        let field = path.replace('/', ".");
        refused(
            &edited,
            Unsupported,
            &[&format!(
                "quantization_config.config_groups.group_0.{field}"
            )],
        );
    }
    // Two groups with other weights.
    let mut edited = Edited::new("ct-int4-group");
    let groups = &mut edited.config["quantization_config"]["config_groups"];
    let mut second = groups["group_0"].clone();
    second["weights"]["num_bits"] = json!(8);
    groups["group_1"] = second;
    refused(
        &edited,
        Unsupported,
        &["config_groups.group_1", "same weights"],
    );
    // Both names of MLX's fields with other contents.
    let mut edited = Edited::new("mlx-4");
    edited.config["quantization_config"]["bits"] = json!(8);
    refused(
        &edited,
        Unsupported,
        &["`quantization_config` differs from `quantization`"],
    );
    let mut edited = Edited::new("mlx-mixed");
    for field in ["quantization", "quantization_config"] {
        edited.config[field]["model.layers.0.mlp.down_proj"] = json!(false);
    }
    refused(&edited, Malformed, &["down_proj.weight", "is false"]);
}

#[test]
fn a_state_of_bitsandbytes_that_is_no_description_of_its_matrix_is_refused() {
    let name = format!("{K}.weight.quant_state.bitsandbytes__nf4");
    let with = |text: &str| {
        Edited::new("bnb-nf4-nested").tensor(&name, "U8", &[text.len()], text.as_bytes().to_vec())
    };
    let valid = json!({
        "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [16, 32],
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.1,
    });
    with(&valid.to_string()).open().unwrap();
    refused(&with("{"), Malformed, &[&name, "no valid JSON"]);
    for (key, value) in [
        ("quant_type", json!("fp4")),
        ("blocksize", json!(0)),
        ("blocksize", json!(100)),
        ("dtype", json!("int8")),
        ("shape", json!([16])),
        ("shape", json!([0, 32])),
        ("nested_blocksize", json!(1)),
        ("nested_dtype", json!("float16")),
        ("nested_offset", json!("x")),
    ] {
        let mut state = valid.clone();
        state[key] = value;
        refused(
            &with(&state.to_string()),
            Malformed,
            &[&name, &format!("`{key}`")],
        );
    }
    for shape in [
        json!([1u64 << 40, 1u64 << 40]),
        json!([16, 64]),
        json!([16, 31]),
    ] {
        let mut state = valid.clone();
        state["shape"] = shape;
        refused(
            &with(&state.to_string()),
            Malformed,
            &[&format!("{K}.weight"), "two codes in each byte"],
        );
    }
    let map = format!("{K}.weight.quant_map");
    refused(
        &Edited::new("bnb-nf4").byte(&map, 3, 0),
        Malformed,
        &[&map, "other values"],
    );
    let layout = format!("{K}.weight_format");
    refused(
        &Edited::new("bnb-int8").byte(&layout, 0, 2),
        Malformed,
        &[&layout, "expected a matrix in rows"],
    );
}

#[test]
fn a_bias_of_zeros_that_the_model_does_not_have_is_left_out() {
    let name = format!("{K}.bias");
    let zeros = Edited::new("gptq-4").tensor(&name, "F16", &[16], vec![0; 32]);
    assert!(!zeros.open().unwrap().tensors().contains_key(&name));
    refused(
        &zeros.byte(&name, 1, 60),
        Unsupported,
        &[&name, "has no part"],
    );
}

#[test]
fn a_stated_shape_that_is_no_shape_is_refused() {
    let name = format!("{K}.weight_shape");
    for (place, byte) in [(0, 0), (7, 255), (8, 33), (14, 1)] {
        let edited = Edited::new("ct-int4-group").byte(&name, place, byte);
        refused(&edited, Malformed, &[&name]);
    }
    let edited = Edited::new("ct-int4-group").byte(&name, 8, 0);
    refused(&edited, Malformed, &[&name, "above 0"]);
}

const MUTATED: [&str; 8] = [
    "gptq-4-act-order",
    "awq",
    "ct-int4-zeros",
    "ct-int8-asymmetric",
    "fp8-block",
    "bnb-nf4-nested",
    "bnb-int8",
    "mlx-mixed",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_damaged_file_is_refused_or_dequantizes(
        case in 0..MUTATED.len(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6), in_header: bool,
        cut in prop::option::weighted(0.2, any::<usize>()),
    ) {
        let edited = Edited::new(MUTATED[case]);
        let mut file = edited.file();
        let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let range = if in_header { 8..header } else { header..file.len() };
        for (place, byte) in changes {
            file[range.start + place % range.len()] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut % file.len());
        }
        // Either is right; a panic is not.
        let _ = open(&edited.config, &file);
    }
}

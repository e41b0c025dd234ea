//! Damaged packages: each gives an error that names the file, and never a panic.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use triad_engine::package::{Manifest, Package};
use triad_engine::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_model::checkpoint::Checkpoint;
use triad_prepare::package::Recipe;

use crate::tiny::Place;

const MANIFEST: &str = "package.json";
const WEIGHTS: &str = "weights.safetensors";

/// Returns the error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Opens and loads the package at `path`; returns the error if there is one.
fn load(path: &Path) -> Result<Model, String> {
    Model::load(
        path,
        &LoadOptions {
            threads: Threads::Count(1),
            ..Default::default()
        },
    )
    .map_err(|error| chain(&error))
}

/// Changes a file of a new package, and checks that the error names it and contains these words.
fn refused(place: &Place, file: &str, change: impl FnOnce(&mut Vec<u8>), message: &[&str]) {
    let path = place.path("package").join(file);
    let original = fs::read(&path).unwrap();
    let mut bytes = original.clone();
    change(&mut bytes);
    assert!(bytes != original, "{message:?} changes nothing");
    fs::write(&path, bytes).unwrap();
    let error = load(&place.path("package")).unwrap_err();
    assert!(
        error.contains(file) && message.iter().all(|words| error.contains(words)),
        "{error} for {message:?}"
    );
    fs::write(path, original).unwrap();
}

fn json(place: &Place, change: impl FnOnce(&mut Value), message: &[&str]) {
    let change = |bytes: &mut Vec<u8>| {
        let mut value = serde_json::from_slice(bytes).unwrap();
        change(&mut value);
        *bytes = value.to_string().into_bytes();
    };
    refused(place, MANIFEST, change, message);
}

/// Changes the header of the weights; the data does not change, and the description has the file's length.
fn header(place: &Place, change: impl FnOnce(&mut Value), message: &[&str]) {
    let path = place.path("package").join(MANIFEST);
    let manifest = fs::read(&path).unwrap();
    let rewrite = |bytes: &mut Vec<u8>| {
        let data = header_length(bytes);
        let mut value = serde_json::from_slice(&bytes[8..data]).unwrap();
        change(&mut value);
        let mut header = value.to_string().into_bytes();
        header.resize((8 + header.len()).next_multiple_of(64) - 8, b' ');
        *bytes = [
            &(header.len() as u64).to_le_bytes()[..],
            &header,
            &bytes[data..],
        ]
        .concat();
        let mut described: Value = serde_json::from_slice(&manifest).unwrap();
        described["files"][WEIGHTS]["bytes"] = json!(bytes.len());
        fs::write(&path, described.to_string()).unwrap();
    };
    refused(place, WEIGHTS, rewrite, message);
    fs::write(&path, manifest).unwrap();
}

/// Returns the start of the data of a safetensors file.
fn header_length(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

#[test]
fn a_description_that_makes_no_sense_is_refused() {
    let place = Place::new();
    place.package();
    json(
        &place,
        |it| it["format"] = json!(4),
        &["made by a newer Triad", "format is 4", "reads 3"],
    );
    json(
        &place,
        |it| it["format"] = json!(1),
        &[
            "made by an older Triad",
            "format is 1",
            "prepare the model again",
        ],
    );
    json(&place, |it| *it = json!({}), &["missing field `format`"]);
    json(
        &place,
        |it| it["layout"] = json!("n8k8"),
        &["\"n8k8\"", "prepare the model again"],
    );
    json(
        &place,
        |it| drop(it.as_object_mut().unwrap().remove("model")),
        &["missing field `model`"],
    );
    json(&place, |it| it["color"] = json!("blue"), &["color"]);
    json(
        &place,
        |it| it["embedding"] = json!("Q9_9"),
        &["`embedding`", "Q9_9"],
    );
    json(
        &place,
        |it| it["output"] = json!("F64"),
        &["`output`", "F64", "I8"],
    );
    json(
        &place,
        |it| it["model"]["hidden"] = json!(u64::MAX),
        &["`model`", "18446744073709551615"],
    );
    json(
        &place,
        |it| it["model"]["vocab"] = json!(0),
        &["`model`", "vocabulary is 0"],
    );
    json(
        &place,
        |it| it["model"]["blocks"] = json!([]),
        &["number of blocks is 0"],
    );
    json(
        &place,
        |it| it["model"]["blocks"][0]["attention"]["kv_heads"] = json!(3),
        &["can't share 3"],
    );
    json(
        &place,
        |it| it["model"]["output_norm"]["epsilon"] = json!(-1.0),
        &["epsilon is -1"],
    );
    let inputs = |it: &mut Value| it["preparation"]["inputs"].as_array_mut().unwrap().clone();
    json(
        &place,
        |it| it["preparation"]["inputs"] = json!(inputs(it)[1..]),
        &["has 7 inputs, expected 8"],
    );
    json(
        &place,
        |it| {
            it["preparation"]["inputs"]
                .as_array_mut()
                .unwrap()
                .swap(1, 2);
        },
        &["inputs[1]", "attention-output"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][3]["channels"] = json!(95),
        &["inputs[3]", "expected 96"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["clip"] = json!(0),
        &["inputs[5]", "clipped at 0"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["shadow_clip"] = json!(-1),
        &["inputs[5]", "clipped at -1"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["hot_channels"] = json!([1, 1]),
        &["inputs[5]", "ascending"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["hot_channels"] = json!([32]),
        &["inputs[5]", "below 32"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["smoothing"] = json!("0100"),
        &["inputs[5]", "2 channels", "32"],
    );
    json(
        &place,
        |it| it["preparation"]["inputs"][5]["smoothing"] = json!("x"),
        &["hexadecimal digits"],
    );
    let digest = json!({"bytes": 1, "sha256": ""});
    json(
        &place,
        |it| it["files"]["../model.gguf"] = digest,
        &["`files`", "../model.gguf"],
    );
    json(
        &place,
        |it| drop(it["files"].as_object_mut().unwrap().remove(WEIGHTS)),
        &["`files` lacks", WEIGHTS],
    );
    refused(
        &place,
        MANIFEST,
        Vec::clear,
        &["not the description of a package"],
    );
    refused(
        &place,
        MANIFEST,
        |bytes| *bytes = b"[".repeat(100_000),
        &["not the description of a package"],
    );
    load(&place.path("package")).unwrap();
}

#[test]
fn weights_that_are_not_those_of_the_description_are_refused() {
    let place = Place::new();
    place.package();
    let query = "blocks.0.query.weight";
    refused(
        &place,
        WEIGHTS,
        |bytes| bytes.truncate(bytes.len() - 1),
        &["truncated"],
    );
    refused(&place, WEIGHTS, Vec::clear, &["truncated"]);
    header(
        &place,
        |it| it[query]["dtype"] = json!("U8"),
        &[query, "is U8 [1024], expected I8 [1024]"],
    );
    header(
        &place,
        |it| it[query]["shape"] = json!([32, 32]),
        &[query, "[32, 32], expected I8 [1024]"],
    );
    header(
        &place,
        |it| it["blocks.0.down.sums"]["dtype"] = json!("F32"),
        &["blocks.0.down.sums", "expected I32"],
    );
    header(
        &place,
        |it| it[query]["dtype"] = json!("I64"),
        &[query, "I64"],
    );
    header(
        &place,
        |it| it[query]["data_offsets"] = json!([0, 1_u64 << 40]),
        &[query, "data_offsets"],
    );
    let rename = |it: &mut Value, new: &str| {
        let entry = it.as_object_mut().unwrap().remove(query).unwrap();
        it[new] = entry;
    };
    header(&place, |it| rename(it, "q"), &[query, "is missing"]);
    header(
        &place,
        |it| {
            let entry = |at: [usize; 2]| json!({"dtype": "I8", "shape": [at[1] - at[0]], "data_offsets": at});
            // The first tensor starts one byte later, where it is not aligned.
            it[query] = entry([1, 1025]);
            it["x"] = entry([0, 1]);
            it["blocks.0.key.weight"] = entry([1025, 1536]);
        },
        &[],
    );
    let weights = place.path("package").join(WEIGHTS);
    let bytes = fs::read(&weights).unwrap();
    let place_of = |name: &str| {
        let data = header_length(&bytes);
        let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
        data + header[name]["data_offsets"][0].as_u64().unwrap() as usize
    };
    for (name, number, message) in [
        ("blocks.0.query.scales", f32::NAN.to_bits(), "scale NaN"),
        ("blocks.1.up.scales", (-1f32).to_bits(), "scale -1"),
        ("output.scales", 0, "scale 0"),
        ("blocks.0.query.sums", i32::MIN as u32, "-2147483648"),
    ] {
        let change = |bytes: &mut Vec<u8>| {
            bytes[place_of(name)..][..4].copy_from_slice(&number.to_le_bytes());
        };
        refused(&place, WEIGHTS, change, &[name, message]);
    }
    load(&place.path("package")).unwrap();
}

#[test]
fn a_damaged_package_in_w4a16_is_refused() {
    let place = Place::with_width(80);
    place.w4a16();
    json(
        &place,
        |it| it["preparation"]["options"]["plan"]["linears"] = json!("w2a16"),
        &["w2a16", "w4a16"],
    );
    // In INT8, inputs are quantized by their statistics; with W4A16 there are none.
    json(
        &place,
        |it| it["preparation"]["options"]["plan"]["linears"] = json!("w8a8"),
        &["has 0 inputs, expected 8"],
    );
    let linears = |it: &mut Value| {
        drop(
            it["preparation"]["options"]["plan"]
                .as_object_mut()
                .unwrap()
                .remove("linears"),
        );
    };
    json(&place, linears, &["has 0 inputs, expected 8"]);
    json(
        &place,
        |it| it["preparation"]["inputs"] = json!([{}]),
        &["missing field"],
    );
    let (weight, scales) = ("blocks.0.query.weight", "blocks.0.query.scales");
    header(
        &place,
        |it| it[weight]["dtype"] = json!("I8"),
        &[weight, "is I8 [32, 16], expected U8 [32, 16]"],
    );
    header(
        &place,
        |it| it[weight]["shape"] = json!([16, 32]),
        &[weight, "[16, 32], expected U8 [32, 16]"],
    );
    header(
        &place,
        |it| it[scales]["dtype"] = json!("BF16"),
        &[scales, "expected F16 [32, 1]"],
    );
    let rename = |it: &mut Value| {
        let entry = it.as_object_mut().unwrap().remove(scales).unwrap();
        it["scales"] = entry;
    };
    header(&place, rename, &[scales, "is missing"]);
    header(
        &place,
        |it| it["blocks.0.down.weight"]["dtype"] = json!("I32"),
        &[
            "blocks.0.down.weight",
            "is I32 [32, 80], expected F32 [32, 80]",
        ],
    );
    refused(
        &place,
        WEIGHTS,
        |bytes| bytes.truncate(bytes.len() - 1),
        &["truncated"],
    );
    load(&place.path("package")).unwrap();
}

#[test]
fn a_damaged_head_of_a_package_is_refused() {
    let place = Place::new();
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/mtp/qwen3_5.gguf"
    );
    let recipe = Recipe {
        checkpoint: Arc::new(Checkpoint::open(Path::new(golden)).unwrap()),
        ..place.recipe()
    };
    place.prepare(&recipe, "package").unwrap();
    let (weight, scales) = ("mtp.projection.weight", "mtp.projection.scales");
    let as_bytes = |it: &mut Value| it[weight]["dtype"] = json!("U8");
    header(&place, as_bytes, &[weight, "expected I8"]);
    let transpose = |it: &mut Value| it[weight]["shape"].as_array_mut().unwrap().reverse();
    header(&place, transpose, &[weight, "expected I8"]);
    let divide = |it: &mut Value| it[scales]["shape"].as_array_mut().unwrap().push(json!(1));
    header(&place, divide, &[scales, "expected F32"]);
    for name in [weight, scales] {
        let rename = |it: &mut Value| {
            let entry = it.as_object_mut().unwrap().remove(name).unwrap();
            it["mtp.other"] = entry;
        };
        header(&place, rename, &[name, "is missing"]);
    }
    let path = place.path("package").join(MANIFEST);
    let original = fs::read(&path).unwrap();
    let mut value: Value = serde_json::from_slice(&original).unwrap();
    value["model"]["mtp"] = Value::Null;
    fs::write(&path, value.to_string()).unwrap();
    let error = load(&place.path("package")).unwrap_err();
    assert!(error.contains("plays no part in this model"), "{error}");
    fs::write(&path, original).unwrap();
    load(&place.path("package")).unwrap();
}

#[test]
fn weights_of_another_model_are_refused() {
    let place = Place::new();
    let package = place.package();
    let path = package.path().join(MANIFEST);
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["model"]["blocks"].as_array_mut().unwrap().pop();
    manifest["preparation"]["inputs"]
        .as_array_mut()
        .unwrap()
        .truncate(4);
    fs::write(&path, manifest.to_string()).unwrap();
    let error = load(package.path()).unwrap_err();
    assert!(
        error.contains(WEIGHTS) && error.contains("blocks.1.") && error.contains("plays no part"),
        "{error}"
    );
}

#[test]
fn a_file_that_the_package_does_not_name_is_refused_where_it_would_be_read_and_told_apart_where_not()
 {
    let place = Place::new();
    let package = place.package();
    let path = |name: &str| package.path().join(name);
    assert_eq!(
        package.manifest().files.keys().collect::<Vec<_>>(),
        ["tokenizer.gguf", "weights.safetensors"]
    );
    for name in [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::write(path(name), "{{ 'planted' }}").unwrap();
        let error = load(package.path()).unwrap_err();
        assert!(
            error.contains(name) && error.contains("package.json does not name this file"),
            "{error}"
        );
        fs::remove_file(path(name)).unwrap();
    }
    for name in [
        "notes.txt",
        "costs.json",
        "costs.json.seal",
        "shadow-rows.bin",
        "config.json",
        "compiled.txt",
    ] {
        fs::write(path(name), "").unwrap();
    }
    fs::create_dir(path("compiled")).unwrap();
    load(package.path()).unwrap();
    package.verify().unwrap();
    let contents = package.contents().unwrap();
    assert_eq!(
        contents.hashed,
        [
            "package.json",
            "package.json.sha256",
            "tokenizer.gguf",
            "weights.safetensors"
        ]
    );
    assert_eq!(
        contents.made_here,
        [
            "compiled",
            "costs.json",
            "costs.json.seal",
            "shadow-rows.bin"
        ]
    );
    assert_eq!(
        contents.others,
        ["compiled.txt", "config.json", "notes.txt"]
    );
}

#[test]
fn a_missing_file_is_named() {
    let place = Place::new();
    let package = place.package();
    for name in ["tokenizer.gguf", WEIGHTS, MANIFEST] {
        let path = package.path().join(name);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = Package::open(package.path()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        fs::write(path, bytes).unwrap();
    }
    fs::create_dir_all(place.path("empty")).unwrap();
    let error = Package::open(&place.path("empty")).unwrap_err().to_string();
    assert!(
        error.contains("empty: not a package: there is no package.json"),
        "{error}"
    );
}

#[test]
fn verify_names_the_file_with_an_altered_byte() {
    let place = Place::new();
    let package = place.package();
    package.verify().unwrap();
    for name in place.names("package") {
        let path = package.path().join(&name);
        let original = fs::read(&path).unwrap();
        let mut bytes = original.clone();
        // After the header, so that the package still opens; in the description, a digit of a number.
        let at = if name == MANIFEST {
            let text = String::from_utf8(bytes.clone()).unwrap();
            text.find("\"importance\": ").unwrap() + "\"importance\": ".len()
        } else {
            bytes.len() / 2
        };
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        fs::write(&path, bytes).unwrap();
        let error = Package::open(package.path())
            .unwrap()
            .verify()
            .unwrap_err()
            .to_string();
        let named = name.trim_end_matches(".sha256");
        assert!(
            error.contains(named) && error.contains("altered"),
            "{error}"
        );
        fs::write(path, original).unwrap();
    }
    package.verify().unwrap();
}

/// Runs a package with these bytes instead of one of its files, if it opens.
fn run_with(place: &Place, file: &str, bytes: &[u8]) {
    let path = place.path("package").join(file);
    let original = fs::read(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    if let Ok(model) = load(&place.path("package")) {
        let options = SessionOptions {
            context: 8,
            chunk: 4,
            ..SessionOptions::default()
        };
        if let Ok(mut session) = Session::new(&Arc::new(model), &options) {
            let _ = session.prefill(&[1, 2, 3], &Cancel::new(), |_| ());
        }
    }
    fs::write(path, original).unwrap();
}

fn damage(
    mut bytes: Vec<u8>,
    within: usize,
    changes: &[(usize, u8)],
    cut: Option<usize>,
) -> Vec<u8> {
    for (at, byte) in changes {
        bytes[at % within] = *byte;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut % bytes.len());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, ..ProptestConfig::default() })]

    /// One case with many packages, since creating the first one takes longest.
    #[test]
    fn random_damage_is_an_error_or_harmless(
        w4a16: bool,
        damages in prop::collection::vec(
            (any::<bool>(), prop::collection::vec((any::<usize>(), any::<u8>()), 1..4), prop::option::of(any::<usize>())),
            300,
        ),
    ) {
        let place = Place::new();
        let package = if w4a16 { place.w4a16() } else { place.package() };
        for (in_manifest, changes, cut) in damages {
            let file = if in_manifest { MANIFEST } else { WEIGHTS };
            let bytes = fs::read(package.path().join(file)).unwrap();
            let header = if in_manifest { bytes.len() } else { header_length(&bytes) };
            // Truncation is detected by the length; the other changes reach the parser.
            let damaged = damage(bytes, header, &changes, cut.filter(|cut| cut % 8 == 0));
            if in_manifest {
                let _ = Manifest::parse(&damaged);
            }
            run_with(&place, file, &damaged);
        }
    }
}

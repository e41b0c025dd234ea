//! Models on disk that are incomplete or of the wrong kind.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use triad_model::ErrorKind::{Io, Malformed, Missing, Unsupported};
use triad_model::checkpoint::Checkpoint;
use triad_model::gguf::Value;
use triad_model::testing::{GgufBuilder, TableEntry, tiny_llama};

use crate::assert_refused;

/// Creates a folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

fn open(path: &Path) -> triad_model::Result<Checkpoint> {
    Checkpoint::open(path)
}

#[test]
fn a_path_that_is_no_model_is_refused_with_what_was_expected() {
    let folder = folder(&[("notes.txt", b"hello"), ("empty.gguf", b"")]);
    let absent = folder.path().join("absent.gguf");
    assert_refused(
        "absent",
        open(&absent),
        Missing,
        &["absent.gguf", "expected a .gguf file"],
    );
    let notes = folder.path().join("notes.txt");
    assert_refused(
        "text file",
        open(&notes),
        Malformed,
        &["notes.txt", "expected a .gguf file"],
    );
    let empty = folder.path().join("empty.gguf");
    assert_refused(
        "empty file",
        open(&empty),
        Malformed,
        &["empty.gguf", "truncated"],
    );
    assert_refused(
        "folder",
        open(folder.path()),
        Missing,
        &["model.safetensors", "expected a .gguf file"],
    );
}

#[test]
fn weights_without_a_configuration_are_refused() {
    let folder = folder(&[("model.safetensors", &crate::safetensors::valid())]);
    assert_refused("folder", open(folder.path()), Missing, &["config.json"]);
    let file = folder.path().join("model.safetensors");
    assert_refused("file", open(&file), Missing, &["config.json"]);
}

#[test]
fn broken_json_is_named_with_file_and_line() {
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
    ] {
        let weights = crate::safetensors::valid();
        let folder = folder(&[
            ("model.safetensors", &weights),
            ("config.json", b"{}"),
            (name, b"{\n  \"a\": ?\n}"),
        ]);
        assert_refused(
            name,
            open(folder.path()),
            Malformed,
            &[name, "not valid JSON", "line 2"],
        );
    }
    let folder = folder(&[("model.safetensors", &crate::safetensors::valid())]);
    fs::create_dir(folder.path().join("config.json")).unwrap();
    assert_refused(
        "config.json is a folder",
        open(folder.path()),
        Io,
        &["config.json", "regular file"],
    );
}

#[test]
fn a_file_of_a_model_that_is_no_object_is_refused_and_not_taken_as_empty() {
    let weights = crate::safetensors::valid();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
    ] {
        for (content, kind) in [
            ("[]", "an array"),
            ("null", "null"),
            ("3", "a number"),
            ("\"text\"", "a string"),
        ] {
            let folder = folder(&[
                ("model.safetensors", &weights),
                ("config.json", b"{}"),
                (name, content.as_bytes()),
            ]);
            let mentions = [name, kind, "expected a JSON object"];
            assert_refused(name, open(folder.path()), Malformed, &mentions);
        }
    }
}

#[test]
#[cfg(unix)]
fn a_link_that_leads_nowhere_is_not_taken_as_an_absent_file() {
    let weights = crate::safetensors::valid();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ] {
        let mut files: Vec<(&str, &[u8])> = vec![("config.json", b"{}")];
        if name != "model.safetensors.index.json" {
            files.push(("model.safetensors", &weights));
        }
        files.retain(|(other, _)| *other != name);
        let folder = folder(&files);
        std::os::unix::fs::symlink("nowhere", folder.path().join(name)).unwrap();
        let mentions = [name, "cannot read the file"];
        assert_refused(name, open(folder.path()), Io, &mentions);
    }
}

#[test]
fn a_configuration_larger_than_any_real_one_is_not_read() {
    let folder = folder(&[("model.safetensors", &crate::safetensors::valid())]);
    let config = fs::File::create(folder.path().join("config.json")).unwrap();
    config.set_len((64 << 20) + 1).unwrap();
    assert_refused(
        "large config.json",
        open(folder.path()),
        Malformed,
        &["config.json", "64 MiB"],
    );
}

#[test]
fn a_generation_setting_of_another_type_names_its_file() {
    let weights = crate::safetensors::valid();
    let files: [(&str, &[u8]); 3] = [
        ("model.safetensors", &weights),
        ("config.json", b"{}"),
        ("generation_config.json", b"{\"temperature\": \"hot\"}"),
    ];
    let mentions = ["generation_config.json", "temperature", "hot"];
    assert_refused(
        "temperature",
        open(folder(&files).path()),
        Malformed,
        &mentions,
    );
}

#[test]
fn every_shard_and_every_tensor_of_the_index_must_be_there() {
    let index = |shard: &str, tensor: &str| {
        format!(r#"{{"weight_map": {{"norm": "{shard}", "{tensor}": "{shard}"}}}}"#)
    };
    let weights = crate::safetensors::valid();
    let with_index = |index: &str| {
        folder(&[
            ("config.json", b"{}"),
            ("model-1.safetensors", &weights),
            ("model.safetensors.index.json", index.as_bytes()),
        ])
    };
    let absent = with_index(&index("model-2.safetensors", "matrix"));
    assert_refused(
        "shard",
        open(absent.path()),
        Missing,
        &["model-2.safetensors", "index.json names it"],
    );
    let elsewhere = with_index(&index("../model.safetensors", "matrix"));
    assert_refused(
        "place of a shard",
        open(elsewhere.path()),
        Malformed,
        &["index.json", "../model.safetensors"],
    );
    let weight_map = r#"{"weight_map": {"matrix": "model-1.safetensors"}}"#;
    assert_refused(
        "tensor that the index does not name",
        open(with_index(weight_map).path()),
        Malformed,
        &[
            "model-1.safetensors",
            "\"norm\"",
            "the index does not name it",
        ],
    );
    let tensor = with_index(&index("model-1.safetensors", "bias"));
    assert_refused(
        "tensor",
        open(tensor.path()),
        Missing,
        &["model-1.safetensors", "\"bias\""],
    );
}

#[test]
fn a_tensor_of_another_shape_than_the_metadata_demands_is_named() {
    let refused = |case: &str, kind, mentions: &[&str], change: fn(&mut TableEntry)| {
        let mut builder = tiny_llama();
        builder
            .entries
            .iter_mut()
            .filter(|entry| entry.name == "blk.0.attn_q.weight")
            .for_each(change);
        let folder = folder(&[("model.gguf", &builder.build())]);
        assert_refused(
            case,
            open(&folder.path().join("model.gguf")),
            kind,
            mentions,
        );
    };
    refused(
        "shape",
        Malformed,
        &["model.gguf", "blk.0.attn_q.weight", "[16, 32]", "[32, 32]"],
        |entry| {
            entry.dimensions = vec![32, 16];
        },
    );
    refused(
        "name",
        Missing,
        &["model.gguf", "blk.0.attn_q.weight", "missing"],
        |entry| entry.name = "other".into(),
    );
}

#[test]
fn an_unknown_family_is_named() {
    let gguf = GgufBuilder::new()
        .field("general.architecture", Value::String("mamba".into()))
        .build();
    let folder = folder(&[
        ("model.gguf", &gguf),
        ("model.safetensors", &crate::safetensors::valid()),
        ("config.json", br#"{"model_type": "mamba"}"#),
    ]);
    assert_refused(
        "GGUF",
        open(&folder.path().join("model.gguf")),
        Unsupported,
        &["model.gguf", "mamba", "llama"],
    );
    assert_refused(
        "config.json",
        open(folder.path()),
        Unsupported,
        &["config.json", "model_type", "mamba", "llama"],
    );
}

#[test]
fn a_damaged_shard_is_named() {
    let weights = crate::safetensors::valid();
    let index = br#"{"weight_map": {"norm": "a.safetensors"}}"#;
    let folder = folder(&[
        ("config.json", b"{}"),
        ("a.safetensors", &weights[..weights.len() - 1]),
        ("model.safetensors.index.json", index),
    ]);
    assert_refused(
        "cut shard",
        open(folder.path()),
        Malformed,
        &["a.safetensors", "\"norm\"", "truncated"],
    );
}

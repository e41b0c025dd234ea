//! Broken safetensors files and indices.

use serde_json::json;
use triad_model::ErrorKind::{Malformed, Unsupported};
use triad_model::safetensors::{read_header, shards};
use triad_model::tensor::Format;
use triad_model::testing::safetensors_file;

use crate::assert_refused;

/// Returns a small valid file: a 2 × 2 matrix in BF16 and a norm in F32.
pub fn valid() -> Vec<u8> {
    let header = r#"{"__metadata__": {"format": "pt"},
        "norm": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        "matrix": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}"#;
    safetensors_file(header, &[1; 16])
}

/// Checks that a file with one tensor's entry and 16 bytes of data is refused.
fn refused(case: &str, entry: &str, mentions: &[&str]) {
    let bytes = safetensors_file(&format!(r#"{{"matrix": {entry}}}"#), &[0; 16]);
    assert_refused(case, read_header(&bytes, 0), Malformed, mentions);
}

#[test]
fn the_right_file_is_accepted() {
    let bytes = valid();
    let tensors = read_header(&bytes, 3).unwrap();
    let matrix = &tensors["matrix"];
    assert_eq!(
        (matrix.shape.as_slice(), matrix.format, matrix.file),
        ([2, 2].as_slice(), Format::Bf16, 3)
    );
    assert_eq!(tensors["norm"].bytes, bytes.len() - 8..bytes.len());
    assert_eq!(tensors.len(), 2);
}

#[test]
fn a_file_written_by_the_reference_library_is_accepted() {
    let data: Vec<u8> = (0..24).collect();
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F16, vec![3, 4], &data).unwrap();
    let bytes = safetensors::serialize([("weight", view)], None).unwrap();
    let tensors = read_header(&bytes, 0).unwrap();
    assert_eq!(bytes[tensors["weight"].bytes.clone()], data);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = valid();
    for length in 0..bytes.len() {
        let error = read_header(&bytes[..length], 0).expect_err("a cut file");
        assert_eq!(error.kind(), Malformed, "{length}: {error}");
    }
}

#[test]
fn a_header_length_beyond_the_file_is_refused() {
    for length in [100, 1 << 40, u64::MAX] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        assert_refused(
            "header length",
            read_header(&bytes, 0),
            Malformed,
            &["header length", &length.to_string()],
        );
    }
}

#[test]
fn a_header_that_is_no_table_of_tensors_is_refused() {
    for (header, mention) in [
        ("", "EOF"),
        ("[1]", "an object of tensors"),
        ("{\"a\"", "line 1"),
        ("{}}", "line 1"),
    ] {
        let result = read_header(&safetensors_file(header, &[]), 0);
        assert_refused("header", result, Malformed, &["header", mention]);
    }
    let deep = format!(r#"{{"__metadata__": {}"#, "[".repeat(100_000));
    assert_refused(
        "deep nesting",
        read_header(&safetensors_file(&deep, &[]), 0),
        Malformed,
        &["header"],
    );
    refused(
        "no dtype",
        r#"{"shape": [8], "data_offsets": [0, 16]}"#,
        &["\"matrix\"", "dtype"],
    );
    refused(
        "negative",
        r#"{"dtype": "F16", "shape": [-8], "data_offsets": [0, 16]}"#,
        &["\"matrix\"", "-8"],
    );
    refused(
        "one offset",
        r#"{"dtype": "F16", "shape": [8], "data_offsets": [0]}"#,
        &["\"matrix\"", "length 1"],
    );
}

#[test]
fn shape_and_offsets_must_agree_and_lie_inside() {
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}"#)
    };
    refused(
        "too few bytes",
        &entry("[2, 3]", "[0, 16]"),
        &["\"matrix\"", "[0, 16]", "24 bytes", "[2, 3]"],
    );
    refused(
        "backwards",
        &entry("[4]", "[16, 0]"),
        &["\"matrix\"", "[16, 0]"],
    );
    refused(
        "outside",
        &entry("[8]", "[0, 32]"),
        &["\"matrix\"", "ends at 16", "truncated"],
    );
    refused(
        "overflow",
        &entry("[4294967296, 4294967296]", "[0, 16]"),
        &["\"matrix\"", "4294967296"],
    );
    refused(
        "bytes",
        &entry("[9223372036854775807]", "[0, 16]"),
        &["\"matrix\"", "9223372036854775807"],
    );
    refused(
        "gap",
        &entry("[3]", "[4, 16]"),
        &["\"matrix\"", "offset 4", "gap"],
    );
    refused("left over", &entry("[3]", "[0, 12]"), &["4 bytes follow"]);
}

#[test]
fn two_tensors_may_not_share_bytes_or_a_name() {
    let entry = r#"{"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}"#;
    let overlap = safetensors_file(&format!(r#"{{"a": {entry}, "b": {entry}}}"#), &[0; 16]);
    assert_refused(
        "overlap",
        read_header(&overlap, 0),
        Malformed,
        &["\"b\"", "overlaps"],
    );
    let twice = safetensors_file(&format!(r#"{{"a": {entry}, "a": {entry}}}"#), &[0; 16]);
    assert_refused(
        "twice",
        read_header(&twice, 0),
        Malformed,
        &["\"a\"", "twice"],
    );
}

#[test]
fn element_types_that_are_not_read_are_named() {
    for dtype in ["I64", "F8_E4M3", "whatever"] {
        let header = format!(
            r#"{{"matrix": {{"dtype": "{dtype}", "shape": [2], "data_offsets": [0, 16]}}}}"#
        );
        let result = read_header(&safetensors_file(&header, &[0; 16]), 0);
        assert_refused("dtype", result, Unsupported, &["\"matrix\"", dtype, "BF16"]);
    }
}

#[test]
fn an_index_must_map_tensors_to_files_next_to_it() {
    for index in [json!([]), json!({}), json!({"weight_map": []})] {
        assert_refused("no map", shards(&index), Malformed, &["weight_map"]);
    }
    for name in [
        "../other.safetensors",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        "",
        "C:\\a",
        "nul\0",
        "a/",
    ] {
        let result = shards(&json!({"weight_map": {"matrix": name}}));
        assert_refused(
            "place of a shard",
            result,
            Malformed,
            &["\"matrix\"", "file next to it"],
        );
    }
    assert_refused(
        "number",
        shards(&json!({"weight_map": {"matrix": 1}})),
        Malformed,
        &["\"matrix\"", "1"],
    );
}

//! Broken GGUF files.

use triad_model::ErrorKind::{Malformed, Unsupported};
use triad_model::gguf::{self, Value};
use triad_model::tensor::{BlockFormat, Format};
use triad_model::testing::{GgufBuilder, string};

use crate::assert_refused;

/// Returns a small valid file: one field of most types, and two tensors, the last of which ends at the file's end.
pub fn valid() -> GgufBuilder {
    GgufBuilder::new()
        .field("general.architecture", Value::String("llama".into()))
        .field("llama.block_count", Value::Integer(2))
        .field("llama.rope.freq_base", Value::Float(10000.0))
        .field("tokenizer.ggml.add_bos_token", Value::Bool(true))
        .field(
            "tokenizer.ggml.tokens",
            Value::Strings(vec!["a".into(), "é".into(), String::new()]),
        )
        .field("tokenizer.ggml.token_type", Value::Integers(vec![1, -1, 3]))
        .field(
            "tokenizer.ggml.scores",
            Value::Floats(vec![0.5, -2.0, 1e30]),
        )
        .tensor_f32("norm", &[5], &[1.0, 2.0, 3.0, 4.0, 5.0])
        .tensor(
            "matrix",
            &[2, 32],
            Format::Blocks(BlockFormat::Q8_0),
            &[7; 68],
        )
}

fn refused(case: &str, bytes: &[u8], mentions: &[&str]) {
    assert_refused(case, gguf::read(bytes), Malformed, mentions);
}

fn not_supported(case: &str, bytes: &[u8], mentions: &[&str]) {
    assert_refused(case, gguf::read(bytes), Unsupported, mentions);
}

/// Returns the valid file after a change.
fn changed(change: impl FnOnce(&mut GgufBuilder)) -> Vec<u8> {
    let mut builder = valid();
    change(&mut builder);
    builder.build()
}

#[test]
fn the_right_file_is_accepted() {
    for version in [2, 3] {
        let file = gguf::read(&changed(|builder| builder.version = version)).unwrap();
        assert_eq!(file.version, version);
        assert_eq!(file.metadata.integer("llama.block_count").unwrap(), Some(2));
        assert_eq!(file.tensors["matrix"].shape, [2, 32]);
        assert_eq!(file.tensors["matrix"].bytes.len(), 68);
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = valid().build();
    for length in 0..bytes.len() {
        let error = gguf::read(&bytes[..length]).expect_err("a cut file");
        assert_eq!(error.kind(), Malformed, "{length}: {error}");
    }
}

#[test]
fn another_magic_version_or_byte_order_is_refused() {
    refused("empty file", b"", &["truncated", "magic"]);
    refused(
        "other magic",
        b"PK\x03\x04 a zip file",
        &["not a GGUF file", "PK\\x03\\x04", "expected \"GGUF\""],
    );
    for version in [0, 1, 4, 99] {
        let bytes = changed(|builder| builder.version = version);
        not_supported(
            "version",
            &bytes,
            &["version", &version.to_string(), "expected 2 or 3"],
        );
    }
    not_supported(
        "big-endian",
        &changed(|builder| builder.version = 3u32.swap_bytes()),
        &["big-endian"],
    );
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused_before_memory_is_taken() {
    for count in [1000, 1 << 40, u64::MAX] {
        let number = count.to_string();
        let bytes = changed(|builder| builder.tensor_count = Some(count));
        refused("tensor count", &bytes, &["number of tensors", &number]);
        let bytes = changed(|builder| builder.field_count = Some(count));
        refused(
            "field count",
            &bytes,
            &["number of metadata fields", &number],
        );

        let array = [&4u32.to_le_bytes()[..], &count.to_le_bytes()].concat();
        let bytes = GgufBuilder::new()
            .raw_field("tokenizer.ggml.scores", 9, &array)
            .build();
        refused(
            "array length",
            &bytes,
            &[
                "length of metadata field \"tokenizer.ggml.scores\"",
                &number,
            ],
        );

        let bytes = GgufBuilder::new()
            .raw_field("general.name", 8, &count.to_le_bytes())
            .build();
        refused("string length", &bytes, &["\"general.name\"", &number]);

        let text = [
            &8u32.to_le_bytes()[..],
            &1u64.to_le_bytes(),
            &count.to_le_bytes(),
        ]
        .concat();
        let bytes = GgufBuilder::new()
            .raw_field("tokenizer.ggml.tokens", 9, &text)
            .build();
        refused(
            "string in an array",
            &bytes,
            &["\"tokenizer.ggml.tokens\"", &number],
        );
    }
}

#[test]
fn broken_metadata_is_refused() {
    let one = 1u32.to_le_bytes();
    let field = |key: &str, value_type, bytes: &[u8]| {
        GgufBuilder::new().raw_field(key, value_type, bytes).build()
    };
    refused(
        "type of value",
        &field("a.key", 13, &one),
        &["type of metadata field \"a.key\"", "13"],
    );
    let elements = [&99u32.to_le_bytes()[..], &1u64.to_le_bytes(), &one].concat();
    refused(
        "type of elements",
        &field("a.key", 9, &elements),
        &["type of metadata field \"a.key\"", "99"],
    );
    let nested = [
        &9u32.to_le_bytes()[..],
        &1u64.to_le_bytes(),
        &4u32.to_le_bytes(),
        &0u64.to_le_bytes(),
    ]
    .concat();
    refused(
        "array of arrays",
        &field("a.key", 9, &nested),
        &["\"a.key\"", "arrays in an array"],
    );
    refused(
        "boolean",
        &field("a.key", 7, &[2]),
        &["\"a.key\"", "boolean 2", "expected 0 or 1"],
    );
    let wide = [
        &10u32.to_le_bytes()[..],
        &1u64.to_le_bytes(),
        &u64::MAX.to_le_bytes(),
    ]
    .concat();
    refused(
        "wide integer",
        &field("a.key", 9, &wide),
        &["\"a.key\"", "18446744073709551615"],
    );
    let invalid = [&2u64.to_le_bytes()[..], b"\xC3\x28"].concat();
    refused(
        "text",
        &field("a.key", 8, &invalid),
        &["\"a.key\"", "UTF-8"],
    );
    refused(
        "long key",
        &field(&"k".repeat(1 << 16), 4, &one),
        &["metadata key", "65536"],
    );

    let twice = valid()
        .field("llama.block_count", Value::Integer(3))
        .build();
    refused("key twice", &twice, &["\"llama.block_count\"", "twice"]);

    let mut bytes = field("key", 4, &one);
    bytes[4 + 4 + 8 + 8 + 8] = 0xFF;
    refused("key", &bytes, &["metadata key", "UTF-8"]);
}

#[test]
fn an_alignment_that_is_no_sane_power_of_two_is_refused() {
    for alignment in [0, 4, 33, 48, 1 << 17, 1 << 40] {
        let bytes = valid()
            .field("general.alignment", Value::Integer(alignment))
            .build();
        refused(
            "alignment",
            &bytes,
            &["general.alignment", &alignment.to_string(), "power of two"],
        );
    }
    let bytes = valid()
        .field("general.alignment", Value::String("32".into()))
        .build();
    refused(
        "alignment as text",
        &bytes,
        &["general.alignment", "a string", "integer"],
    );
}

#[test]
fn absurd_dimensions_are_refused() {
    let dimensions =
        |sizes: &[u64]| changed(|builder| builder.entries[0].dimensions = sizes.to_vec());
    refused(
        "no dimensions",
        &dimensions(&[]),
        &["\"norm\"", "0 dimensions", "1 to 4"],
    );
    refused(
        "five dimensions",
        &dimensions(&[1; 5]),
        &["\"norm\"", "5 dimensions", "1 to 4"],
    );
    refused("size 0", &dimensions(&[5, 0]), &["\"norm\"", "[0, 5]"]);
    refused(
        "product",
        &dimensions(&[1 << 40, 1 << 40]),
        &["\"norm\"", "1099511627776"],
    );
    refused(
        "bytes",
        &dimensions(&[u64::MAX]),
        &["\"norm\"", "18446744073709551615"],
    );
    refused(
        "more than the file",
        &dimensions(&[1 << 30]),
        &["\"norm\"", "4294967296 bytes", "truncated"],
    );
    let bytes = changed(|builder| builder.entries[1].dimensions = vec![33, 2]);
    refused(
        "row length",
        &bytes,
        &["\"matrix\"", "rows of 33", "multiple of 32", "Q8_0"],
    );
    let bytes = changed(|builder| builder.entries[0].dimensions = vec![1; usize::from(u16::MAX)]);
    refused(
        "a great many dimensions",
        &bytes,
        &["\"norm\"", "65535 dimensions"],
    );
}

#[test]
fn tensor_types_that_are_not_read_are_named() {
    let with_type = |id| changed(|builder| builder.entries[1].type_id = id);
    not_supported("Q8_K", &with_type(15), &["\"matrix\"", "Q8_K", "Q4_K"]);
    not_supported("I64", &with_type(27), &["\"matrix\"", "I64"]);
    not_supported(
        "withdrawn",
        &with_type(4),
        &["\"matrix\"", "unknown type 4"],
    );
    not_supported(
        "unknown",
        &with_type(12345),
        &["\"matrix\"", "unknown type 12345"],
    );
}

#[test]
fn tensors_outside_the_file_or_over_each_other_are_refused() {
    let offset = |value| changed(|builder| builder.entries[1].offset = value);
    refused(
        "unaligned",
        &offset(33),
        &["\"matrix\"", "offset 33", "multiple of 32"],
    );
    refused(
        "outside",
        &offset(64),
        &["\"matrix\"", "offset 64", "68 bytes", "ends at offset 100"],
    );
    refused(
        "far outside",
        &offset(1 << 62),
        &["\"matrix\"", "4611686018427387904"],
    );
    refused(
        "overflow",
        &offset(u64::MAX - 31),
        &["\"matrix\"", "18446744073709551584"],
    );
    refused(
        "overlap",
        &offset(0),
        &["\"norm\"", "\"matrix\"", "overlap"],
    );
}

#[test]
fn tensor_names_are_short_unique_and_text() {
    let bytes = changed(|builder| builder.entries[1].name = "norm".into());
    refused("twice", &bytes, &["\"norm\"", "twice"]);
    let bytes = changed(|builder| builder.entries[0].name = "n".repeat(65));
    refused(
        "long name",
        &bytes,
        &["tensor name", "65 bytes", "at most 64"],
    );
    let bytes = valid().build();
    let place = bytes
        .windows(12)
        .position(|window| window == string("norm"))
        .unwrap();
    let mut bytes = bytes;
    bytes[place + 8] = 0xFF;
    refused("name", &bytes, &["tensor name", "UTF-8"]);
}

#[test]
fn a_message_shows_control_characters_escaped() {
    let bytes = changed(|builder| {
        builder.entries[0].name = "\x1b[2J\n".into();
        builder.entries[0].dimensions.clear();
    });
    refused("escape sequence", &bytes, &["\\u{1b}[2J\\n"]);
}

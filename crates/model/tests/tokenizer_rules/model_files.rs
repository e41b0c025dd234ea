//! `tokenizer.model` with the files next to it.

use serde_json::json;
use triad_model::ErrorKind;
use triad_model::tokenizer::Tokenizer;

/// Returns a field of a Protocol Buffers message: an integer, or bytes.
fn field(number: u8, value: Result<u8, &[u8]>) -> Vec<u8> {
    match value {
        Ok(integer) => vec![number << 3, integer],
        Err(bytes) => [&[number << 3 | 2, bytes.len() as u8], bytes].concat(),
    }
}

fn piece(text: &str, kind: u8) -> Vec<u8> {
    field(
        1,
        Err(&[field(1, Err(text.as_bytes())), field(3, Ok(kind))].concat()),
    )
}

/// Returns the tokenizer of a folder with these files.
fn of_files(model: &[u8], files: &[(&str, serde_json::Value)]) -> triad_model::Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.model"), model).unwrap();
    let mut config = None;
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        config = Some(content)
            .filter(|_| *name == "tokenizer_config.json")
            .or(config);
    }
    Tokenizer::from_folder(folder.path(), config, &[])
}

/// Returns a small BPE model with further fields.
fn small_model(more: &[u8]) -> Vec<u8> {
    let pieces = [
        ("<unk>", 2),
        ("<s>", 3),
        ("</s>", 3),
        ("▁", 1),
        ("a", 1),
        ("▁a", 1),
    ];
    let mut model: Vec<u8> = pieces
        .iter()
        .flat_map(|&(text, kind)| piece(text, kind))
        .collect();
    model.extend(field(2, Err(&field(3, Ok(2)))));
    model.extend(more);
    model
}

#[test]
fn what_sentence_piece_does_otherwise_is_refused_with_the_field() {
    let trainer = |number: u8, value: u8| field(2, Err(&[number << 3, value]));
    // Numbers from 16 on have two bytes.
    let long = |number: u16, value: u8| {
        field(
            2,
            Err(&[(number << 3) as u8 | 0x80, (number >> 4) as u8, value]),
        )
    };
    let normalizer = |number: u8, value: u8| field(3, Err(&field(number, Ok(value))));
    for (more, kind, words) in [
        (
            trainer(3, 4),
            ErrorKind::Unsupported,
            "trainer_spec.model_type` is 4 (CHAR)",
        ),
        (
            long(24, 1),
            ErrorKind::Unsupported,
            "treat_whitespace_as_suffix",
        ),
        (
            normalizer(5, 0),
            ErrorKind::Unsupported,
            "escape_whitespaces",
        ),
        (
            field(5, Err(&field(2, Err(b"abc")))),
            ErrorKind::Unsupported,
            "denormalizer_spec",
        ),
        (
            field(3, Err(&field(2, Err(b"abc")))),
            ErrorKind::Malformed,
            "precompiled_charsmap",
        ),
        (long(35, 1), ErrorKind::Malformed, "byte_fallback"),
        (piece("<0x00>", 6), ErrorKind::Malformed, "byte_fallback"),
        (piece("x", 6), ErrorKind::Malformed, "`pieces`[6]"),
        (piece("x", 5), ErrorKind::Unsupported, "UNUSED"),
        (piece("x", 7), ErrorKind::Malformed, "has the type 7"),
        (piece("", 1), ErrorKind::Malformed, "no text"),
        (piece("a", 1), ErrorKind::Malformed, "twice"),
        (piece("x", 2), ErrorKind::Malformed, "second UNKNOWN"),
        (
            [trainer(3, 1), piece("x", 4)].concat(),
            ErrorKind::Unsupported,
            "USER_DEFINED",
        ),
        (vec![0x0A, 0x7F], ErrorKind::Malformed, "cut off"),
    ] {
        let error = of_files(&small_model(&more), &[]).err().expect(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("tokenizer.model"), "{error}");
    }
    assert!(of_files(&[], &[]).is_err());
    of_files(&small_model(&[]), &[]).unwrap();
}

#[test]
fn what_the_files_next_to_a_tokenizer_model_state_wrongly_is_an_error_that_names_them() {
    const CONFIG: &str = "tokenizer_config.json";
    for (file, content, words) in [
        (
            CONFIG,
            json!({"tokenizer_class": "T5Tokenizer"}),
            "T5Tokenizer",
        ),
        (CONFIG, json!({"legacy": false}), "extra spaces"),
        (
            CONFIG,
            json!({"add_prefix_space": false}),
            "add_prefix_space",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"x": {"content": "b"}}}),
            "\"x\"",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"3": {"content": "b"}}}),
            "which is \"▁\"",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"900000": {"content": "b"}}}),
            "900000",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"6": {"content": ""}}}),
            "with a text",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"6": {"content": "b", "single_word": true}}}),
            "single_word",
        ),
        (CONFIG, json!({"pad_token": "[PAD]"}), "[PAD]"),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"6": {"content": "b".repeat(600)}}}),
            "`pieces`[6] has 600 bytes, expected at most 512",
        ),
        (
            CONFIG,
            json!({"additional_special_tokens": ["b".repeat(60_000)]}),
            "is neither a piece nor an added token",
        ),
        ("added_tokens.json", json!({"b": -1}), "an id"),
        ("added_tokens.json", json!({"b": 6, "c": 6}), "only token"),
        ("added_tokens.json", json!([1]), "expected an object"),
        (
            "special_tokens_map.json",
            json!({"unk_token": 3}),
            "unk_token",
        ),
    ] {
        let error = of_files(&small_model(&[]), &[(file, content)])
            .err()
            .expect(words);
        assert!(error.to_string().contains(words), "{error}");
    }
}

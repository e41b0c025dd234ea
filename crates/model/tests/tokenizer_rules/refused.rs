//! Files that are refused, by the file and the field.

use serde_json::json;
use triad_model::ErrorKind;
use triad_model::gguf::{Metadata, Value};
use triad_model::tokenizer::Tokenizer;

use super::{golden, metadata, string, with};

#[test]
fn wrong_metadata_is_an_error_that_names_the_field() {
    let size = |file| with(file, &[]).unwrap().vocab_size();
    let strings = |texts: &[&str]| Value::Strings(texts.iter().map(|&text| text.into()).collect());
    let cases: [(&str, &str, Value, ErrorKind); 19] = [
        ("bpe.gguf", "model", string("rwkv"), ErrorKind::Unsupported),
        ("bpe.gguf", "pre", string("klingon"), ErrorKind::Unsupported),
        ("bpe.gguf", "tokens", strings(&[]), ErrorKind::Malformed),
        (
            "bpe.gguf",
            "tokens",
            Value::Integer(1),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "token_type",
            Value::Integers(vec![1; 3]),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "token_type",
            Value::Integers(vec![99; size("bpe.gguf")]),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "merges",
            strings(&["a b", "ab"]),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "merges",
            strings(&["a b c"]),
            ErrorKind::Malformed,
        ),
        ("bpe.gguf", "merges", strings(&[" a"]), ErrorKind::Malformed),
        (
            "bpe.gguf",
            "merges",
            strings(&["a 龘"]),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "eos_token_id",
            Value::Integer(1_000_000),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "bos_token_id",
            Value::Integer(1 << 40),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "eot_token_id",
            Value::Integer(-1),
            ErrorKind::Malformed,
        ),
        (
            "bpe.gguf",
            "add_bos_token",
            Value::Integer(1),
            ErrorKind::Malformed,
        ),
        (
            "spm.gguf",
            "scores",
            Value::Floats(vec![0.0; 3]),
            ErrorKind::Malformed,
        ),
        (
            "spm.gguf",
            "scores",
            Value::Floats(vec![f32::NAN; size("spm.gguf")]),
            ErrorKind::Malformed,
        ),
        ("spm.gguf", "scores", string("high"), ErrorKind::Malformed),
        (
            "spm.gguf",
            "add_space_prefix",
            string("yes"),
            ErrorKind::Malformed,
        ),
        (
            "unigram.gguf",
            "precompiled_charsmap",
            Value::Integers(vec![1, 2]),
            ErrorKind::Malformed,
        ),
    ];
    for (file, name, value, kind) in cases {
        let field = format!("tokenizer.ggml.{name}");
        let error = with(file, &[(&field, value.clone())])
            .err()
            .unwrap_or_else(|| panic!("{field} = {value:?}"));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(&field), "{error}");
    }
}

#[test]
fn a_missing_field_is_an_error_that_names_it() {
    for (file, fields) in [
        ("bpe.gguf", ["model", "tokens", "merges", "pre"]),
        ("spm.gguf", ["model", "tokens", "scores", "token_type"]),
    ] {
        for name in fields {
            let field = format!("tokenizer.ggml.{name}");
            let mut rest = Metadata::default();
            for (key, value) in metadata(file).iter().filter(|(key, _)| *key != field) {
                rest.insert(key, value.clone());
            }
            let error = Tokenizer::from_gguf(&rest).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
            assert!(error.to_string().contains(&field), "{error}");
        }
    }
}

#[test]
fn a_token_that_occurs_twice_is_an_error() {
    let mut tokens = metadata("bpe.gguf")
        .strings("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .to_vec();
    tokens[5] = tokens[4].clone();
    let error = with(
        "bpe.gguf",
        &[("tokenizer.ggml.tokens", Value::Strings(tokens))],
    )
    .err()
    .unwrap();
    assert!(
        error.to_string().contains("twice, as tokens 4 and 5"),
        "{error}"
    );
}

#[test]
fn a_token_that_texts_name_has_a_bounded_length_as_have_all_of_them() {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    let read = |file: &str, added: &[String], kind: i64| {
        let metadata = metadata(file);
        let mut tokens = metadata.strings(TOKENS).unwrap().unwrap().to_vec();
        let mut types = metadata.integers(TYPES).unwrap().unwrap().to_vec();
        tokens.extend_from_slice(added);
        types.resize(tokens.len(), kind);
        let mut fields = vec![
            (TOKENS, Value::Strings(tokens.clone())),
            (TYPES, Value::Integers(types)),
        ];
        if let Some(scores) = metadata.floats("tokenizer.ggml.scores").unwrap() {
            let mut scores = scores.to_vec();
            scores.resize(tokens.len(), 0.0);
            fields.push(("tokenizer.ggml.scores", Value::Floats(scores)));
        }
        let error = with(file, &fields).err().map(|error| error.to_string());
        (error, tokens.len())
    };
    for file in ["bpe.gguf", "spm.gguf"] {
        for kind in [3, 4] {
            let (error, count) = read(file, &["<unk>".repeat(120)], kind);
            let expected = format!(
                "`{TOKENS}`[{}] has 600 bytes, expected at most 512",
                count - 1
            );
            let error = error.expect("a token of 600 bytes is refused");
            assert!(error.contains(&expected), "{error}");
            let longest = "<unk>".repeat(102);
            assert_eq!(read(file, &[longest], kind).0, None);
        }
        let many: Vec<String> = (0..9000).map(|number| format!("{number:0500}")).collect();
        let (error, _) = read(file, &many, 3);
        assert!(error.unwrap().contains("exceeds the 4194304 bytes"));
        // A piece of text alone may be longer.
        if file == "bpe.gguf" {
            assert_eq!(read(file, &["a".repeat(1024)], 1).0, None);
            let error = read(file, &["a".repeat(1025)], 1).0.unwrap();
            assert!(
                error.contains("has 1025 bytes, expected at most 1024"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_wrong_folder_is_an_error_that_names_the_file() {
    let valid = std::fs::read_to_string(golden("spm/tokenizer.json")).unwrap();
    let wordpiece = r#"{"model": {"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]",
        "continuing_subword_prefix": "\#\#", "max_input_chars_per_word": 9}}"#;
    let huge_id = r#"{"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}"#;
    let decoder = r#"{"decoder": {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    for (file, config, kind, words) in [
        ("{", json!({}), ErrorKind::Malformed, "tokenizers"),
        (
            r#"{"model": 1}"#,
            json!({}),
            ErrorKind::Malformed,
            "tokenizers",
        ),
        (
            &wordpiece.replace("\\#", "#"),
            json!({}),
            ErrorKind::Unsupported,
            "model.type",
        ),
        (huge_id, json!({}), ErrorKind::Malformed, "4294967295"),
        (decoder, json!({}), ErrorKind::Unsupported, "decoder"),
        (
            &valid,
            json!({"bos_token": {"content": "<s>"}}),
            ErrorKind::Malformed,
            "bos_token",
        ),
        (
            &valid,
            json!({"eos_token": 3}),
            ErrorKind::Malformed,
            "eos_token",
        ),
        (
            &valid,
            json!({"add_bos_token": "yes"}),
            ErrorKind::Malformed,
            "add_bos_token",
        ),
        (
            &valid,
            json!({"add_bos_token": true}),
            ErrorKind::Missing,
            "add_bos_token",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), file).unwrap();
        let error = Tokenizer::from_folder(folder.path(), Some(&config), &[])
            .err()
            .expect(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(
            error.path(),
            Some(folder.path().join("tokenizer.json").as_path())
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_folder(folder.path(), None, &[])
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Missing);
    let error = Tokenizer::from_folder(&golden("spm"), None, &[1_000_000])
        .err()
        .unwrap();
    assert!(error.to_string().contains("1000000"), "{error}");
}

#[test]
fn tokens_that_tokenizer_config_states_wrongly_are_an_error_that_names_them() {
    let wrong = |stated: serde_json::Value| {
        let config = json!({ "added_tokens_decoder": stated });
        let tokenizer = Tokenizer::from_folder(&golden("bpe-gpt-2"), Some(&config), &[]);
        tokenizer.err().unwrap().to_string()
    };
    let long = "x".repeat(513);
    for (stated, named) in [
        (json!([]), "`added_tokens_decoder` is not an object"),
        (
            json!({"x": {"content": "<x>"}}),
            "`added_tokens_decoder.x`: expected the id",
        ),
        (json!({"1007": {}}), "missing field `content`"),
        (json!({"1007": "<x>"}), "`added_tokens_decoder.1007`"),
        (
            json!({"1007": {"content": "<x>", "lstrip": 1}}),
            "expected a boolean",
        ),
        (json!({"1007": {"content": long}}), "at most 512 bytes"),
    ] {
        let error = wrong(stated);
        assert!(
            error.contains(named) && error.contains("tokenizer_config.json"),
            "{error}"
        );
    }
    // An id that differs from that of tokenizer.json is not read by `transformers` either.
    let config = json!({ "added_tokens_decoder": {"9": {"content": "</s>", "special": true}} });
    Tokenizer::from_folder(&golden("bpe-gpt-2"), Some(&config), &[]).unwrap();
}

//! The rules of every tokenizer, and its errors for invalid files.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;
use triad_model::ErrorKind;
use triad_model::gguf::{self, Metadata, Value};
use triad_model::tokenizer::{EncodeOptions, Encoded, TokenKind, Tokenizer, TokenizerKind};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/tokenizer")
        .join(name)
}

fn metadata(name: &str) -> Metadata {
    gguf::read(&std::fs::read(golden(name)).unwrap())
        .unwrap()
        .metadata
}

/// Returns the tokenizer of a golden vocabulary with some fields changed.
fn with(name: &str, fields: &[(&str, Value)]) -> triad_model::Result<Tokenizer> {
    let mut metadata = metadata(name);
    for (field, value) in fields {
        metadata.insert(*field, value.clone());
    }
    Tokenizer::from_gguf(&metadata)
}

fn byte_level() -> Tokenizer {
    with("bpe.gguf", &[]).unwrap()
}

fn sentence_piece() -> Tokenizer {
    with("spm.gguf", &[]).unwrap()
}

fn string(text: &str) -> Value {
    Value::String(text.into())
}

#[test]
fn a_text_of_more_tokens_than_are_wanted_is_not_encoded_to_its_end() {
    let spaces = " ".repeat(8_000_000);
    let words = "word ".repeat(100_000);
    for tokenizer in [byte_level(), sentence_piece()] {
        let unread = || panic!("encoding was started");
        let outcome = tokenizer
            .encode_within(&spaces, EncodeOptions::TEXT, 1000, &unread)
            .unwrap();
        assert!(
            matches!(outcome, Encoded::TooMany(least) if least > 1000),
            "{outcome:?}"
        );
        let looks = std::cell::Cell::new(0);
        let count = || {
            looks.set(looks.get() + 1);
            false
        };
        let outcome = tokenizer
            .encode_within(&words[..1100], EncodeOptions::TEXT, 100, &count)
            .unwrap();
        assert!(
            matches!(outcome, Encoded::TooMany(101..120)) && looks.get() < 120,
            "{outcome:?} {}",
            looks.get()
        );
        let whole = tokenizer.encode(&words, EncodeOptions::TEXT).unwrap();
        let most = whole.len();
        assert_eq!(
            tokenizer
                .encode_within(&words, EncodeOptions::TEXT, most, &count)
                .unwrap(),
            Encoded::Whole(whole)
        );
    }
    let folder = Tokenizer::from_folder(&golden("bpe-gpt-2"), None, &[]).unwrap();
    let outcome = folder
        .encode_within(&words, EncodeOptions::TEXT, 100, &|| false)
        .unwrap();
    assert!(matches!(outcome, Encoded::TooMany(101..)), "{outcome:?}");
}

#[test]
fn encoding_ends_when_it_is_no_longer_wanted_within_a_word_too() {
    let (word, words) = (" ".repeat(1_000_000), "word ".repeat(100_000));
    for tokenizer in [byte_level(), sentence_piece()] {
        for text in [&word, &words] {
            let looks = std::cell::Cell::new(0);
            let stop = || {
                looks.set(looks.get() + 1);
                looks.get() > 1
            };
            let outcome = tokenizer
                .encode_within(text, EncodeOptions::TEXT, usize::MAX, &stop)
                .unwrap();
            assert_eq!((outcome, looks.get()), (Encoded::Stopped, 2));
        }
    }
}

#[test]
fn names_of_control_tokens_are_text_unless_they_are_parsed() {
    let folder = Tokenizer::from_folder(&golden("bpe-gpt-2"), None, &[]).unwrap();
    for tokenizer in [byte_level(), sentence_piece(), folder] {
        let control = tokenizer.id("<|im_end|>").unwrap();
        assert_eq!(tokenizer.token_kind(control), TokenKind::Control);
        assert_eq!(
            tokenizer
                .encode("<|im_end|>", EncodeOptions::TEMPLATE)
                .unwrap(),
            [control]
        );
        let text = tokenizer
            .encode("a<|im_end|>", EncodeOptions::TEXT)
            .unwrap();
        assert!(!text.contains(&control));
        assert_eq!(tokenizer.decode(&text), "a<|im_end|>");
        assert_eq!(tokenizer.decode(&[control]), "");
    }
}

#[test]
fn a_user_defined_token_is_one_token_wherever_it_occurs() {
    let folder = Tokenizer::from_folder(&golden("bpe-gpt-2"), None, &[]).unwrap();
    for tokenizer in [byte_level(), sentence_piece(), folder] {
        let token = tokenizer.id("<tool>").unwrap();
        for special in [EncodeOptions::TEXT, EncodeOptions::TEMPLATE] {
            assert!(
                tokenizer
                    .encode("a<tool>b", special)
                    .unwrap()
                    .contains(&token)
            );
        }
        assert_eq!(tokenizer.decode(&[token]), "<tool>");
    }
}

#[test]
fn of_two_markers_at_one_place_the_longest_counts() {
    let mut metadata = metadata("bpe.gguf");
    let mut tokens = metadata
        .strings("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .to_vec();
    let mut types = metadata
        .integers("tokenizer.ggml.token_type")
        .unwrap()
        .unwrap()
        .to_vec();
    let longest = tokens.len() as u32;
    tokens.push("<tool>!".into());
    types.push(4);
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.insert("tokenizer.ggml.token_type", Value::Integers(types));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(
        tokenizer.encode("<tool>!", EncodeOptions::TEXT).unwrap(),
        [longest]
    );
}

#[test]
fn bos_is_added_to_raw_prompts_by_the_rule_of_the_file_or_of_the_kind() {
    let begins_with_bos = |tokenizer: &Tokenizer| {
        let bos = tokenizer.bos().unwrap();
        assert!(
            !tokenizer
                .encode("a", EncodeOptions::TEMPLATE)
                .unwrap()
                .contains(&bos)
        );
        let begins = tokenizer.encode("a", EncodeOptions::TEXT).unwrap()[0] == bos;
        assert_eq!(begins, tokenizer.adds_bos());
        begins
    };
    let key = "tokenizer.ggml.add_bos_token";
    let llama3 = string("llama-bpe");
    assert!(!begins_with_bos(&byte_level()));
    assert!(begins_with_bos(&sentence_piece()));
    assert!(begins_with_bos(
        &with("bpe.gguf", &[("tokenizer.ggml.pre", llama3)]).unwrap()
    ));
    assert!(begins_with_bos(
        &with("bpe.gguf", &[(key, Value::Bool(true))]).unwrap()
    ));
    assert!(!begins_with_bos(
        &with("spm.gguf", &[(key, Value::Bool(false))]).unwrap()
    ));

    let with_eos = with(
        "spm.gguf",
        &[("tokenizer.ggml.add_eos_token", Value::Bool(true))],
    )
    .unwrap();
    assert_eq!(
        with_eos
            .encode("a", EncodeOptions::TEXT)
            .unwrap()
            .last()
            .copied(),
        with_eos.eos()
    );
}

#[test]
fn tokenizer_config_overrules_the_post_processor() {
    let encode = |config| {
        let tokenizer = Tokenizer::from_folder(&golden("spm"), Some(&config), &[]).unwrap();
        tokenizer.encode("", EncodeOptions::TEXT).unwrap()
    };
    let tokens = json!({"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false}});
    let flags = |bos: bool, eos: bool| {
        let mut config = tokens.clone();
        config["add_bos_token"] = bos.into();
        config["add_eos_token"] = eos.into();
        encode(config)
    };
    assert!(encode(tokens.clone()).is_empty());
    assert_eq!(flags(true, false), [1]);
    assert_eq!(flags(true, true), [1, 2]);
    assert!(flags(false, false).is_empty());
}

#[test]
fn end_tokens_are_those_stated_and_those_with_well_known_names() {
    let tokenizer = byte_level();
    let ends = [
        tokenizer.eos().unwrap(),
        tokenizer.id("<|im_end|>").unwrap(),
    ];
    assert_eq!(tokenizer.end_tokens(), ends);
    let stated = with(
        "bpe.gguf",
        &[("tokenizer.ggml.eot_token_id", Value::Integer(7))],
    )
    .unwrap();
    assert_eq!(stated.end_tokens(), [&[7], &ends[..]].concat());
    let folder = Tokenizer::from_folder(&golden("bpe-gpt-2"), None, &[9]).unwrap();
    assert_eq!(folder.end_tokens(), [9, ends[1]]);
}

#[test]
fn kinds_are_distinguished() {
    assert_eq!(byte_level().kind(), TokenizerKind::ByteLevelBpe);
    assert_eq!(sentence_piece().kind(), TokenizerKind::SentencePieceBpe);
    assert_eq!(
        with("unigram.gguf", &[]).unwrap().kind(),
        TokenizerKind::Unigram
    );
    for (folder, kind) in [
        ("bpe-gpt-2", TokenizerKind::ByteLevelBpe),
        ("spm", TokenizerKind::SentencePieceBpe),
        ("unigram", TokenizerKind::Unigram),
    ] {
        assert_eq!(
            Tokenizer::from_folder(&golden(folder), None, &[])
                .unwrap()
                .kind(),
            kind
        );
    }
}

#[test]
fn an_id_without_a_piece_has_no_text() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let beyond = tokenizer.vocab_size() as u32;
        assert_eq!(tokenizer.piece(beyond), None);
        assert_eq!(tokenizer.decode(&[beyond, u32::MAX]), "");
    }
    let tokenizer = byte_level();
    let padding = (0..tokenizer.vocab_size() as u32)
        .find(|&id| tokenizer.token_kind(id) == TokenKind::Unused)
        .unwrap();
    assert_eq!(tokenizer.piece(padding), Some("[PAD0]"));
    assert_eq!(tokenizer.decode(&[padding]), "");
    assert!(
        tokenizer
            .encode("[PAD0]", EncodeOptions::TEMPLATE)
            .unwrap()
            .len()
            > 1
    );
}

#[test]
fn a_character_of_several_tokens_comes_out_whole() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let text = "a👩‍🚀é𝔘 ";
        let tokens = tokenizer.encode(text, EncodeOptions::TEMPLATE).unwrap();
        assert!(tokens.len() > text.chars().count());
        let mut stream = tokenizer.stream(&[]);
        let parts: Vec<String> = tokens
            .iter()
            .filter_map(|&token| stream.push(token))
            .collect();
        assert!(
            parts
                .iter()
                .all(|part| !part.is_empty() && !part.contains('\u{FFFD}'))
        );
        assert_eq!(parts.concat() + &stream.finish(), text);
    }
}

#[test]
fn a_character_that_never_ends_is_replaced_at_the_end() {
    let tokenizer = sentence_piece();
    let byte = |byte: u8| tokenizer.id(&format!("<0x{byte:02X}>")).unwrap();
    let mut stream = tokenizer.stream(&[]);
    assert_eq!(stream.push(byte(0xF0)), None);
    assert_eq!(stream.push(byte(0x9F)), None);
    assert_eq!(stream.finish(), "\u{FFFD}");
    // Bytes that can't become a character are replaced as soon as that is known.
    let mut stream = tokenizer.stream(&[]);
    assert_eq!(stream.push(byte(0xF0)), None);
    assert_eq!(stream.push(byte(b'a')).as_deref(), Some("\u{FFFD}a"));
}

#[test]
fn the_space_before_a_text_is_dropped_and_one_between_words_is_not() {
    let tokenizer = sentence_piece();
    let encode = |text| tokenizer.encode(text, EncodeOptions::TEMPLATE).unwrap();
    let first = |prompt: &[u32], token| tokenizer.stream(prompt).push(token).unwrap();
    let the = encode("the")[0];
    assert!(tokenizer.piece(the).unwrap().starts_with('▁'));
    assert!(!first(&[], the).starts_with(' '));
    assert!(!first(&encode("<|im_start|>"), the).starts_with(' '));
    assert!(first(&encode("of"), the).starts_with(' '));
    assert_eq!(tokenizer.decode(&encode("  two")), "  two");
}

#[test]
fn white_space_after_a_control_token_of_phi3_is_dropped() {
    let phi3 = with("spm.gguf", &[("general.architecture", string("phi3"))]).unwrap();
    let encode = |text| phi3.encode(text, EncodeOptions::TEMPLATE).unwrap();
    assert_eq!(
        encode("<|im_start|>\n <|im_end|> a"),
        encode("<|im_start|><|im_end|>a")
    );
    let llama = sentence_piece();
    assert_ne!(
        llama
            .encode("<|im_end|>\na", EncodeOptions::TEMPLATE)
            .unwrap(),
        encode("<|im_end|>\na")
    );
}

#[test]
fn files_from_before_the_pre_tokenizer_was_named_are_read_where_the_family_decides_it() {
    let without_pre = |architecture: &str| {
        let mut fields = Metadata::default();
        for (key, value) in metadata("bpe.gguf")
            .iter()
            .filter(|(key, _)| *key != "tokenizer.ggml.pre")
        {
            fields.insert(key, value.clone());
        }
        fields.insert("general.architecture", string(architecture));
        Tokenizer::from_gguf(&fields)
    };
    let digits = without_pre("qwen2")
        .unwrap()
        .encode("12", EncodeOptions::TEXT)
        .unwrap();
    assert_eq!(digits.len(), 2);
    assert!(without_pre("phi2").is_ok());
    let error = without_pre("llama").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(
        error.to_string().contains("`tokenizer.ggml.pre`"),
        "{error}"
    );
}

#[test]
fn the_pre_tokenizer_states_whether_a_separator_is_between_two_texts() {
    let middle = |pre: &str, fields: &[(&str, Value)]| {
        let mut all = vec![
            ("tokenizer.ggml.pre", string(pre)),
            ("tokenizer.ggml.seperator_token_id", Value::Integer(5)),
            ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
        ];
        all.extend_from_slice(fields);
        let tokenizer = with("bpe.gguf", &all).unwrap();
        tokenizer.pair().map(|pair| pair.middle.clone())
    };
    for pre in ["roberta-bpe", "jina-v1-en", "jina-v2-code"] {
        assert_eq!(middle(pre, &[]), Some(vec![5]), "{pre}");
        let stated = [("tokenizer.ggml.add_sep_token", Value::Bool(false))];
        assert_eq!(middle(pre, &stated), None, "{pre}");
    }
    assert_eq!(middle("gpt-2", &[]), None);
}

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
            let (error, count) = read(file, &["<unk>".repeat(12_000)], kind);
            let expected = format!(
                "`{TOKENS}`[{}] has 60000 bytes, expected at most 512",
                count - 1
            );
            let error = error.expect("a token of 60 KB is refused");
            assert!(error.contains(&expected), "{error}");
            let longest = "<unk>".repeat(102);
            assert_eq!(read(file, &[longest], kind).0, None);
        }
        let many: Vec<String> = (0..9000).map(|number| format!("{number:0500}")).collect();
        let (error, _) = read(file, &many, 3);
        assert!(error.unwrap().contains("exceeds the 4194304 bytes"));
        // A piece of text alone may be long.
        if file == "bpe.gguf" {
            assert_eq!(read(file, &["a".repeat(60_000)], 1).0, None);
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

/// `tests/golden/tokenizer/stated.py` wrote the ids of `transformers`.
#[test]
fn what_tokenizer_config_states_is_followed_as_by_transformers() {
    let rows = std::fs::read_to_string(golden("stated.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&rows).unwrap();
    assert_eq!(rows.len(), 16);
    for row in &rows {
        let config = Some(&row["config"]);
        let tokenizer = Tokenizer::from_folder(&golden("bpe-gpt-2"), config, &[]).unwrap();
        for (text, ids) in row["texts"]
            .as_array()
            .unwrap()
            .iter()
            .zip(row["ids"].as_array().unwrap())
        {
            let text = text.as_str().unwrap();
            let encoded = tokenizer.encode(text, EncodeOptions::TEMPLATE).unwrap();
            assert_eq!(json!(encoded), *ids, "{}: {text:?}", row["name"]);
        }
    }
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

#[test]
fn truncation_in_tokenizer_json_does_not_cut_a_prompt() {
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden("bpe-gpt-2/tokenizer.json")).unwrap())
            .unwrap();
    file["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path(), None, &[]).unwrap();
    let text = "one two three four five six seven";
    assert_eq!(
        tokenizer.decode(&tokenizer.encode(text, EncodeOptions::TEXT).unwrap()),
        text
    );
}

#[test]
fn a_character_that_cannot_be_spelled_is_unknown_or_an_error() {
    let text = "\u{10FFFF}\u{10FFFF}";
    let unknown = with("spm-unknown.gguf", &[]).unwrap();
    let tokens = unknown.encode(text, EncodeOptions::TEMPLATE).unwrap();
    assert_eq!(
        tokens
            .iter()
            .filter(|&&token| unknown.token_kind(token) == TokenKind::Unknown)
            .count(),
        1
    );

    let mut types = metadata("spm-unknown.gguf")
        .integers("tokenizer.ggml.token_type")
        .unwrap()
        .unwrap()
        .to_vec();
    types[0] = 1;
    let mut fields = Metadata::default();
    for (key, value) in metadata("spm-unknown.gguf")
        .iter()
        .filter(|(key, _)| !key.ends_with("unknown_token_id"))
    {
        fields.insert(key, value.clone());
    }
    fields.insert("tokenizer.ggml.token_type", Value::Integers(types));
    let error = Tokenizer::from_gguf(&fields)
        .unwrap()
        .encode(text, EncodeOptions::TEMPLATE)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tokenizer);
}

#[test]
fn broken_utf8_is_replaced_as_python_does() {
    let tokenizer = byte_level();
    for (bytes, text) in [
        (&b"a\xffb"[..], "a\u{FFFD}b"),
        (b"\xf0\x9f\x98", "\u{FFFD}"),
        (b"\xed\xa0\x80", "\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xe2\x28\xa1", "\u{FFFD}(\u{FFFD}"),
    ] {
        let tokens = tokenizer.encode_bytes(bytes, EncodeOptions::TEXT).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
    }
}

proptest! {
    #[test]
    fn encoding_and_decoding_a_text_gives_the_text(text in ".*|[ \\t\\n\\ra-c0-9'<>|\\p{M}\\p{Emoji}]{0,40}") {
        for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o", "default"] {
            let tokenizer = with("bpe.gguf", &[("tokenizer.ggml.pre", string(pre))]).unwrap();
            let tokens = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens), &text[..], "{}", pre);
        }
        // SentencePiece has one spelling for `▁` and space.
        let text = text.replace('▁', " ");
        for name in ["spm.gguf", "spm-no-prefix.gguf", "unigram.gguf"] {
            let tokenizer = with(name, &[]).unwrap();
            let tokens = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
            // A user-defined token is followed by a space, as the start of the text is.
            if tokens.iter().all(|&token| tokenizer.token_kind(token) != TokenKind::UserDefined) {
                prop_assert_eq!(tokenizer.decode(&tokens), &text[..], "{}", name);
            }
        }
    }

    #[test]
    fn tokens_one_by_one_decode_as_all_at_once(
        tokens in prop::collection::vec(0..1010u32, 0..60),
        bytes in prop::collection::vec(3..262u32, 0..20),
    ) {
        for tokenizer in [byte_level(), sentence_piece()] {
            for tokens in [&tokens, &bytes] {
                let mut stream = tokenizer.stream(&[]);
                let mut text = String::new();
                for &token in tokens {
                    if let Some(part) = stream.push(token) {
                        prop_assert!(!part.is_empty());
                        text.push_str(&part);
                    }
                }
                text.push_str(&stream.finish());
                prop_assert_eq!(text, tokenizer.decode(tokens));
            }
        }
    }
}

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
            json!({"added_tokens_decoder": {"6": {"content": "b".repeat(60_000)}}}),
            "`pieces`[6] has 60000 bytes, expected at most 512",
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

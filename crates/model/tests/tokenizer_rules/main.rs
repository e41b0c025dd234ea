//! The rules of every tokenizer, and its errors for invalid files.

mod model_files;
mod refused;
mod texts;

use std::path::{Path, PathBuf};

use serde_json::json;
use triad_model::gguf::{Metadata, Value};
use triad_model::tokenizer::{EncodeOptions, TokenKind, Tokenizer, TokenizerKind};
use triad_model::{ErrorKind, gguf};

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

//! A `tokenizer.json` on which the `tokenizers` library would panic or end the process must give an error that names
//! the field.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use triad_model::ErrorKind;
use triad_model::tokenizer::{EncodeOptions, Tokenizer};

use super::assert_refused;

/// Returns the file of a golden tokenizer.
fn golden(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/tokenizer")
        .join(name);
    serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
}

fn open(file: &Value) -> triad_model::Result<Tokenizer> {
    open_bytes(file.to_string().as_bytes())
}

fn open_bytes(file: &[u8]) -> triad_model::Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file).unwrap();
    Tokenizer::from_folder(folder.path(), None, &[])
}

/// Returns a golden tokenizer with another value at a place.
fn changed(name: &str, place: &str, value: Value) -> Value {
    let mut file = golden(name);
    *file.pointer_mut(place).unwrap() = value;
    file
}

/// Returns `inner` in `levels` nested sequences, each of which has the next one under `field`.
fn nested(levels: usize, field: &str, inner: Value) -> Value {
    (0..levels).fold(
        inner,
        |inner, _| json!({"type": "Sequence", field: [inner]}),
    )
}

/// Returns a map of SentencePiece in base64: a trie of `units`, with the stated `bytes`, and `texts`.
fn charsmap(bytes: u32, units: &[u32], texts: &str) -> Value {
    use base64::Engine as _;
    let units: Vec<u8> = [bytes]
        .iter()
        .chain(units)
        .flat_map(|unit| unit.to_le_bytes())
        .collect();
    let map = base64::engine::general_purpose::STANDARD.encode([&units, texts.as_bytes()].concat());
    json!({"type": "Precompiled", "precompiled_charsmap": map})
}

#[test]
fn what_the_library_panics_on_is_refused_by_the_name_of_its_field() {
    let template = |single: Value, tokens: Value| {
        let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]);
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
    };
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let wrap = |processors: Value| json!({"type": "Sequence", "processors": processors});
    let start = json!({"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}});
    let whole = template(json!([token("<s>"), text("A"), token("<s>")]), start);
    let same = json!({"type": "Sequence", "pretokenizers": [{"type": "FixedLength", "length": 0}]});
    let doubling = |step: Value| json!({"type": "Sequence", "normalizers": vec![step; 20]});
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let cases = [
        (
            "no base64",
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "?"}),
            "normalizer",
        ),
        (
            "a map without its trie",
            "/normalizer",
            charsmap(u32::MAX, &[], ""),
            "normalizer",
        ),
        (
            "a map whose trie is empty",
            "/normalizer",
            charsmap(0, &[], "a"),
            "normalizer",
        ),
        (
            "a map that is no text",
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAP8="}),
            "normalizer",
        ),
        (
            "a map of very long texts",
            "/normalizer",
            charsmap(0, &[], &"a".repeat(2000)),
            "normalizer",
        ),
        (
            "a text that doubles 20 times",
            "/normalizer",
            doubling(replace("a", "aa")),
            "normalizer",
        ),
        (
            "a prefix 20 times",
            "/normalizer",
            doubling(json!({"type": "Prepend", "prepend": "▁"})),
            "normalizer",
        ),
        (
            "bytes of bytes 20 times",
            "/normalizer",
            doubling(json!({"type": "ByteLevel"})),
            "normalizer",
        ),
        (
            "normalizers within each other",
            "/normalizer",
            nested(16, "normalizers", json!({"type": "NFC"})),
            "normalizer",
        ),
        (
            "pre-tokenizers within each other",
            "/pre_tokenizer",
            nested(16, "pretokenizers", json!({"type": "Whitespace"})),
            "pre_tokenizer",
        ),
        (
            "processors within each other",
            "/post_processor",
            nested(16, "processors", whole.clone()),
            "post_processor",
        ),
        (
            "decoders within each other",
            "/decoder",
            nested(16, "decoders", json!({"type": "Fuse"})),
            "decoder",
        ),
        (
            "words of no characters",
            "/pre_tokenizer",
            json!({"type": "FixedLength", "length": 0}),
            "pre_tokenizer",
        ),
        (
            "words of no characters in a sequence",
            "/pre_tokenizer",
            same,
            "pre_tokenizer",
        ),
        (
            "a template of a second text",
            "/post_processor",
            template(json!([text("B")]), json!({})),
            "post_processor",
        ),
        (
            "a template of an unknown token",
            "/post_processor",
            template(json!([token("<x>"), text("A")]), json!({})),
            "<x>",
        ),
        (
            "a template of two texts",
            "/post_processor",
            template(json!([text("A"), text("A")]), json!({})),
            "post_processor",
        ),
        (
            "two templates, one of the other",
            "/post_processor",
            wrap(json!([whole, whole])),
            "post_processor",
        ),
        (
            "a template with fewer texts than ids",
            "/post_processor",
            template(
                json!([token("<s>"), text("A")]),
                json!({"<s>": {"id": "<s>", "ids": [1, 2], "tokens": ["<s>"]}}),
            ),
            "post_processor",
        ),
        (
            "a template of many tokens",
            "/post_processor",
            template(
                json!([token("<s>"), text("A")]),
                json!({"<s>": {"id": "<s>", "ids": vec![1; 2000], "tokens": vec!["<s>"; 2000]}}),
            ),
            "post_processor",
        ),
        (
            "tokens left out by chance",
            "/model/dropout",
            json!(0.5),
            "model.dropout",
        ),
        (
            "a prefix within a character",
            "/model/continuing_subword_prefix",
            json!("##"),
            "model",
        ),
    ];
    for (case, place, value, field) in cases {
        let mut file = changed("spm", place, value);
        if place == "/model/continuing_subword_prefix" {
            file["model"]["vocab"] =
                json!({"a": 0, "é": 1, "aé": 2, "<s>": 3, "</s>": 4, "<unk>": 5});
            file["model"]["merges"] = json!([["a", "é"]]);
            file["model"]["continuing_subword_prefix"] = json!("#");
        }
        assert_refused(
            case,
            open(&file),
            ErrorKind::Malformed,
            &["tokenizer.json: ", field],
        );
    }
}

#[test]
fn pieces_that_the_library_recurses_on_are_bounded() {
    let mut file = golden("unigram");
    let vocab = file["model"]["vocab"].as_array_mut().unwrap();
    vocab.push(json!(["a".repeat(1 << 20), -1.0]));
    assert_refused(
        "a long piece",
        open(&file),
        ErrorKind::Malformed,
        &["tokenizer.json: ", "model.vocab", "1048576"],
    );
    let mut file = golden("spm");
    file["added_tokens"][0]["content"] = json!("a".repeat(1 << 20));
    assert_refused(
        "a long token",
        open(&file),
        ErrorKind::Malformed,
        &["tokenizer.json: ", "added_tokens"],
    );
}

#[test]
fn a_file_that_ends_within_its_decoder_is_malformed() {
    let file = golden("spm").to_string();
    let decoder = file.find("\"decoder\"").unwrap();
    for end in [decoder + 12, decoder + 20, decoder + 40] {
        assert_refused(
            "cut",
            open_bytes(&file.as_bytes()[..end]),
            ErrorKind::Malformed,
            &["tokenizer.json: "],
        );
    }
}

#[test]
fn a_text_on_which_the_library_panics_is_an_error_that_names_file_and_field() {
    // A map that refers to a text beyond those that it has.
    let unit =
        |label: u32, offset: u32, leaf: bool| (offset << 10) | (u32::from(leaf) << 8) | label;
    let mut trie = vec![0; 512];
    trie[0] = unit(0, 256, false);
    trie[256 ^ usize::from(b'b')] = unit(u32::from(b'b'), 1, true);
    trie[(256 ^ usize::from(b'b')) ^ 1] = 1000;
    let file = changed("unigram", "/normalizer", charsmap(4 * 512, &trie, "x\0"));
    let tokenizer = open(&file).unwrap();
    tokenizer.encode("a", EncodeOptions::TEXT).unwrap();
    for options in [EncodeOptions::TEXT, EncodeOptions::TEMPLATE] {
        let refused = tokenizer.encode("ab", options);
        assert_refused(
            "a text",
            refused,
            ErrorKind::Tokenizer,
            &["tokenizer.json: ", "field `normalizer`"],
        );
    }
    tokenizer.encode("a", EncodeOptions::TEXT).unwrap();
}

/// Generates values that files should not have.
fn odd() -> impl Strategy<Value = Value> {
    let step = |kind: &str, fields: Value| {
        let mut step = json!({"type": kind});
        step.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        step
    };
    let steps = vec![
        step("FixedLength", json!({"length": 0})),
        step("FixedLength", json!({"length": u64::MAX})),
        step(
            "Split",
            json!({"pattern": {"Regex": "(?=a|)"}, "behavior": "Isolated", "invert": true}),
        ),
        step(
            "Split",
            json!({"pattern": {"Regex": "(a*)*b(?<=x)"}, "behavior": "MergedWithNext", "invert": false}),
        ),
        step(
            "Replace",
            json!({"pattern": {"String": ""}, "content": "é"}),
        ),
        step("Replace", json!({"pattern": {"Regex": "."}, "content": ""})),
        step("Prepend", json!({"prepend": ""})),
        step(
            "Strip",
            json!({"content": "a", "start": u32::MAX, "stop": u32::MAX}),
        ),
        step("Strip", json!({"strip_left": true, "strip_right": true})),
        step(
            "Metaspace",
            json!({"replacement": "é", "prepend_scheme": "first", "split": true}),
        ),
        step(
            "ByteLevel",
            json!({"add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        step(
            "BertNormalizer",
            json!({"clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        ),
        step("Digits", json!({"individual_digits": true})),
        step("Punctuation", json!({"behavior": "Removed"})),
        step(
            "RobertaProcessing",
            json!({"sep": ["</s>", 7], "cls": ["<s>", u32::MAX], "trim_offsets": true, "add_prefix_space": true}),
        ),
        step("BertProcessing", json!({"sep": ["", 0], "cls": ["", 0]})),
        step("StripAccents", json!({})),
        step("Nmt", json!({})),
        step("UnicodeScripts", json!({})),
        step("WordPiece", json!({"prefix": "##", "cleanup": true})),
    ];
    let plain = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e308),
        json!(0.5),
        json!(""),
        json!("é"),
        json!("a"),
        json!("▁"),
        json!("<s>"),
        json!("##"),
        json!("aé"),
        json!([]),
        json!({}),
        json!([["a", 1e308]]),
        json!({"a": u32::MAX, "b": 0}),
        json!([["a", "b"], ["b", "a"]]),
        json!("a".repeat(600)),
    ];
    prop_oneof![
        proptest::sample::select(plain),
        proptest::sample::select(steps)
    ]
}

/// Collects the places of all values, but only some of those in large vocabularies.
fn places(value: &Value, place: &str, places: &mut Vec<String>) {
    places.push(place.to_owned());
    match value {
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .take(12)
                .for_each(|(index, value)| {
                    self::places(value, &format!("{place}/{index}"), places);
                });
        }
        Value::Object(fields) => fields.iter().take(12).for_each(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            self::places(value, &format!("{place}/{name}"), places);
        }),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn a_changed_tokenizer_never_panics(
        name in proptest::sample::select(vec!["bpe-gpt-2", "spm", "unigram"]),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), odd()), 1..4),
    ) {
        let mut file = golden(name);
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&file, "", &mut all);
            let place = place.get(&all[..]);
            if let Some(old) = file.pointer_mut(place).filter(|_| !place.is_empty()) {
                *old = value;
            }
        }
        if let Ok(tokenizer) = open(&file) {
            for text in ["", "a", " ab  é\u{301} \u{1f600}<s>x</s>\n12", "<unk>", "漢字 ﷺ İ"] {
                for options in [EncodeOptions::TEXT, EncodeOptions::TEMPLATE] {
                    if let Ok(tokens) = tokenizer.encode(text, options) {
                        tokenizer.decode(&tokens);
                    }
                }
            }
            tokenizer.decode(&[0, 1, 2, u32::MAX]);
        }
    }
}

#[test]
fn an_id_that_two_tokens_have_or_that_the_library_changes_is_refused() {
    let mut file = golden("bpe-gpt-2");
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    let taken = vocab["b"].clone();
    vocab["a"] = taken;
    assert_refused(
        "id twice",
        open(&file),
        ErrorKind::Malformed,
        &[
            "tokenizer.json: ",
            "`model.vocab` gives the id",
            "\"a\" and \"b\"",
        ],
    );
    // The library numbers added tokens that the model does not have.
    let mut file = golden("bpe-gpt-2");
    let added = file["added_tokens"].as_array().unwrap().clone();
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    added
        .iter()
        .for_each(|token| drop(vocab.remove(token["content"].as_str().unwrap())));
    open(&file).unwrap();
    file["added_tokens"].as_array_mut().unwrap().reverse();
    assert_refused(
        "added tokens out of order",
        open(&file),
        ErrorKind::Malformed,
        &["tokenizer.json: ", "`added_tokens[0].id` is"],
    );
}

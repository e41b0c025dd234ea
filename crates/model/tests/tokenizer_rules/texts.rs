//! From texts to tokens and back.

use proptest::prelude::*;
use serde_json::json;
use triad_model::ErrorKind;
use triad_model::gguf::{Metadata, Value};
use triad_model::tokenizer::{EncodeOptions, Encoded, TokenKind, Tokenizer};

use super::{byte_level, golden, metadata, sentence_piece, string, with};

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

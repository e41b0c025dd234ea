//! WordPiece of GGUF files (`bert`): encoded by the `tokenizers` crate, from the vocabulary and the rules that the file
//! states. The default rules are those of BERT's models without capital letters.

use serde_json::{Map, Value, json};

use super::config::Config;
use super::stated_tokens::OtherFiles;
use super::vocabulary::{CONTINUES_WORD, TOKEN_TYPE, TokenKind, VISIBLE_SPACE, check_count};
use super::{Tokenizer, from_folder};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;

/// The name of the vocabulary's kind in GGUF.
pub(super) const MODEL: &str = "bert";

const TOKENS: &str = "tokenizer.ggml.tokens";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";
/// Longer words are unknown.
const LONGEST_WORD: usize = 100;

/// Returns the tokenizer in the metadata of a GGUF file.
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer> {
    let missing = |field: &str| {
        Error::new(
            ErrorKind::Missing,
            format!("metadata field `{field}` is missing"),
        )
    };
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let tokens = metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    check_count(tokens.len(), &format!("metadata field `{TOKENS}`"))?;
    let types = metadata
        .integers(TOKEN_TYPE)?
        .ok_or_else(|| missing(TOKEN_TYPE))?;
    if types.len() != tokens.len() {
        return Err(malformed(format!(
            "metadata field `{TOKEN_TYPE}` has {} values for {} tokens",
            types.len(),
            tokens.len()
        )));
    }
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
    let lowercase = metadata.bool(LOWERCASE)?;
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    let mut is_unused = vec![false; tokens.len()];
    for (id, (token, number)) in tokens.iter().zip(types).enumerate() {
        let kind = TokenKind::of_gguf(id, *number)?;
        let piece = match token.strip_prefix(VISIBLE_SPACE) {
            _ if kind == TokenKind::Control => token.clone(),
            Some(word) => word.to_owned(),
            None => format!("{CONTINUES_WORD}{token}"),
        };
        match kind {
            // Rows of the embedding without a token, which converters fill up with names.
            TokenKind::Unused => {
                is_unused[id] = true;
                continue;
            }
            TokenKind::Control | TokenKind::UserDefined => added.push(json!({
                "id": id, "content": piece, "special": kind == TokenKind::Control, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false
            })),
            TokenKind::Normal => {
                let has_capital = token.bytes().any(|byte| byte.is_ascii_uppercase());
                if has_capital && lowercase != Some(false) {
                    return unsupported(format!(
                        "metadata field `{TOKENS}` has {token:?}: a vocabulary of WordPiece has capital letters only if \
                         field `{LOWERCASE}` is false"
                    ));
                }
            }
            TokenKind::Unknown | TokenKind::Byte => {
                return unsupported(format!(
                    "metadata field `{TOKEN_TYPE}`[{id}] is {number}, which WordPiece does not have: expected 1, 3, 4 \
                     or 5"
                ));
            }
        }
        if let Some(first) = vocabulary.insert(piece, json!(id)) {
            return Err(malformed(format!(
                "metadata field `{TOKENS}` has {token:?} twice, as tokens {first} and {id}"
            )));
        }
    }
    let special = |name: &str, fields: &[&str]| -> Result<(String, usize)> {
        for field in fields {
            let key = format!("tokenizer.ggml.{field}_token_id");
            let Some(id) = metadata.integer(&key)? else {
                continue;
            };
            let text = tokens.get(id).ok_or_else(|| {
                malformed(format!(
                    "metadata field `{key}` is {id}, but there are {} tokens",
                    tokens.len()
                ))
            })?;
            if is_unused[id] {
                return Err(malformed(format!(
                    "metadata field `{key}` is {id}, but field `{TOKEN_TYPE}` states that this token is unused"
                )));
            }
            return Ok((text.clone(), id));
        }
        let is_name = |&id: &usize| tokens[id] == name && !is_unused[id];
        let id = (0..tokens.len()).find(is_name);
        let id = id.ok_or_else(|| malformed(format!("metadata field `{TOKENS}` lacks {name}")))?;
        Ok((name.to_owned(), id))
    };
    let class = special("[CLS]", &["cls", "bos"])?;
    let separator = special("[SEP]", &["seperator", "eos"])?;
    let (unknown, _) = special("[UNK]", &["unknown"])?;
    let token = |(text, id): &(String, usize)| json!([text, id]);
    let whole = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            // Without a value, accents are stripped where letters become lower case.
            "strip_accents": metadata.bool(STRIP_ACCENTS)?, "lowercase": lowercase.unwrap_or(true)
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": token(&class), "sep": token(&separator)},
        "decoder": {"type": "WordPiece", "prefix": CONTINUES_WORD, "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": CONTINUES_WORD,
            "max_input_chars_per_word": LONGEST_WORD, "vocab": vocabulary
        }
    });
    let config = Config {
        value: &Value::Null,
    };
    from_folder::build(
        whole.to_string().as_bytes(),
        &config,
        OtherFiles::default(),
        &[],
    )
}

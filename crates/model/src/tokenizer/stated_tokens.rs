//! Rules of `tokenizer_config.json` that `transformers` prefers to those of `tokenizer.json`: tokens that it adds or that
//! have other rules, and the space before a text.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, PreTokenizerWrapper};

use super::bounds::{LONGEST_PIECE, MAX_ADDED};
use super::config::{CONFIG, Config};
use crate::error::{Error, ErrorKind, Result};

const FIELD: &str = "added_tokens_decoder";
/// The fields whose tokens are control tokens, whatever their rules state.
const CONTROLS: [&str; 9] = [
    "additional_special_tokens",
    "extra_special_tokens",
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The beginnings of the names of tokenizers whose space before a text every version of `transformers` takes from
/// `tokenizer_config.json`.
const WITH_PREFIX_SPACE: [&str; 2] = ["GPT2Tokenizer", "GPTNeoXTokenizer"];

/// A token, with the defaults of `transformers`.
#[derive(Deserialize)]
struct Stated {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl Stated {
    /// Returns the library's token.
    fn added(&self, special: bool) -> AddedToken {
        AddedToken::from(self.content.as_str(), special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!special))
    }
}

/// Adds the tokens that `config` states to `tokenizer`, in the order of their ids. New ones get the next ids, whichever
/// ids are stated, as in `transformers`. Of tokens that it has already, the rules are replaced, but for those of control
/// tokens, which the library keeps.
///
/// # Errors
/// If the field is malformed, or is longer than any in use.
pub(super) fn add(tokenizer: &mut tokenizers::Tokenizer, config: &Config<'_>) -> Result<()> {
    let stated = match &config.value[FIELD] {
        Value::Null => return Ok(()),
        Value::Object(stated) => stated,
        _ => return Err(Config::malformed(FIELD, "an object")),
    };
    let controls: HashSet<&str> = CONTROLS
        .iter()
        .flat_map(|field| texts(&config.value[*field]))
        .collect();
    let (mut tokens, mut bytes) = (BTreeMap::new(), 0);
    for (id, token) in stated {
        let wrong = |reason: String| {
            Error::new(
                ErrorKind::Malformed,
                format!("{CONFIG}: `{FIELD}.{id}`: {reason}"),
            )
        };
        let number: u32 = id
            .parse()
            .map_err(|_| wrong("expected the id of a token as the field's name".to_owned()))?;
        let token = Stated::deserialize(token).map_err(|error| wrong(error.to_string()))?;
        bytes += token.content.len();
        if token.content.len() > LONGEST_PIECE || bytes > MAX_ADDED {
            return Err(wrong(format!(
                "expected a text of at most {LONGEST_PIECE} bytes, and all of them {MAX_ADDED}"
            )));
        }
        tokens.insert(number, token);
    }
    let known = tokenizer.get_added_tokens_decoder();
    tokens.retain(|_, token| {
        let id = tokenizer.token_to_id(&token.content);
        id.and_then(|id| known.get(&id)) != Some(&token.added(token.special))
    });
    let tokens = tokens.values();
    let tokens =
        tokens.map(|token| token.added(token.special || controls.contains(token.content.as_str())));
    let tokens: Vec<_> = tokens.collect();
    // The library builds its automata at each call, as it does without a token.
    if !tokens.is_empty() {
        tokenizer.add_tokens(&tokens);
    }
    Ok(())
}

/// Returns the texts of tokens: one, a list, or those of an object by name, each as a text or as an object.
fn texts(value: &Value) -> Vec<&str> {
    fn text(value: &Value) -> Option<&str> {
        value.as_str().or(value["content"].as_str())
    }
    match value {
        Value::Array(tokens) => tokens.iter().filter_map(text).collect(),
        Value::Object(named) if !named.contains_key("content") => {
            named.values().filter_map(text).collect()
        }
        token => text(token).into_iter().collect(),
    }
}

/// Gives the pre-tokenizer of a byte-level tokenizer the rule of `config` for a space before a text.
///
/// # Errors
/// If the field is not a boolean.
pub(super) fn set_prefix_space(
    tokenizer: &mut tokenizers::Tokenizer,
    config: &Config<'_>,
) -> Result<()> {
    let class = config.value["tokenizer_class"].as_str().unwrap_or_default();
    if !WITH_PREFIX_SPACE.iter().any(|name| class.starts_with(name)) {
        return Ok(());
    }
    let stated = config.bool("add_prefix_space")?;
    let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer() else {
        return Ok(());
    };
    if let Some(adds) = stated.filter(|adds| *adds != bytes.add_prefix_space) {
        let bytes = bytes.add_prefix_space(adds);
        tokenizer.with_pre_tokenizer(Some(bytes));
    }
    Ok(())
}

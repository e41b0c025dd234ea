//! The tokens that the files of a folder add to those of `tokenizer.model`, as `transformers` reads them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::config::CONFIG;
use crate::error::{Error, ErrorKind, Result};
use crate::files;

pub(super) const ADDED: &str = "added_tokens.json";
pub(super) const SPECIAL: &str = "special_tokens_map.json";

/// Maximum bytes of a file; larger ones are refused unread.
const MAX_FILE: u64 = 1 << 24;
/// The fields of special tokens.
const SPECIAL_FIELDS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
];

/// A token that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) text: String,
    /// `None` for a token whose id only the vocabulary has.
    pub(super) id: Option<u32>,
    /// Whether it is a control token.
    pub(super) is_special: bool,
    /// Whether white space before and after it is dropped.
    pub(super) strips: (bool, bool),
}

/// The special tokens of a folder, and all tokens that texts name.
pub(super) struct AddedTokens {
    /// Texts of BOS, EOS and of the unknown token, each `None` if the files do not state it, `Some(None)` for `null`.
    special: Map<String, Value>,
    pub(super) tokens: Vec<AddedToken>,
}

impl AddedTokens {
    /// Reads the files of `folder`; `config` is `tokenizer_config.json`.
    pub(super) fn read(folder: &Path, config: &Value) -> Result<Self> {
        let mut special = Map::new();
        for field in SPECIAL_FIELDS.iter().chain(&["additional_special_tokens"]) {
            if let Some(value) = config.get(field) {
                special.insert((*field).into(), value.clone());
            }
        }
        let mut by_id = BTreeMap::new();
        match config.get("added_tokens_decoder") {
            Some(Value::Object(tokens)) => {
                for (id, token) in tokens {
                    let token = token_of(token, CONFIG, "added_tokens_decoder", false)?;
                    by_id.insert(parse_id(id, &token.text)?, token);
                }
            }
            Some(Value::Null) | None => {
                for (field, value) in object(folder, SPECIAL)? {
                    special.insert(field, value);
                }
                by_id = listed(folder, &special)?;
            }
            Some(_) => return Err(wrong(CONFIG, "added_tokens_decoder", "an object")),
        }
        let mut tokens: Vec<AddedToken> = by_id
            .into_iter()
            .map(|(id, token)| AddedToken {
                id: Some(id),
                ..token
            })
            .collect();
        let mut known: HashSet<String> = tokens.iter().map(|token| token.text.clone()).collect();
        for token in special_tokens(&special)? {
            if known.insert(token.text.clone()) {
                tokens.push(token);
            }
        }
        Ok(Self { special, tokens })
    }

    /// Returns the text of the special token in `field`; `default` if no file states it.
    pub(super) fn special<'a>(&'a self, field: &str, default: &'a str) -> Result<Option<&'a str>> {
        match self.special.get(field) {
            None => Ok(Some(default)),
            Some(Value::Null) => Ok(None),
            Some(value) => text_of(value, CONFIG, field).map(Some),
        }
    }
}

/// Returns the tokens of `added_tokens.json`, by their ids.
fn listed(folder: &Path, special: &Map<String, Value>) -> Result<BTreeMap<u32, AddedToken>> {
    let special = special_tokens(special)?;
    let special: HashSet<&str> = special.iter().map(|token| token.text.as_str()).collect();
    let mut tokens = BTreeMap::new();
    for (text, id) in object(folder, ADDED)? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| wrong(ADDED, &text, "an id"))?;
        let token = AddedToken {
            is_special: special.contains(text.as_str()),
            text,
            id: None,
            strips: (false, false),
        };
        if let Some(first) = tokens.insert(id, token) {
            return Err(wrong(ADDED, &first.text, "the only token of its id"));
        }
    }
    Ok(tokens)
}

/// Returns the special tokens, without ids.
fn special_tokens(special: &Map<String, Value>) -> Result<Vec<AddedToken>> {
    let mut tokens = Vec::new();
    for (field, value) in special {
        match value {
            Value::Null => {}
            Value::Array(values) => {
                for value in values {
                    tokens.push(token_of(value, SPECIAL, field, true)?);
                }
            }
            value if SPECIAL_FIELDS.contains(&field.as_str()) => {
                tokens.push(token_of(value, SPECIAL, field, true)?);
            }
            _ => {}
        }
    }
    Ok(tokens)
}

/// Reads a token given as a string, or as an object with its text in `content`.
fn token_of(value: &Value, file: &str, field: &str, is_special: bool) -> Result<AddedToken> {
    let text = text_of(value, file, field)?;
    if text.is_empty() {
        return Err(wrong(file, field, "a token with a text"));
    }
    let flag = |name: &str| match value.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(wrong(file, &format!("{field}` → `{name}"), "a boolean")),
    };
    if flag("single_word")? {
        let message = format!(
            "{file}: `{field}`: the token {text:?} has `single_word`, which Triad does not support"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(AddedToken {
        text: text.to_owned(),
        id: None,
        is_special: is_special || flag("special")?,
        strips: (flag("lstrip")?, flag("rstrip")?),
    })
}

fn text_of<'a>(value: &'a Value, file: &str, field: &str) -> Result<&'a str> {
    let text = value.get("content").unwrap_or(value).as_str();
    text.ok_or_else(|| wrong(file, field, "a token"))
}

fn parse_id(id: &str, text: &str) -> Result<u32> {
    id.parse().map_err(|_| {
        let message = format!("{CONFIG}: `added_tokens_decoder`: the token {text:?} has the id {id:?}, expected a number");
        Error::new(ErrorKind::Malformed, message)
    })
}

/// Returns the object in a file of `folder`; empty if there is no such file.
pub(super) fn object(folder: &Path, file: &str) -> Result<Map<String, Value>> {
    let path = folder.join(file);
    if !path.is_file() {
        return Ok(Map::new());
    }
    let malformed = |reason: String| Error::new(ErrorKind::Malformed, reason).at(&path);
    let bytes = files::read(&path, MAX_FILE).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(&path)
    })?;
    match serde_json::from_slice(files::without_mark(&bytes)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(malformed("expected an object".into())),
        Err(error) => Err(malformed(format!("expected JSON: {error}"))),
    }
}

fn wrong(file: &str, field: &str, expected: &str) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("{file}: `{field}` is not {expected}"),
    )
}

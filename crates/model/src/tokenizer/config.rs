//! The rules in `tokenizer_config.json`.

use serde_json::Value;

use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};

/// Name of the file.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// `tokenizer_config.json`; `null` if there is none.
pub(super) struct Config<'a> {
    pub(super) value: &'a Value,
}

impl Config<'_> {
    pub(super) fn malformed(field: &str, expected: &str) -> Error {
        Error::new(
            ErrorKind::Malformed,
            format!("{CONFIG}: `{field}` is not {expected}"),
        )
    }

    /// Returns a boolean; `None` if it is absent.
    pub(super) fn bool(&self, field: &str) -> Result<Option<bool>> {
        match &self.value[field] {
            Value::Null => Ok(None),
            Value::Bool(bool) => Ok(Some(*bool)),
            _ => Err(Self::malformed(field, "a boolean")),
        }
    }

    /// Returns the id of a token given as a string or as an object with its text in `content`.
    pub(super) fn token(&self, field: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
        let value = &self.value[field];
        let text = match (value, &value["content"]) {
            (Value::Null, _) => return Ok(None),
            (Value::String(text), _) | (_, Value::String(text)) => text,
            _ => return Err(Self::malformed(field, "a token")),
        };
        vocabulary
            .id(text)
            .map(Some)
            .ok_or_else(|| Self::malformed(field, "a token of the vocabulary"))
    }
}

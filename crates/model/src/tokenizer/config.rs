//! The rules in `tokenizer_config.json`.

use serde_json::Value;

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
}

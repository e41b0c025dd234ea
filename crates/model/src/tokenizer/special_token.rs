//! A special token that a file names.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;

/// The reason why a version of `transformers` raises an exception.
pub(super) type Raised = String;

/// A token with rules, with the defaults of `transformers`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stated {
    pub(super) content: String,
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
    /// Returns a control token that texts name exactly.
    pub(super) fn control(content: &str) -> Self {
        Self {
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: Some(false),
            special: true,
        }
    }

    pub(super) fn of(token: &AddedToken) -> Self {
        Self {
            content: token.content.clone(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: Some(token.normalized),
            special: token.special,
        }
    }

    /// Returns the library's token; `special` makes it a control token.
    pub(super) fn library(&self, special: bool) -> AddedToken {
        let special = special || self.special;
        AddedToken::from(self.content.as_str(), special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!special))
    }
}

/// A token of a field: a bare text, or one with rules.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Text(String),
    Stated(Stated),
}

impl Token {
    /// Reads a token; `None` for `null`.
    pub(super) fn read(value: &Value, field: &str) -> Result<Option<Self>, Raised> {
        match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(Self::Text(text.clone()))),
            Value::Object(object) if object.get("__type") == Some(&"AddedToken".into()) => {
                Stated::deserialize(value)
                    .map(|stated| Some(Self::Stated(stated)))
                    .map_err(|error| format!("`{field}`: {error}"))
            }
            _ => Err(format!(
                "`{field}` is not a token: expected a text, or an object with `\"__type\": \"AddedToken\"`"
            )),
        }
    }

    /// Reads the tokens of an array.
    pub(super) fn read_all(values: &[Value], field: &str) -> Result<Vec<Self>, Raised> {
        let token = |value| {
            let token = Self::read(value, field)?;
            token.ok_or_else(|| format!("`{field}` has `null`: expected tokens"))
        };
        values.iter().map(token).collect()
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Stated(stated) => &stated.content,
        }
    }

    /// Returns the text and the rules. Both are equal for tokens that are equal in Python, where those with rules are never
    /// equal to texts.
    pub(super) fn key(&self) -> (String, Option<AddedToken>) {
        let rules = match self {
            Self::Text(_) => None,
            Self::Stated(stated) => Some(stated.library(false)),
        };
        (self.text().to_owned(), rules)
    }
}

//! Kinds of grammar sources.

use std::fmt;

/// The language of a grammar source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`JsonSchema`](crate::GrammarSource::JsonSchema) or [`JsonObject`](crate::GrammarSource::JsonObject).
    JsonSchema,
    /// [`Regex`](crate::GrammarSource::Regex).
    Regex,
    /// [`Lark`](crate::GrammarSource::Lark).
    Lark,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::JsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Lark => "Lark grammar",
        })
    }
}

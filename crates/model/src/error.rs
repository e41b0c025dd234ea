//! The one error of this crate: which file, what is wrong there, what was expected.

use std::path::{Path, PathBuf};

/// Why a model could not be read, understood or fetched.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", location(.path.as_deref()))]
pub struct Error {
    kind: ErrorKind,
    path: Option<PathBuf>,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What sort of failure an [`Error`] is, for callers that react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file could not be opened, mapped, read or written.
    Io,
    /// The bytes are not what the format demands: truncated, wrong magic, impossible sizes.
    Malformed,
    /// The file is well-formed, but Triad does not run what it holds.
    Unsupported,
    /// Something that a model needs is not there: a tensor, a tokenizer, a configuration field.
    Missing,
    /// A model could not be found under its name or fetched.
    Fetch,
    /// A chat template could not be parsed or rendered.
    Template,
    /// Text could not be turned into tokens or back.
    Tokenizer,
    /// The system has no thread or memory left for it.
    Exhausted,
}

fn location(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("{}: ", path.display()))
}

impl Error {
    /// An error of `kind`; `message` names the field and what was expected of it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            path: None,
            message: message.into(),
            source: None,
        }
    }

    /// The same error for the file at `path`, unless it already names one.
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.path.get_or_insert_with(|| path.into());
        self
    }

    /// The same error with what caused it, which the message need not repeat.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file concerned, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

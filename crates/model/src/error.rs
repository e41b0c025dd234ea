//! The error type of this crate: the file, the problem, and the expected content.

use std::path::{Path, PathBuf};

/// The reason why a model could not be read, understood or fetched.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", location(.path.as_deref()))]
pub struct Error {
    kind: ErrorKind,
    path: Option<PathBuf>,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kind of an [`Error`], for callers that react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file could not be opened, mapped, read or written.
    Io,
    /// The bytes do not follow the format: truncated, wrong magic, impossible sizes.
    Malformed,
    /// The file is well-formed, but Triad does not support its content.
    Unsupported,
    /// A model lacks something that it needs: a tensor, a tokenizer, a configuration field.
    Missing,
    /// A model could not be found under its name or fetched.
    Fetch,
    /// A hub or the network failed, or a hub did not send what it states.
    Hub,
    /// The disk has no room for a file.
    Full,
    /// A chat template could not be parsed or rendered.
    Template,
    /// Text could not be converted to tokens or back.
    Tokenizer,
    /// The system has no thread or memory left.
    Exhausted,
}

fn location(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("{}: ", path.display()))
}

impl Error {
    /// Creates an error of `kind`; `message` names the field and the expected value.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            path: None,
            message: message.into(),
            source: None,
        }
    }

    /// Returns the same error for the file at `path`, unless it already names one.
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.path.get_or_insert_with(|| path.into());
        self
    }

    /// Returns the same error with its cause, which the message need not repeat.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message without the file and the cause.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the file concerned, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! What can go wrong while a model is prepared.

use std::path::PathBuf;

/// Why a model could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, its run, or a file of the package.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// A calibration text.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl Error {
    /// The engine's error, where that is what is wrong.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Text(_) => None,
        }
    }
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// A file that holds no calibration text.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {problem}", .path.display(), .line.map_or_else(String::new, |line| format!(", line {line}")))]
pub struct TextError {
    /// Which file.
    pub path: PathBuf,
    /// The line concerned, counted from one.
    pub line: Option<usize>,
    /// What is wrong there, and what was expected.
    pub problem: String,
    /// What found it, where that was not this crate.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! The errors of a preparation.

use std::path::PathBuf;

/// The reason why a model could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model, its run, or a file of the package.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// An error of a calibration text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An error of calibration pictures.
    #[error(transparent)]
    Picture(#[from] PictureError),
}

impl Error {
    /// Returns the engine's error, if this is one.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Text(_) | Self::Picture(_) => None,
        }
    }
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// An error of a file with calibration text.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {problem}", .path.display(), .line.map_or_else(String::new, |line| format!(", line {line}")))]
pub struct TextError {
    /// The file.
    pub path: PathBuf,
    /// The line concerned, counted from one.
    pub line: Option<usize>,
    /// The problem and the expected content.
    pub problem: String,
    /// The cause, if it is an error of another library.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// An error of a calibration picture, or of the folder of them.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .path.display())]
pub struct PictureError {
    /// The file or the folder.
    pub path: PathBuf,
    /// The problem and the expected content.
    pub problem: String,
    /// The cause, if it is an error of another library.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

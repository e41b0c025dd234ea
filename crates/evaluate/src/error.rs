//! The errors of an evaluation.

use crate::rows::DataError;

/// The reason why a model could not be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model or its run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// An error of a data file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A processor failed, so that others would have computed a part of what was to be evaluated.
    #[error("{0}: expected processors that compute everything that is scored")]
    Processor(String),
}

impl Error {
    /// Returns the engine's error, if this is one.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Data(_) | Self::Processor(_) => None,
        }
    }
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! What can go wrong while a model is evaluated.

use crate::rows::DataError;

/// Why a model could not be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model or its run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// A data file.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl Error {
    /// The engine's error, where that is what is wrong.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Data(_) => None,
        }
    }
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! Errors of studies.

use std::io;
use std::path::PathBuf;

/// The reason why a model could not be studied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be loaded or run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// Calibration failed.
    #[error(transparent)]
    Prepare(#[from] triad_prepare::Error),
    /// A domain has too few texts for calibration and a run.
    #[error(
        "the domain {name} has fewer than two texts: expected one to calibrate on and another to run on"
    )]
    Domain {
        /// Name of the domain.
        name: String,
    },
    /// The rows of shadows could not be written to the system's folder for temporary files.
    #[error("{}: can't write the rows of shadows there", .folder.display())]
    WriteRows {
        /// That folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The other program could not be started or controlled.
    #[error("can't disturb the prompt: {problem}")]
    Interference {
        /// The missing thing.
        problem: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The rows of hot channels could not be kept.
    #[error("can't start an outlier weight cache")]
    OutlierCache {
        /// The system's error.
        source: io::Error,
    },
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

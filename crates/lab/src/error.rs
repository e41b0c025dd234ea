//! What can go wrong while a model is studied.

use std::io;
use std::path::PathBuf;

/// Why a model could not be studied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model or its run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// Calibration.
    #[error(transparent)]
    Prepare(#[from] triad_prepare::Error),
    /// A domain that cannot be calibrated on and run on.
    #[error(
        "the domain {name} has fewer than two texts: expected one to calibrate on and another to run on"
    )]
    Domain {
        /// What it is called.
        name: String,
    },
    /// The rows of shadows could not be written to the system's folder for temporary files.
    #[error("{}: cannot write the rows of shadows there", .folder.display())]
    WriteRows {
        /// That folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another program can't be had.
    #[error("there can be no other program beside the prompt: {problem}")]
    Interference {
        /// What is missing.
        problem: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The rows of hot channels could not be kept.
    #[error("cannot keep hot rows")]
    HotRows {
        /// Why not.
        source: io::Error,
    },
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

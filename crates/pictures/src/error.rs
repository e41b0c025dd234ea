//! The error type of this crate.

/// The reason why a picture can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings or a kind of picture that Triad does not support.
    #[error("{0} is not supported")]
    Unsupported(String),
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! Errors of readers.

use crate::error::{Error, ErrorKind};

pub(super) fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

pub(super) fn missing(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Missing, message)
}

pub(super) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

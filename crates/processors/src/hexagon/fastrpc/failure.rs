//! Errors of calls to FastRPC, and why a device program ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::hexagon::options::NAME;

/// Reason why the program ended.
pub(super) type Ended = Arc<Mutex<Option<String>>>;

/// Returns an error of the processor `npu:hexagon`.
pub(super) fn failed(reason: impl std::fmt::Display) -> Error {
    Error::Run {
        processor: NAME.to_owned(),
        reason: reason.to_string(),
    }
}

/// Returns the error of a call on `path`, with advice for the user.
pub(super) fn refused(
    call: &'static str,
    path: &Path,
    reason: io::Error,
    advice: &'static str,
) -> Error {
    Error::HexagonDsp {
        call,
        path: path.to_owned(),
        reason,
        advice,
    }
}

/// Lists paths of which one was expected.
pub(super) fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(" or ")
}

//! The progress, the options and the errors of all fetches.

use crate::error::{Error, ErrorKind};

/// Receives the progress of a fetch, and can cancel it.
pub trait Progress {
    /// Reports the start of a step; `what` is a sentence for the user. Its size is unknown.
    fn step(&self, what: &str);

    /// Reports that `done` bytes of `file` have arrived, of `total` if the size is known.
    fn bytes(&self, file: &str, done: u64, total: Option<u64>);

    /// Returns whether to end the fetch with an error; received bytes are kept for a later resume.
    fn cancelled(&self) -> bool {
        false
    }
}

/// How a model is fetched.
#[derive(Clone, Copy, Debug)]
pub struct PullOptions {
    /// The share of the disk that a fetch leaves free, in percent. Without one, a fetch may fill the disk.
    pub kept_free: u8,
    /// Whether the token in `HF_TOKEN` goes to the hub.
    pub uses_token: bool,
}

impl Default for PullOptions {
    /// Returns the options of a user's own fetch.
    fn default() -> Self {
        Self {
            kept_free: 0,
            uses_token: true,
        }
    }
}

/// Ignores all progress.
impl Progress for () {
    fn step(&self, _: &str) {}
    fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
}

/// Returns the error of a name that no model can be fetched by.
pub(super) fn fetch_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Fetch, message)
}

/// Returns the error of a hub that fails, or that does not send what it states.
pub(super) fn hub_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Hub, message)
}

/// Returns the error of a fetch that the user cancels.
pub(super) fn cancelled() -> Error {
    fetch_error("the fetch was cancelled")
}

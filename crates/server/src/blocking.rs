//! Blocking work outside the threads that serve connections.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{ApiError, ApiResult};

/// Runs blocking or long work without delaying other connections.
///
/// # Errors
/// If `work` fails or panics, or the system can't start a thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let done = spawn(work)?.await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the work of a request panicked")))
}

/// Starts `work` on its own thread.
///
/// # Errors
/// If the system can't start a thread.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<tokio::task::JoinHandle<T>> {
    // `spawn_blocking` panics only if its first thread can't be started. Later work waits for an existing thread.
    catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(work)))
        .map_err(|_: Box<dyn Any + Send>| no_thread())
}

/// Returns the error of a request for which the system can't start a thread.
pub(crate) fn no_thread() -> ApiError {
    ApiError::unavailable("the system has no thread or memory for another request: try again later")
}

//! Work that the threads which serve connections don't wait for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{ApiError, ApiResult};

/// Runs what reads, writes or computes for longer than a connection should wait for another one.
///
/// # Errors
/// If `work` fails or panics, or the system has no thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let done = spawn(work)?.await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the work of a request panicked")))
}

/// Begins `work` on a thread of its own.
///
/// # Errors
/// If the system has no thread for it.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<tokio::task::JoinHandle<T>> {
    // `tokio` panics where the first of its threads can't be started; later ones wait for those that are there.
    catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(work)))
        .map_err(|_: Box<dyn Any + Send>| no_thread())
}

/// Returns the error of a request that the system has no thread for.
pub(crate) fn no_thread() -> ApiError {
    ApiError::unavailable("the system has no thread or memory for another request: try again later")
}

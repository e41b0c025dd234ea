//! Work beside the threads that serve connections.

use std::sync::Arc;

use crate::error::{ApiError, ApiResult};
use crate::hosted::Hosted;

/// Runs what may take its time where no connection waits for it.
pub(crate) async fn of_model<T: Send + 'static>(
    model: &Arc<Hosted>,
    work: impl FnOnce(&Hosted) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let model = Arc::clone(model);
    blocking(move || work(&model)).await
}

/// Runs what reads, writes or computes for longer than a connection should wait for another one.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the work of a request panicked")))
}

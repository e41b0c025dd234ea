//! Admission and computation for endpoints that read texts and write none.

use std::sync::Arc;

use triad_engine::{Cancel, Engine};

use crate::blocking::blocking;
use crate::error::{ApiError, ApiResult};
use crate::prepare::CancelOnDrop;
use crate::queue::Place;
use crate::served::ServedModel;

/// Maximum pages of keys and values of texts that are computed together, so that a request does not wait until all others
/// have ended.
const MAX_PAGES: usize = 16;

/// Admits a request with texts of these lengths in tokens, all at once, and computes `work` for them with the maximum
/// number of pages. A client that disconnects cancels it.
///
/// # Errors
/// If a text in `field` is empty or longer than the context, there is none, or the memory for keys and values is too
/// small; the error of `work`.
pub(crate) async fn compute<T: Send + 'static>(
    (model, place): (&Arc<ServedModel>, Place),
    (field, lengths): (&'static str, &[usize]),
    work: impl FnOnce(&Engine, usize, &Cancel) -> triad_frontend::Result<T> + Send + 'static,
) -> ApiResult<T> {
    if lengths.is_empty() {
        return Err(ApiError::field(field, "there is none"));
    }
    let most_pages = model.queue().most().pages.min(MAX_PAGES);
    let need = model.need_to_encode(lengths, most_pages);
    let permit = place
        .admit(need.map_err(|error| error.with_param(field))?)
        .await;
    // Cancels the work if the client disconnects, which drops this future.
    let cancel = CancelOnDrop(Cancel::new());
    let (model, stop) = (Arc::clone(model), cancel.0.clone());
    let result = blocking(move || {
        let result = work(model.engine(), most_pages, &stop);
        drop(permit);
        result.map_err(ApiError::from)
    });
    result.await
}

/// Returns whether names of control tokens in texts are these tokens if a request does or does not state it.
pub(crate) fn parses_special(model: &ServedModel, stated: Option<bool>) -> bool {
    stated.unwrap_or(!model.keeps_letters())
}

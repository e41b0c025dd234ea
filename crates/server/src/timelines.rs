//! `/v1/timelines/{id}`: where and when the tasks of a prompt ran, of the answers that ended last.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::guard::Client;
use crate::prompt_timelines::{KEPT, PromptTimeline};

/// How the prompt of an answer was computed, by the answer's `id`: an extension to OpenAI's form. The latest 32 of a
/// model and a key are kept, and found with the same key.
#[utoipa::path(
    get, path = "/v1/timelines/{id}", tag = "server", params(("id" = String, Path, description = "The id of an answer")),
    responses((status = 200, body = PromptTimeline), (status = 404, body = ErrorBody))
)]
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Path(id): Path<String>,
) -> ApiResult<Json<PromptTimeline>> {
    let found = app
        .catalog()
        .loaded()
        .iter()
        .find_map(|model| model.timelines().find(client.owner, &id));
    let found = found.ok_or_else(|| {
        let message = format!(
            "there is no timeline of {id}: those of the latest {KEPT} answers of a model are kept"
        );
        ApiError::refused(StatusCode::NOT_FOUND, "no_timeline", message)
    })?;
    Ok(Json(PromptTimeline::clone(&found)))
}

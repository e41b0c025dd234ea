//! `/v1/timelines/{id}`: when and where the tasks of a prompt ran, for the latest responses.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::guard::Client;
use crate::prompt_timelines::{KEPT, PromptTimeline};
use crate::url_path::UrlPath;

/// Returns the timeline of a prompt by the response's `id`. An extension of OpenAI's API. The latest 32 timelines per
/// model and key are kept, and can only be read with the same key.
#[utoipa::path(
    get, path = "/v1/timelines/{id}", tag = "server", params(("id" = String, Path, description = "The id of a response")),
    responses((status = 200, body = PromptTimeline), (status = 404, body = ErrorBody))
)]
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(id): UrlPath<String>,
) -> ApiResult<Json<PromptTimeline>> {
    let found = app
        .registry()
        .loaded()
        .iter()
        .find_map(|model| model.timelines().find(client.owner, &id));
    let found = found.ok_or_else(|| {
        let message = format!(
            "there is no timeline of {id}: only the latest {KEPT} timelines per model are kept"
        );
        ApiError::refused(StatusCode::NOT_FOUND, "no_timeline", message)
    })?;
    Ok(Json(PromptTimeline::clone(&found)))
}

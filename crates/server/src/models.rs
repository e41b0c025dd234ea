//! `/v1/models` and `/health`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::hosted::Hosted;

/// Models that can be asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// `list`.
    object: &'static str,
    data: Vec<ModelObject>,
}

/// A model that can be asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    /// What requests call it.
    id: String,
    /// `model`.
    object: &'static str,
    /// When the server began, in seconds since 1970.
    created: u64,
    /// `triad`.
    owned_by: &'static str,
    /// Whether it is in memory: if not, the next request for it loads it.
    loaded: bool,
    /// Tokens of a prompt and its answer, at most; of a model in memory.
    max_model_len: Option<usize>,
}

/// All models, in the order in which the server was given them.
fn objects(app: &App) -> Vec<ModelObject> {
    let object = |(name, model): (&str, Option<Arc<Hosted>>)| ModelObject {
        id: name.to_owned(),
        object: "model",
        created: app.catalog().created,
        owned_by: "triad",
        loaded: model.is_some(),
        max_model_len: model.map(|model| model.context()),
    };
    app.catalog().names().into_iter().map(object).collect()
}

/// The models that can be asked for.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: objects(&app),
    })
}

/// One of them; it is not loaded by that.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "models", params(("model" = String, Path, description = "Its name")),
    responses((status = 200, body = ModelObject), (status = 404, body = ErrorBody))
)]
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> ApiResult<Json<ModelObject>> {
    let models = objects(&app);
    let names = models
        .iter()
        .map(|model| &*model.id)
        .collect::<Vec<_>>()
        .join(", ");
    let found = models.into_iter().find(|model| model.id == name);
    found
        .map(Json)
        .ok_or_else(|| ApiError::no_model(&name, &names))
}

/// What the server does now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
    /// Answers that are computed.
    answering: usize,
    /// Requests that wait.
    waiting: usize,
}

/// Whether the server is there.
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, body = Health)))]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Json<Health> {
    let models = app.catalog().loaded();
    let counts = models.iter().map(|model| model.queue().counts());
    let (waiting, answering) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Json(Health {
        status: "ok",
        answering,
        waiting,
    })
}

//! `/v1/models` and `/health`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::served::ServedModel;

/// The list of served models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    object: &'static str,
    data: Vec<ModelObject>,
}

/// A served model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    /// The model's name in requests.
    id: String,
    /// Always `model`.
    object: &'static str,
    /// The start time of the server, in seconds since 1970.
    created: u64,
    /// Always `triad`.
    owned_by: &'static str,
    /// Whether the model is in memory. Otherwise the next request for it loads it.
    loaded: bool,
    /// The maximum number of tokens of a prompt with its completion. Only for a model in memory.
    max_model_len: Option<usize>,
}

/// Returns all models, in the order of the server's options, each under all of its names.
fn objects(app: &App) -> Vec<ModelObject> {
    let object = |name: &str, model: Option<&ServedModel>| ModelObject {
        id: name.to_owned(),
        object: "model",
        created: app.catalog().created,
        owned_by: "triad",
        loaded: model.is_some(),
        max_model_len: model.map(ServedModel::context),
    };
    let models = app.catalog().names().into_iter().map(|(_, model)| model);
    let models = app.catalog().hosted().iter().zip(models);
    let objects = models.flat_map(|(hosted, model)| {
        let names = hosted
            .names()
            .map(move |name| object(name, model.as_deref()));
        names.collect::<Vec<_>>()
    });
    objects.collect()
}

/// Lists the served models.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: objects(&app),
    })
}

/// Returns one model without loading it.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "models", params(("model" = String, Path, description = "The model's name")),
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

/// The state of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
    /// The number of running completions.
    answering: usize,
    /// The number of waiting requests, including those that are being prepared.
    waiting: usize,
}

/// Returns the state of the server.
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

//! `/v1/models` and `/health`.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::ollama::time::rfc3339;
use crate::query;
use crate::slots::Offered;
use crate::url_path::UrlPath;

/// The list of served models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    object: &'static str,
    data: Vec<ModelObject>,
    #[serde(flatten)]
    #[schema(value_type = AnthropicList)]
    anthropic: Option<AnthropicList>,
}

/// The fields that Anthropic's API has in addition. Only for requests with the header `anthropic-version`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnthropicList {
    /// Whether there are more models in the direction of the page.
    #[schema(required = false)]
    has_more: bool,
    /// The first model's name.
    #[schema(required = false)]
    first_id: Option<String>,
    /// The last model's name.
    #[schema(required = false)]
    last_id: Option<String>,
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
    #[serde(flatten)]
    #[schema(value_type = AnthropicModel)]
    anthropic: Option<AnthropicModel>,
}

/// The fields that Anthropic's API has in addition. Only for requests with the header `anthropic-version`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnthropicModel {
    /// Always `model`.
    #[serde(rename = "type")]
    #[schema(required = false)]
    kind: &'static str,
    /// The model's name.
    #[schema(required = false)]
    display_name: String,
    /// The start time of the server, as RFC 3339 writes it.
    #[schema(required = false)]
    created_at: String,
    /// Always `active`.
    #[schema(required = false)]
    lifecycle: &'static str,
}

/// Returns whether the client of a request speaks Anthropic's API.
pub(crate) fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Returns all models, in the order of the server's options, each under all of its names.
fn objects(app: &App, headers: &HeaderMap) -> Vec<ModelObject> {
    let created = UNIX_EPOCH + Duration::from_secs(app.registry().created);
    let anthropic = |name: &str| AnthropicModel {
        kind: "model",
        display_name: name.to_owned(),
        created_at: rfc3339(created),
        lifecycle: "active",
    };
    let object = |name: &str, context: Option<usize>| ModelObject {
        id: name.to_owned(),
        object: "model",
        created: app.registry().created,
        owned_by: "triad",
        loaded: context.is_some(),
        max_model_len: context,
        anthropic: is_anthropic(headers).then(|| anthropic(name)),
    };
    let of_model = |model: &Offered| -> Vec<_> {
        let names = model.hosted.names();
        names.map(|name| object(name, model.context)).collect()
    };
    let offered = app.registry().offered();
    let usable = offered.iter().filter(|model| model.is_usable());
    usable.flat_map(of_model).collect()
}

/// Lists the served models. In Anthropic's form, `limit`, `after_id` and `before_id` select a page; without `limit`, the
/// list goes on to its end.
#[utoipa::path(
    get, path = "/v1/models", tag = "models",
    responses((status = 200, body = ModelList), (status = 400, body = ErrorBody))
)]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<ModelList>> {
    let mut data = objects(&app, &headers);
    let has_more = match is_anthropic(&headers) {
        true => keep_page(&mut data, query.as_deref())?,
        false => false,
    };
    let name = |model: Option<&ModelObject>| model.map(|model| model.id.clone());
    let anthropic = is_anthropic(&headers).then(|| AnthropicList {
        has_more,
        first_id: name(data.first()),
        last_id: name(data.last()),
    });
    Ok(Json(ModelList {
        object: "list",
        data,
        anthropic,
    }))
}

/// Keeps the models of the page that `query` asks for. Returns whether there are more.
fn keep_page(models: &mut Vec<ModelObject>, query: Option<&str>) -> ApiResult<bool> {
    // `beta` names a version of the same interface.
    let given = query::read(query, &["limit", "after_id", "before_id", "beta"])?;
    let value = |name: &str| {
        let found = given.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value.as_str())
    };
    let place = |name: &str| {
        let place = |id: &str| models.iter().position(|model| model.id == id);
        let missing = || ApiError::field(name, "there is no model of this name");
        let place = value(name).map(|id| place(id).ok_or_else(missing));
        place.transpose()
    };
    let limit = value("limit").map(|limit| {
        let limit = limit
            .parse()
            .ok()
            .filter(|limit| (1..=1000).contains(limit));
        limit.ok_or_else(|| ApiError::field("limit", "expected 1 to 1000"))
    });
    let limit = limit.transpose()?.unwrap_or(models.len());
    let (page, has_more) = match (place("after_id")?, place("before_id")?) {
        (Some(_), Some(_)) => {
            let message = "expected it without after_id";
            return Err(ApiError::field("before_id", message));
        }
        (None, Some(before)) => (before.saturating_sub(limit)..before, before > limit),
        (after, None) => {
            let first = after.map_or(0, |after| after + 1);
            let end = models.len().min(first + limit);
            (first..end, end < models.len())
        }
    };
    models.truncate(page.end);
    models.drain(..page.start);
    Ok(has_more)
}

/// Returns one model without loading it.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "models", params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = ModelObject), (status = 404, body = ErrorBody))
)]
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    UrlPath(name): UrlPath<String>,
    headers: HeaderMap,
) -> ApiResult<Json<ModelObject>> {
    let models = objects(&app, &headers);
    let names = models
        .iter()
        .map(|model| &*model.id)
        .collect::<Vec<_>>()
        .join(", ");
    // As in requests: `:latest` stands for no tag, as in Ollama.
    let plain = name.strip_suffix(":latest").unwrap_or(&name);
    let found = models
        .into_iter()
        .find(|model| model.id == name || model.id == plain);
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
    let models = app.registry().loaded();
    let counts = models.iter().map(|model| model.queue().counts());
    let (waiting, answering) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Json(Health {
        status: "ok",
        answering,
        waiting,
    })
}

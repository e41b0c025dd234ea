//! `/v1/conversations` and `/v1/responses/{id}`: what is kept in memory for later requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::messages::{Turns, check_count};
use crate::metadata;
use crate::names::{new_id, now};
use crate::response_input::{CONVERSATION, RESPONSE, add, check_bytes, is_reference, resolved};
use crate::stored::conversation;

/// A request for a new conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ConversationRequest {
    /// The first items of the conversation.
    #[schema(value_type = Option<Vec<Object>>)]
    items: Option<Vec<Value>>,
    /// Data of the client, which the description repeats: at most 16 texts.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

/// Creates a conversation, to which responses are added.
#[utoipa::path(
    post, path = "/v1/conversations", tag = "answers", request_body = ConversationRequest,
    responses((status = 200, body = Object), (status = 400, body = ErrorBody))
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Value>> {
    let body = body.checked(&fields::CONVERSATIONS)?;
    let ConversationRequest { items, metadata } = body.parse()?;
    let items = items.unwrap_or_default();
    if !items.is_empty() {
        check_count("items", items.len())?;
    }
    metadata::check(metadata.as_ref())?;
    let mut turns = Turns::default();
    for (index, item) in items.iter().enumerate() {
        // Stored items were checked before they were stored.
        if !is_reference(item) {
            add(&mut turns, &format!("items[{index}]"), item)?;
        }
    }
    let (items, _) = resolved(("items", app.stored(), client.owner), items.into(), 0)?;
    let bytes = items.iter().map(|item| item.bytes());
    check_bytes(&app, "items", bytes.fold(0, usize::saturating_add))?;
    let metadata = metadata.unwrap_or_default().into();
    let object = conversation(&new_id(CONVERSATION), now(), &metadata);
    app.stored().create(client.owner, items, object).map(Json)
}

/// Returns the description of a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}", tag = "answers",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody))
)]
pub(crate) async fn conversation_of(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    kept(&app, client, ("conversation", CONVERSATION), &id)
}

/// Deletes a conversation.
#[utoipa::path(
    delete, path = "/v1/conversations/{id}", tag = "answers",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody))
)]
pub(crate) async fn delete_conversation(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Path(id): Path<String>,
) -> ApiResult<Json<Value>> {
    if !id.starts_with(CONVERSATION) || !app.stored().delete(client.owner, &id) {
        return Err(not_kept("conversation", &id));
    }
    Ok(Json(
        json!({"id": id, "object": "conversation.deleted", "deleted": true}),
    ))
}

/// Returns a response that is kept.
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "answers",
    params(("id" = String, Path, description = "The id of the response")),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody))
)]
pub(crate) async fn response(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    kept(&app, client, ("response", RESPONSE), &id)
}

/// Deletes a response.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "answers",
    params(("id" = String, Path, description = "The id of the response")),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody))
)]
pub(crate) async fn delete_response(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Path(id): Path<String>,
) -> ApiResult<Json<Value>> {
    if !id.starts_with(RESPONSE) || !app.stored().delete(client.owner, &id) {
        return Err(not_kept("response", &id));
    }
    Ok(Json(
        json!({"id": id, "object": "response", "deleted": true}),
    ))
}

/// Returns the object `id`.
fn kept(app: &App, client: Caller, (kind, prefix): (&str, &str), id: &str) -> ApiResult<Response> {
    let object = app.stored().object(client.owner, id);
    let object = object.filter(|_| id.starts_with(prefix));
    let object = object.ok_or_else(|| not_kept(kind, id))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], object).into_response())
}

fn not_kept(kind: &str, id: &str) -> ApiError {
    let message = format!("there is no {kind} {id:?}: it may have been dropped after its time");
    ApiError::refused(StatusCode::NOT_FOUND, "not_found", message)
}

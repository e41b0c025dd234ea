//! `/v1/conversations` and `/v1/responses/{id}` with their items: what is kept in memory for later requests.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::messages::check_count;
use crate::metadata;
use crate::names::{new_id, now};
use crate::query::{self, NoQuery};
use crate::response_input::{
    CONVERSATION, RESPONSE, add, check_bytes, check_ids, is_reference, resolved,
};
use crate::stored::{Item, Items, Parts, conversation};
use crate::turns::Turns;
use crate::url_path::UrlPath;

/// The estimated memory of items in bytes after which a list has no further ones.
const PAGE_BYTES: usize = 1 << 20;

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
    _: NoQuery,
    body: JsonBody,
) -> ApiResult<Json<Value>> {
    let body = body.checked(&fields::CONVERSATIONS)?;
    let ConversationRequest { items, metadata } = body.parse()?;
    metadata::check(metadata.as_ref())?;
    let items = checked(&app, client, items.unwrap_or_default())?;
    let metadata = metadata.unwrap_or_default().into();
    let object = conversation(&new_id(CONVERSATION), now(), &metadata);
    app.stored().create(client.owner, items, object).map(Json)
}

/// Returns the items of a request, which are stored.
///
/// # Errors
/// If one is invalid, or there are too many.
fn checked(app: &App, client: Caller, items: Vec<Value>) -> ApiResult<Vec<Arc<Item>>> {
    if !items.is_empty() {
        check_count("items", items.len())?;
    }
    let mut turns = Turns::default();
    for (index, item) in items.iter().enumerate() {
        // Stored items were checked before they were stored.
        if !is_reference(item) {
            add(&mut turns, &format!("items[{index}]"), item)?;
        }
    }
    let (items, _) = resolved(("items", app.stored(), client.owner), items.into(), None)?;
    let bytes = items.iter().map(|item| item.bytes());
    check_bytes(app, "items", bytes.fold(0, usize::saturating_add))?;
    Ok(items)
}

/// New metadata of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ConversationUpdate {
    /// Data of the client, which the description repeats: at most 16 texts. Null removes it.
    #[schema(value_type = Option<Object>, required = true)]
    #[serde(deserialize_with = "Option::deserialize")]
    metadata: Option<Map<String, Value>>,
}

/// Changes the metadata of a conversation.
#[utoipa::path(
    post, path = "/v1/conversations/{id}", tag = "answers", request_body = ConversationUpdate,
    params(("id" = String, Path, description = "The id of the conversation")),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn update(
    State(app): State<Arc<App>>,
    Client(client): Client,
    _: NoQuery,
    UrlPath(id): UrlPath<String>,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::CONVERSATION)?;
    let ConversationUpdate { metadata } = body.parse()?;
    metadata::check(metadata.as_ref())?;
    changed(&app, client, &id, |items, object| {
        let mut object: Value = serde_json::from_slice(&object).unwrap_or_default();
        object["metadata"] = metadata.unwrap_or_default().into();
        let items = items.all().into_iter().map(Arc::clone).collect();
        Ok(((None, items), object.to_string().into()))
    })
}

/// Items for a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ItemsRequest {
    #[schema(value_type = Vec<Object>)]
    items: Vec<Value>,
}

/// Adds items to a conversation.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/items", tag = "answers", request_body = ItemsRequest,
    params(
        ("id" = String, Path, description = "The id of the conversation"),
        ("include" = Option<Vec<String>>, Query, description = "No effect: items are as they are stored"),
    ),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn add_items(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
    body: JsonBody,
) -> ApiResult<Json<Value>> {
    query::read(query.as_deref(), &["include"])?;
    let body = body.checked(&fields::CONVERSATION_ITEMS)?;
    let ItemsRequest { items } = body.parse()?;
    check_count("items", items.len())?;
    let items = checked(&app, client, items)?;
    changed(&app, client, &id, |before, object| {
        let (count, bytes) = before.size();
        check_count("items", count + items.len())?;
        check_ids("items", Some(before), &items)?;
        let added = items.iter().map(|item| item.bytes());
        check_bytes(&app, "items", added.fold(bytes, usize::saturating_add))?;
        Ok(((Some(Arc::clone(before)), items.clone()), object))
    })?;
    Ok(Json(list(items.iter(), false)))
}

/// Returns the items of a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/items", tag = "answers",
    params(
        ("id" = String, Path, description = "The id of the conversation"),
        ("order" = Option<String>, Query, description = "`asc`, or `desc` for the latest first, which is the default"),
        ("limit" = Option<usize>, Query, description = "The most items, 1 to 100. The default is 20"),
        ("after" = Option<String>, Query, description = "The item before the first one"),
        ("include" = Option<Vec<String>>, Query, description = "No effect: items are as they are stored"),
    ),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn items(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<Value>> {
    let page = Page::read(query.as_deref())?;
    let items = conversation_items(&app, client, &id)?;
    page.list(items.all()).map(Json)
}

/// Returns an item of a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/items/{item}", tag = "answers",
    params(
        ("id" = String, Path, description = "The id of the conversation"),
        ("item" = String, Path, description = "The id of the item"),
        ("include" = Option<Vec<String>>, Query, description = "No effect: items are as they are stored"),
    ),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn item(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath((id, item)): UrlPath<(String, String)>,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<Value>> {
    query::read(query.as_deref(), &["include"])?;
    let items = conversation_items(&app, client, &id)?;
    let found = items.all().into_iter().find(|it| it.id() == Some(&item));
    let found = found.ok_or_else(|| not_kept("item", &item))?;
    Ok(Json(shown(found)))
}

/// Removes an item from a conversation. Returns the description of the conversation.
#[utoipa::path(
    delete, path = "/v1/conversations/{id}/items/{item}", tag = "answers",
    params(
        ("id" = String, Path, description = "The id of the conversation"),
        ("item" = String, Path, description = "The id of the item"),
    ),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody))
)]
pub(crate) async fn delete_item(
    State(app): State<Arc<App>>,
    Client(client): Client,
    _: NoQuery,
    UrlPath((id, item)): UrlPath<(String, String)>,
) -> ApiResult<Response> {
    changed(&app, client, &id, |items, object| {
        let all = items.all();
        let rest = all.iter().filter(|it| it.id() != Some(&item));
        let rest: Vec<_> = rest.copied().map(Arc::clone).collect();
        if rest.len() == all.len() {
            return Err(not_kept("item", &item));
        }
        Ok(((None, rest), object))
    })
}

/// Returns the items of the input of a response that is kept, without what it continues.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "answers",
    params(
        ("id" = String, Path, description = "The id of the response"),
        ("order" = Option<String>, Query, description = "`asc`, or `desc` for the latest first, which is the default"),
        ("limit" = Option<usize>, Query, description = "The most items, 1 to 100. The default is 20"),
        ("after" = Option<String>, Query, description = "The item before the first one"),
        ("include" = Option<Vec<String>>, Query, description = "No effect: items are as they are stored"),
    ),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn inputs(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<Value>> {
    /// The part of a response that tells how many of its items are its output.
    #[derive(Deserialize)]
    struct Output {
        output: Vec<IgnoredAny>,
    }

    let page = Page::read(query.as_deref())?;
    let store = app.stored();
    let items = store.items(client.owner, &id);
    let items = items.filter(|_| id.starts_with(RESPONSE));
    let object = store.object(client.owner, &id);
    let (items, object) = items.zip(object).ok_or_else(|| not_kept("response", &id))?;
    let output = serde_json::from_slice::<Output>(&object).map_or(0, |it| it.output.len());
    let own = items.own();
    let input = &own[..own.len().saturating_sub(output)];
    page.list(input.iter().collect()).map(Json)
}

/// Returns the items of the conversation `id`.
fn conversation_items(app: &App, client: Caller, id: &str) -> ApiResult<Arc<Items>> {
    let items = app.stored().items(client.owner, id);
    let items = items.filter(|_| id.starts_with(CONVERSATION));
    items.ok_or_else(|| not_kept("conversation", id))
}

/// Changes the conversation `id`, and returns its description.
fn changed(
    app: &App,
    client: Caller,
    id: &str,
    change: impl FnOnce(&Arc<Items>, Bytes) -> ApiResult<(Parts, Bytes)>,
) -> ApiResult<Response> {
    let object = match id.starts_with(CONVERSATION) {
        true => app.stored().change(client.owner, id, change)?,
        false => None,
    };
    let object = object.ok_or_else(|| not_kept("conversation", id))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], object).into_response())
}

/// The part of a list that a request asks for.
struct Page {
    is_ascending: bool,
    limit: usize,
    after: Option<String>,
}

impl Page {
    /// Reads the part of an address after `?`.
    ///
    /// # Errors
    /// If a name is unknown or given twice, or a value is out of range.
    fn read(query: Option<&str>) -> ApiResult<Self> {
        let mut page = Self {
            is_ascending: false,
            limit: 20,
            after: None,
        };
        for (name, value) in query::read(query, &["after", "include", "limit", "order"])? {
            match (name, value.as_str()) {
                ("order", "asc") => page.is_ascending = true,
                ("order", "desc") => page.is_ascending = false,
                ("order", _) => {
                    return Err(ApiError::field("order", "expected asc or desc"));
                }
                ("limit", limit) => {
                    let limit = limit.parse().ok().filter(|limit| (1..=100).contains(limit));
                    let wrong = || ApiError::field("limit", "expected a whole number of 1 to 100");
                    page.limit = limit.ok_or_else(wrong)?;
                }
                _ => page.after = Some(value),
            }
        }
        Ok(page)
    }

    /// Returns the part of `items` as a list. A page with many bytes has fewer items than its limit.
    ///
    /// # Errors
    /// If the item before the first one is not there.
    fn list(&self, mut items: Vec<&Arc<Item>>) -> ApiResult<Value> {
        if !self.is_ascending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let place = items.iter().position(|item| item.id() == Some(after));
            let place = place.ok_or_else(|| not_kept("item", after))?;
            items.drain(..=place);
        }
        let mut bytes = 0_usize;
        let fits = |item: &&&Arc<Item>| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(item.bytes());
            is_first || bytes <= PAGE_BYTES
        };
        let part: Vec<_> = items.iter().take(self.limit).take_while(fits).collect();
        Ok(list(
            part.iter().map(|item| **item),
            part.len() < items.len(),
        ))
    }
}

/// Returns a list of items.
fn list<'a>(items: impl Iterator<Item = &'a Arc<Item>>, has_more: bool) -> Value {
    let data: Vec<_> = items.map(shown).collect();
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    json!({
        "object": "list", "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more,
        "data": data,
    })
}

/// Returns an item in its whole form: with its type, and with the content of a message as parts.
fn shown(item: &Arc<Item>) -> Value {
    let mut item = item.value().clone();
    let Value::Object(fields) = &mut item else {
        return item;
    };
    fields.entry("type").or_insert_with(|| "message".into());
    if fields["type"] == "message" {
        fields.entry("status").or_insert_with(|| "completed".into());
        if let Some(Value::String(text)) = fields.get("content") {
            let part = match fields.get("role").and_then(Value::as_str) {
                Some("assistant") => {
                    json!({"type": "output_text", "text": text, "annotations": []})
                }
                _ => json!({"type": "input_text", "text": text}),
            };
            fields.insert("content".to_owned(), json!([part]));
        }
    }
    item
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
    _: NoQuery,
    UrlPath(id): UrlPath<String>,
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
    _: NoQuery,
    UrlPath(id): UrlPath<String>,
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
    params(
        ("id" = String, Path, description = "The id of the response"),
        ("stream" = Option<bool>, Query, description = "False: the events of a response are not kept"),
        ("include" = Option<Vec<String>>, Query, description = "No effect: items are as they are stored"),
    ),
    responses((status = 200, body = Object), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn response(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> ApiResult<Response> {
    let known = ["include", "include_obfuscation", "starting_after", "stream"];
    for (name, value) in query::read(query.as_deref(), &known)? {
        let is_false = value.is_empty() || value.eq_ignore_ascii_case("false");
        // Streams are never padded.
        if name != "include_obfuscation" && !(name == "stream" && is_false) {
            // A client that expects events finds none in an object, and reports no error.
            let message = "the events of a response are not kept: expected a request without it";
            return Err(ApiError::unsupported(name, message));
        }
    }
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
    _: NoQuery,
    UrlPath(id): UrlPath<String>,
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

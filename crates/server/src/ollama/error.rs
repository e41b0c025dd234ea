//! Errors in the format of Ollama's API.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;

/// The body of an error response.
#[derive(Serialize, ToSchema)]
pub(crate) struct OllamaError {
    /// A message for humans.
    error: String,
}

/// Returns the JSON body of an error.
pub(crate) fn body(error: &ApiError) -> Value {
    json!({"error": error.detail.message})
}

/// Replaces the body of `response`, an error in OpenAI's format, by one in Ollama's format.
pub(crate) fn in_form(response: Response, error: &ApiError) -> Response {
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    (parts.status, parts.headers, Json(body(error))).into_response()
}

//! Errors in the format of Anthropic's API.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Returns the JSON body of an error.
pub(crate) fn body(error: &ApiError, id: &str) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let message = error.too_long.as_ref().unwrap_or(&error.detail.message);
    let mut detail = json!({"type": kind, "message": message});
    // Makes the tool runner of Anthropic's packages repeat the request without a thread.
    if error.detail.param.as_deref() == Some("thread") {
        detail["details"] =
            json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    }
    json!({"type": "error", "error": detail, "request_id": id})
}

/// Replaces the body of `response`, an error in OpenAI's format, by one in Anthropic's format.
pub(crate) fn in_form(response: Response, error: &ApiError, id: &str) -> Response {
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    (parts.status, parts.headers, Json(body(error, id))).into_response()
}

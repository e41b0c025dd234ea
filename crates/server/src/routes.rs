//! Which path leads where.

use std::sync::Arc;

use axum::http::{Method, StatusCode, Uri};
use axum::routing::{delete, get, post};
use axum::{Router, middleware};

use crate::app::App;
use crate::error::ApiError;
use crate::{
    anthropic, body, chat, completions, embeddings, guard, metrics, models, openapi, page, props, responses, sessions,
    text, timelines,
};

/// All of the server.
pub(crate) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/health", get(models::health))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::one))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/timelines/{id}", get(timelines::one))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/sessions", get(sessions::list))
        .route("/sessions/{name}", delete(sessions::delete))
        .route("/sessions/{name}/save", post(sessions::save))
        .route("/sessions/{name}/restore", post(sessions::restore))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/apply-template", post(text::apply_template))
        .route("/props", get(props::props))
        .route("/metrics", get(metrics::metrics))
        .route_layer(middleware::from_fn_with_state(Arc::clone(app), body::read))
        .merge(page::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::guard))
        .layer(middleware::from_fn_with_state(Arc::clone(app), metrics::count))
        .with_state(Arc::clone(app))
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is nothing at {method} {}", uri.path());
    ApiError::refused(StatusCode::NOT_FOUND, "unknown_url", message)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

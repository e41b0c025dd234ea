//! The table of routes.
//!
//! Every route is an entry of one [table]. A request that matches no entry requires a key as well.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::{Router, middleware};

use crate::app::App;
use crate::error::{ApiError, UNKNOWN_URL};
use crate::guard::Guard;
use crate::route::{Access, Entry, Route};
use crate::{
    anthropic, body, chat, completions, embeddings, guard, llama, metrics_routes, models, ollama,
    openapi, page, predict, props, request_id, rerank, response_memory, responses, sessions,
    stored_routes, text, timelines, tool_routes,
};

/// Returns the table of all routes.
fn table() -> Vec<Entry> {
    let mut table = vec![
        Entry::open("/health", models::health),
        Entry::open("/v1/health", models::health),
        Entry::open("/openapi.json", openapi::document),
        Entry::get("/v1/models", models::list),
        Entry::get("/models", models::list),
        Entry::get("/v1/models/{*model}", models::one),
        Entry::post("/v1/chat/completions", chat::complete),
        Entry::post("/chat/completions", chat::complete),
        Entry::post("/v1/completions", completions::complete),
        Entry::get("/v1/timelines/{id}", timelines::one),
        Entry::post("/v1/responses", responses::create),
        Entry::post("/responses", responses::create),
        Entry::post("/responses/input_tokens", responses::input_tokens),
        Entry::post("/v1/responses/input_tokens", responses::input_tokens),
        Entry::get("/v1/responses/{id}", stored_routes::response),
        Entry::new(
            "DELETE",
            "/v1/responses/{id}",
            stored_routes::delete_response,
        ),
        Entry::get("/v1/responses/{id}/input_items", stored_routes::inputs),
        Entry::post("/v1/conversations", stored_routes::create),
        Entry::post("/v1/conversations/{id}", stored_routes::update),
        Entry::get("/v1/conversations/{id}/items", stored_routes::items),
        Entry::post("/v1/conversations/{id}/items", stored_routes::add_items),
        Entry::get("/v1/conversations/{id}/items/{item}", stored_routes::item),
        Entry::new(
            "DELETE",
            "/v1/conversations/{id}/items/{item}",
            stored_routes::delete_item,
        ),
        Entry::get("/v1/conversations/{id}", stored_routes::conversation_of),
        Entry::new(
            "DELETE",
            "/v1/conversations/{id}",
            stored_routes::delete_conversation,
        ),
        Entry::post("/v1/messages", anthropic::create),
        Entry::post("/v1/messages/count_tokens", anthropic::count_tokens),
        Entry::post("/v1/embeddings", embeddings::create),
        Entry::post("/embedding", embeddings::plain),
        Entry::post("/embeddings", embeddings::plain),
        Entry::post("/embed", embeddings::embed),
        Entry::post("/", embeddings::embed),
        Entry::post("/predict", predict::predict),
        Entry::get("/sessions", sessions::list),
        Entry::new("DELETE", "/sessions/{name}", sessions::delete),
        Entry::post("/sessions/{name}/save", sessions::save),
        Entry::post("/sessions/{name}/restore", sessions::restore),
        Entry::post("/tokenize", text::tokenize),
        Entry::post("/detokenize", text::detokenize),
        Entry::post("/apply-template", text::apply_template),
        Entry::get("/props", props::props),
        Entry::post("/completion", llama::completion::completion),
        Entry::post("/completions", llama::completion::completion),
        Entry::post("/infill", llama::completion::fill),
        Entry::get("/slots", llama::slots::slots),
        Entry::post("/api/chat", ollama::chat::chat),
        Entry::post("/api/generate", ollama::generate::generate),
        Entry::post("/api/embed", ollama::embed::embed),
        Entry::post("/api/embeddings", ollama::embed::embeddings),
        Entry::get("/api/tags", ollama::models::tags),
        Entry::get("/api/ps", ollama::models::ps),
        Entry::get("/api/version", ollama::models::version),
        Entry::post("/api/show", ollama::models::show),
        Entry::post("/api/pull", ollama::pull::pull),
        Entry::new("DELETE", body::DELETE_PATH, ollama::pull::delete),
        Entry::get("/mcp/tools", tool_routes::list),
        Entry::post("/mcp/call", tool_routes::call),
        Entry::get("/metrics", metrics_routes::metrics).with(Access::Metrics),
    ];
    table.extend(rerank::PATHS.map(|path| Entry::post(path, rerank::rerank)));
    table.extend(page::routes());
    table
}

static ROUTES: LazyLock<Vec<Route>> =
    LazyLock::new(|| table().into_iter().map(|entry| entry.route).collect());

/// Returns every route of a server.
pub fn routes() -> &'static [Route] {
    &ROUTES
}

/// Returns the methods of all routes as a header value.
fn methods() -> HeaderValue {
    let methods: BTreeSet<_> = routes().iter().map(|route| route.method).collect();
    let methods = methods.into_iter().collect::<Vec<_>>().join(", ");
    methods.try_into().expect("routes have HTTP methods")
}

/// Returns the access that `request` requires.
fn access(request: &Request) -> Access {
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str);
    let method = if request.method() == Method::HEAD {
        "GET"
    } else {
        request.method().as_str()
    };
    let route = routes()
        .iter()
        .find(|route| Some(route.path) == path && route.method == method);
    route.map_or(Access::Key, |route| route.access)
}

/// Returns the router of all routes. Each request passes the guard.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router = table()
        .into_iter()
        .fold(Router::new(), |router, Entry { route, handler }| {
            router.route(route.path, handler)
        });
    let guard = Guard {
        app: Arc::clone(app),
        access,
        methods: methods(),
    };
    router
        .route_layer(middleware::from_fn_with_state(Arc::clone(app), body::read))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(app),
            response_memory::count,
        ))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .layer(middleware::from_fn_with_state(
            Arc::clone(app),
            metrics_routes::count,
        ))
        .layer(middleware::from_fn(request_id::name))
        .with_state(Arc::clone(app))
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no route {method} {}", uri.path());
    ApiError::refused(StatusCode::NOT_FOUND, UNKNOWN_URL, message)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    // It has the form of a response's path, and no response has such an id.
    if uri.path() == "/v1/responses/compact" {
        return unknown(method, uri).await;
    }
    let message = format!("{} does not support {method}", uri.path());
    ApiError::refused(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}

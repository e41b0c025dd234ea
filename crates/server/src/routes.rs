//! Which path leads where, and what it asks for.
//!
//! Every route is an entry of one [table]. A request that no entry is for wants a key, too.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use axum::extract::{MatchedPath, Request};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Router, middleware};

use crate::app::App;
use crate::error::ApiError;
use crate::{
    anthropic, chat, completions, embeddings, guard, metrics, models, openapi, page, props, responses, sessions, text,
    timelines,
};

/// What requests to a route need where the server has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it tells what the program is, and whether it runs.
    Open,
    /// A key.
    Key,
    /// The key of metrics, which are those of all keys.
    Metrics,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// In capitals. `GET` is for `HEAD`, too.
    pub method: &'static str,
    /// With `{name}` for any part, and `{*name}` for any end.
    pub path: &'static str,
    /// What a request needs.
    pub access: Access,
}

/// A route and what answers it.
pub(crate) struct Entry {
    route: Route,
    handler: MethodRouter<Arc<App>>,
}

impl Entry {
    /// A route that wants a key.
    fn new<T: 'static>(method: &'static str, path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        let filter = method.parse::<Method>().ok().and_then(|method| MethodFilter::try_from(method).ok());
        let handler = on(filter.expect("the table has methods of HTTP"), handler);
        Self { route: Route { method, path, access: Access::Key }, handler }
    }

    fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("GET", path, handler)
    }

    fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::new("POST", path, handler)
    }

    /// A route to read that needs no key.
    pub(crate) fn open<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Self {
        Self::get(path, handler).with(Access::Open)
    }

    fn with(mut self, access: Access) -> Self {
        self.route.access = access;
        self
    }
}

/// Returns all of the server.
fn table() -> Vec<Entry> {
    let mut table = vec![
        Entry::open("/health", models::health),
        Entry::open("/openapi.json", openapi::document),
        Entry::get("/v1/models", models::list),
        Entry::get("/v1/models/{*model}", models::one),
        Entry::post("/v1/chat/completions", chat::complete),
        Entry::post("/v1/completions", completions::complete),
        Entry::get("/v1/timelines/{id}", timelines::one),
        Entry::post("/v1/responses", responses::create),
        Entry::post("/v1/messages", anthropic::create),
        Entry::post("/v1/embeddings", embeddings::create),
        Entry::get("/sessions", sessions::list),
        Entry::new("DELETE", "/sessions/{name}", sessions::delete),
        Entry::post("/sessions/{name}/save", sessions::save),
        Entry::post("/sessions/{name}/restore", sessions::restore),
        Entry::post("/tokenize", text::tokenize),
        Entry::post("/detokenize", text::detokenize),
        Entry::post("/apply-template", text::apply_template),
        Entry::get("/props", props::props),
        Entry::get("/metrics", metrics::metrics).with(Access::Metrics),
    ];
    table.extend(page::routes());
    table
}

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| table().into_iter().map(|entry| entry.route).collect());

/// Returns every route of a server.
pub fn routes() -> &'static [Route] {
    &ROUTES
}

/// Returns the methods of all routes, as a header lists them.
pub(crate) fn methods() -> HeaderValue {
    static METHODS: LazyLock<HeaderValue> = LazyLock::new(|| {
        let methods: BTreeSet<_> = routes().iter().map(|route| route.method).collect();
        let methods = methods.into_iter().collect::<Vec<_>>().join(", ");
        methods.try_into().expect("the table has methods of HTTP")
    });
    METHODS.clone()
}

/// Returns what `request` needs.
pub(crate) fn access(request: &Request) -> Access {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let route = routes().iter().find(|route| Some(route.path) == path && route.method == method);
    route.map_or(Access::Key, |route| route.access)
}

/// Returns what answers all routes, each request by way of the guard.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router =
        table().into_iter().fold(Router::new(), |router, Entry { route, handler }| router.route(route.path, handler));
    router
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

//! `/metrics`: counters and histograms as OpenMetrics text for Prometheus.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counts requests by path and status.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_owned();
    let response = next.run(request).await;
    app.metrics().answered(path, response.status().as_u16());
    response
}

/// Returns the metrics.
#[utoipa::path(get, path = "/metrics", tag = "server", responses((status = 200, body = String, content_type = CONTENT_TYPE)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics().text()).into_response()
}

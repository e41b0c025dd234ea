//! `/metrics`: the server's [metrics](crate::metrics) as OpenMetrics text for Prometheus.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of Prometheus' older format, which clients read that do not ask for the other one.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

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

/// Returns the metrics, as OpenMetrics if the client accepts that, else in Prometheus' older format.
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses((status = 200, content(
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (String = "text/plain; version=0.0.4; charset=utf-8"))))
)]
pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let accepts = accepts.filter_map(|value| value.to_str().ok());
    let is_open = accepts
        .flat_map(|value| value.split(','))
        .any(|kind| kind.trim().starts_with("application/openmetrics-text"));
    let text = app.metrics().text();
    let (kind, text) = if is_open {
        (CONTENT_TYPE, text)
    } else {
        (TEXT, without_end(&text))
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Returns the metrics in Prometheus' older format, which has no end and no units, and names counters with their suffix.
fn without_end(text: &str) -> String {
    let name_of = |line: &str| line.split(' ').nth(2).unwrap_or_default().to_owned();
    let types = text.lines().filter(|line| line.starts_with("# TYPE "));
    let counters: BTreeSet<_> = types
        .filter(|line| line.ends_with(" counter"))
        .map(name_of)
        .collect();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("# EOF") && !line.starts_with("# UNIT "));
    let lines = lines.map(|line| {
        let name = name_of(line);
        if line.starts_with("# ") && counters.contains(&name) {
            format!("{}\n", line.replacen(&name, &format!("{name}_total"), 1))
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

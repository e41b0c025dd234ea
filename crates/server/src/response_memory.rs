//! The memory of large responses, which counts towards the share of their clients.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::body::LARGE;
use crate::guard::Caller;
use crate::held_body::HeldBody;

/// Counts a large response towards its client's share of memory until it is sent. A client may read nothing of it for
/// long. What was only read is refused beyond the share. What was computed is not: the client's next requests are.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().copied();
    let is_computed = request.method() == Method::POST;
    let response = next.run(request).await;
    // Streams have no length, and their parts are bounded.
    let bytes = response.body().size_hint().exact();
    let bytes = usize::try_from(bytes.unwrap_or(0)).unwrap_or(usize::MAX);
    let Some(caller) = caller.filter(|_| bytes >= LARGE) else {
        return response;
    };
    let mut share = app.bodies().share(caller.address);
    if is_computed {
        share.hold(bytes);
    } else if let Err(error) = share.grow(bytes) {
        return error.into_response();
    }
    response.map(|body| Body::new(HeldBody::new(body, share)))
}

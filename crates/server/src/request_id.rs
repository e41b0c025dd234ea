//! Names of requests, by which clients find them in their logs.
//!
//! Each answer has the name of its request as a header: `request-id` in Anthropic's API, `x-request-id` elsewhere. What goes
//! wrong with a request of Anthropic's API is in its form, wherever it is refused.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::anthropic_error;
use crate::error::ApiError;
use crate::names::new_id;

const ANTHROPIC: HeaderName = HeaderName::from_static("request-id");
const OTHERS: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum number of bytes of a name that a client gives.
const MAX_BYTES: usize = 128;

/// The name of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    fn new() -> Self {
        let id = HeaderValue::try_from(new_id("req_"));
        Self(id.expect("it has letters and digits"))
    }

    /// Returns the name that a client gives its request, if it is a short one of visible ASCII.
    fn given(headers: &HeaderMap) -> Option<Self> {
        let id = headers.get(OTHERS)?;
        let bytes = id.as_bytes();
        let is_sane =
            (1..=MAX_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        is_sane.then(|| Self(id.clone()))
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Gives a request its name, and its answer the header and the form of the API that it is for.
pub(crate) async fn name(mut request: Request, next: Next) -> Response {
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let given = RequestId::given(request.headers()).filter(|_| !is_anthropic);
    let id = given.unwrap_or_else(RequestId::new);
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = error.filter(|_| is_anthropic) {
        response = anthropic_error::in_form(response, &error, id.text());
    }
    let header = if is_anthropic { ANTHROPIC } else { OTHERS };
    response.headers_mut().insert(header, id.0);
    response
}

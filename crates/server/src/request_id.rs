//! Request ids, which let clients find requests in logs.
//!
//! Each response has its request's id as a header: `request-id` in Anthropic's API, `x-request-id` elsewhere. Errors of
//! requests to Anthropic's and Ollama's APIs have their formats, wherever the request is refused.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::anthropic_error;
use crate::error::{ApiError, UNKNOWN_URL};
use crate::models;
use crate::names::new_id;
use crate::ollama;

const ANTHROPIC: HeaderName = HeaderName::from_static("request-id");
const OTHERS: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum size in bytes of an id that a client chooses.
const MAX_BYTES: usize = 128;

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    fn new() -> Self {
        let id = HeaderValue::try_from(new_id("req_"));
        Self(id.expect("the id consists of letters, digits and `_`"))
    }

    /// Returns the id that a client gave its request, if it is short and consists of visible ASCII.
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

/// Returns whether a path is one of those that the APIs of OpenAI and Anthropic share.
fn is_models(path: &str) -> bool {
    path == "/v1/models" || path.starts_with("/v1/models/")
}

/// Assigns an id to a request, adds it as a header to the response, and converts errors to the API's format.
pub(crate) async fn name(mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let speaks_anthropic = models::is_anthropic(request.headers());
    let mut is_anthropic =
        path.starts_with("/v1/messages") || (is_models(path) && speaks_anthropic);
    let is_ollama = path == "/api" || path.starts_with("/api/");
    // Anthropic's clients choose no ids. Whether a path is one of Anthropic's that this server lacks is not known yet.
    let is_chosen_here = is_anthropic || (speaks_anthropic && !is_ollama);
    let given = RequestId::given(request.headers()).filter(|_| !is_chosen_here);
    let id = given.unwrap_or_else(RequestId::new);
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = error {
        // Paths of Anthropic's API that this server lacks.
        is_anthropic |= speaks_anthropic && !is_ollama && error.detail.code == Some(UNKNOWN_URL);
        if is_anthropic {
            response = anthropic_error::in_form(response, &error, id.text());
        } else if is_ollama {
            response = ollama::error::in_form(response, &error);
        }
    }
    let header = if is_anthropic { ANTHROPIC } else { OTHERS };
    response.headers_mut().insert(header, id.0);
    response
}

//! Reads the bodies of requests: JSON, of a bounded length, within a bounded time.
//!
//! All bodies in memory are counted together, with what becomes of them when they are parsed. A small one is parsed and its
//! request answered by the threads that serve connections; a large one has [threads](crate::bodies::Bodies) of its own, so that no other
//! connection waits for it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::bodies::Share;
use crate::error::{ApiError, ApiResult};
use crate::fields::RequestFields;

/// Bytes from which a body is a large one: parsing fewer takes less than a millisecond.
const LARGE: usize = 64 << 10;
/// Values in a body, at most.
const MOST_VALUES: usize = 1 << 20;
/// Bytes that a value takes when it is parsed, about.
const BYTES_PER_VALUE: usize = 64;

/// The JSON of a request, not looked at yet.
#[derive(Clone)]
pub(crate) struct JsonBody {
    bytes: Bytes,
    /// Its share of the memory for bodies.
    _share: Arc<Share>,
}

impl JsonBody {
    /// Refuses fields that are not followed: every body is checked before it is parsed.
    ///
    /// # Errors
    /// As [`RequestFields::check`].
    pub(crate) fn check(&self, fields: &RequestFields) -> ApiResult<()> {
        fields.check(&self.bytes)
    }

    /// What the request says, as far as `T` has fields for it.
    ///
    /// # Errors
    /// If it is no JSON, is nested deeper than `serde_json` allows (128), or a field has a wrong type.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> ApiResult<T> {
        let mut json = serde_json::Deserializer::from_slice(&self.bytes);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let cause = error.inner();
            if cause.is_data() && path != "." {
                ApiError::field(&path, cause.to_string())
            } else {
                ApiError::invalid(format!("the body is no JSON object as expected: {cause}"))
                    .with_code("invalid_json")
            }
        })?;
        json.end().map_err(|error| {
            ApiError::invalid(format!("something follows the JSON object: {error}"))
                .with_code("invalid_json")
        })?;
        Ok(parsed)
    }
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, _: &Arc<App>) -> ApiResult<Self> {
        let read = request.extensions_mut().remove::<ApiResult<Self>>();
        read.unwrap_or_else(|| Err(ApiError::internal("the body was not read")))
    }
}

/// Reads the body of a request, which its handler takes from the extensions, and answers the request where no connection
/// waits for a large one.
pub(crate) async fn read(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let read = collect(&app, &parts.headers, body).await;
    if !read.as_ref().is_ok_and(|(bytes, _)| bytes.len() >= LARGE) {
        parts.extensions.insert(read.map(|(bytes, share)| JsonBody {
            bytes,
            _share: Arc::new(share),
        }));
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    let threads = app.bodies().threads.clone();
    let answer = async move {
        let read = read.and_then(|(bytes, mut share)| {
            share.grow(app.bodies(), check_values(&bytes)? * BYTES_PER_VALUE)?;
            Ok(JsonBody {
                bytes,
                _share: Arc::new(share),
            })
        });
        parts.extensions.insert(read);
        next.run(Request::from_parts(parts, Body::empty())).await
    };
    let mut answer = AbortOnDrop(threads.spawn(answer));
    let answered = (&mut answer.0).await;
    answered
        .unwrap_or_else(|_| ApiError::internal("the work of a request panicked").into_response())
}

/// Ends the answer to a request when its client goes away.
struct AbortOnDrop(JoinHandle<Response>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The bytes of a body, and its share of the memory for bodies.
async fn collect(app: &App, headers: &HeaderMap, body: Body) -> ApiResult<(Bytes, Share)> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    // Pages of other origins may send anything else without asking first.
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = "expected a body with the header Content-Type: application/json";
        return Err(ApiError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        ));
    }
    let (most, time_out) = (app.options.body_bytes, app.options.client_time_out);
    let too_large = || {
        let message = format!("the body has more than {most} bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    if length
        .and_then(|length| length.parse::<u64>().ok())
        .is_some_and(|length| length > most as u64)
    {
        return Err(too_large());
    }
    let mut body: Limited<Body> = Limited::new(body, most);
    let (mut bytes, mut share) = (Vec::new(), Share(None));
    let collected = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    too_large()
                } else {
                    ApiError::invalid(format!("the body could not be read: {error}"))
                }
            })?;
            if let Ok(data) = frame.into_data() {
                // What is there, not what was announced: a client that sends nothing holds nothing.
                share.grow(app.bodies(), data.len())?;
                bytes.extend_from_slice(&data);
            }
        }
        Ok::<_, ApiError>(())
    };
    tokio::time::timeout(time_out, collected)
        .await
        .map_err(|_| {
            let message = format!("the body did not arrive within {} s", time_out.as_secs());
            ApiError::refused(StatusCode::REQUEST_TIMEOUT, "request_time_out", message)
        })??;
    Ok((bytes.into(), share))
}

/// Returns how many values a body has.
///
/// # Errors
/// If there are more than in any that is of use.
fn check_values(bytes: &[u8]) -> ApiResult<usize> {
    let (mut values, mut is_text, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => values += 1,
            _ => {}
        }
    }
    if values > MOST_VALUES {
        let message = format!("the body has {values} values, expected at most {MOST_VALUES}");
        return Err(ApiError::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            message,
        ));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_body_are_counted_without_those_that_texts_look_like() {
        assert_eq!(
            check_values(br#"{"a": [1, 2], "b": "x, [y]: \\\", {"}"#).unwrap(),
            7
        );
        assert_eq!(
            check_values(&vec![b','; MOST_VALUES])
                .unwrap_err()
                .detail
                .code,
            Some("body_too_large")
        );
    }
}

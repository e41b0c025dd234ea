//! Reading of request bodies: JSON with a limited length, within a limited time.
//!
//! All bodies in memory count towards one limit, including their parsed values. A small body is parsed by the threads
//! that serve connections, which also handle its request. A large one is handled by separate
//! [threads](crate::bodies::Bodies), so that it does not delay other connections.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use triad_model::files;

use crate::app::App;
use crate::bodies::Share;
use crate::error::{ApiError, ApiResult};
use crate::fields::{RequestFields, refuse_repeated};
use crate::guard::Caller;
use crate::held_body::HeldBody;
use crate::json_errors;
use crate::options::ServerOptions;

/// The size in bytes from which a body is large. Parsing a smaller one takes less than a millisecond.
pub(crate) const LARGE: usize = 64 << 10;
/// Maximum number of values in a body.
const MAX_VALUES: usize = 1 << 20;
/// Estimated memory of a parsed value in bytes, and what it has in addition in an object, with its name.
const BYTES_PER_VALUE: usize = 64;
const BYTES_PER_NAME: usize = 192;
/// Minimum rate of a body in bytes per second, once it has been arriving for longer than the stall timeout.
const MIN_RATE: usize = 16 << 10;
/// The path of the only requests `DELETE` with a body.
pub(crate) const DELETE_PATH: &str = "/api/delete";
/// The header in which browsers say how the sender's site relates to the server's.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The unparsed JSON body of a request.
#[derive(Clone)]
pub(crate) struct JsonBody {
    bytes: Bytes,
    /// The body's share of the memory limit.
    share: Arc<Share>,
}

impl JsonBody {
    /// Creates a body with its share of memory. A byte order mark at its start is ignored.
    ///
    /// # Errors
    /// If an object has a name twice.
    fn new(bytes: &Bytes, share: Share) -> ApiResult<Self> {
        let bytes = bytes.slice_ref(files::without_mark(bytes));
        refuse_repeated(&bytes)?;
        let share = Arc::new(share);
        Ok(Self { bytes, share })
    }

    /// Refuses fields that an endpoint does not have.
    ///
    /// # Errors
    /// As [`RequestFields::check`].
    pub(crate) fn checked(self, fields: &RequestFields) -> ApiResult<CheckedBody> {
        fields.check(&self.bytes)?;
        Ok(CheckedBody(self))
    }
}

/// The body of a request that has only fields of its endpoint.
#[derive(Clone)]
pub(crate) struct CheckedBody(JsonBody);

impl CheckedBody {
    /// Returns a response that repeats fields of the body: the body's memory counts until the response is sent.
    pub(crate) fn hold(self, response: Response) -> Response {
        response.map(|body| Body::new(HeldBody::new(body, self.0.share)))
    }

    /// Parses the fields of `T` from the body.
    ///
    /// # Errors
    /// If the body is not valid JSON, is nested deeper than `serde_json` allows (128), or a field has a wrong type.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> ApiResult<T> {
        let mut json = serde_json::Deserializer::from_slice(&self.0.bytes);
        let parsed = json_errors::read("", &mut json)?;
        json.end().map_err(|error| {
            ApiError::invalid(format!("unexpected data after the JSON object: {error}"))
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

/// Reads the body of a request into the request's extensions. The handler of a large body runs on separate threads.
pub(crate) async fn read(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let deletes = matched.is_some_and(|path| path.as_str() == DELETE_PATH);
    if request.method() != Method::POST && !(deletes && request.method() == Method::DELETE) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Some(caller) = parts.extensions.get::<Caller>() else {
        return ApiError::internal("a request that did not pass the guard").into_response();
    };
    let share = app.bodies().share(caller.address);
    let read = collect(&app, &parts.headers, body, share).await;
    if !read.as_ref().is_ok_and(|(bytes, _)| bytes.len() >= LARGE) {
        let read = read.and_then(|(bytes, share)| JsonBody::new(&bytes, share));
        parts.extensions.insert(read);
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    let threads = app.bodies().threads.clone();
    let answer = async move {
        let read = read.and_then(|(bytes, mut share)| {
            share.grow(parsed_bytes(&bytes)?)?;
            JsonBody::new(&bytes, share)
        });
        parts.extensions.insert(read);
        next.run(Request::from_parts(parts, Body::empty())).await
    };
    let mut answer = AbortOnDrop(threads.spawn(answer));
    let answered = (&mut answer.0).await;
    answered
        .unwrap_or_else(|_| ApiError::internal("the work of a request panicked").into_response())
}

/// Aborts the handler of a request when its client disconnects.
struct AbortOnDrop(JoinHandle<Response>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the bytes of a body into its share of the memory limit.
async fn collect(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    mut share: Share,
) -> ApiResult<(Bytes, Share)> {
    check_type(headers)?;
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    if let Some(encoding) =
        encodings.find(|name| !name.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        let message = format!(
            "the header Content-Encoding is {encoding:?}: expected a body as it is, without it"
        );
        return Err(ApiError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_encoding",
            message,
        ));
    }
    let most = app.options.body_bytes;
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
    let mut bytes = Vec::new();
    let begin = Instant::now();
    loop {
        let deadline = deadline(begin, Instant::now(), bytes.len(), &app.options);
        let frame = tokio::time::timeout_at(deadline, body.frame()).await;
        let Some(frame) = frame.map_err(|_| too_slow(begin, bytes.len()))? else {
            break;
        };
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                too_large()
            } else {
                ApiError::invalid(format!("the body could not be read: {error}"))
            }
        })?;
        if let Ok(data) = frame.into_data() {
            // Count received bytes rather than Content-Length, so that a client that sends nothing uses no memory.
            share.grow(data.len())?;
            bytes.extend_from_slice(&data);
        }
    }
    Ok((bytes.into(), share))
}

/// Checks that a browser sends a body as JSON. A body of another program is read as JSON whatever its type is: client
/// libraries send none, that of forms (`curl -d`), `text/plain` (Node's `fetch`) or `application/octet-stream` (aiohttp).
///
/// A web page of another origin can send some types without a CORS preflight, but its browser adds `Origin` then.
///
/// # Errors
/// If a browser sends another type.
fn check_type(headers: &HeaderMap) -> ApiResult<()> {
    let is_browser = headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let kind = value.to_str().unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    if is_json || !is_browser {
        return Ok(());
    }
    let message = "expected a body with the header Content-Type: application/json";
    Err(ApiError::refused(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        message,
    ))
}

/// Returns the time at which a body is aborted, if it started at `begin`, has `bytes` so far, and nothing more arrives.
/// A stalled or slow body therefore does not hold memory for long.
fn deadline(begin: Instant, now: Instant, bytes: usize, options: &ServerOptions) -> Instant {
    let stall = options.head_time_out.min(options.client_time_out);
    let steady = Duration::from_secs_f64(bytes as f64 / MIN_RATE as f64);
    (begin + options.client_time_out)
        .min(now + stall)
        .min(begin + stall + steady)
}

fn too_slow(begin: Instant, bytes: usize) -> ApiError {
    let seconds = begin.elapsed().as_secs_f64();
    let message = format!("the body arrives too slowly: {bytes} bytes of it in {seconds:.1} s");
    ApiError::refused(StatusCode::REQUEST_TIMEOUT, "request_time_out", message)
}

/// Estimates the memory of the JSON values of a body in bytes.
///
/// # Errors
/// If there are more than [`MAX_VALUES`].
fn parsed_bytes(bytes: &[u8]) -> ApiResult<usize> {
    let (mut values, mut names) = (1, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => values += 1,
            b':' if !is_text => names += 1,
            _ => {}
        }
    }
    let values = values + names;
    if values > MAX_VALUES {
        let message = format!("the body has {values} values, expected at most {MAX_VALUES}");
        return Err(ApiError::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            message,
        ));
    }
    Ok(values * BYTES_PER_VALUE + names * BYTES_PER_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_body_are_counted_without_those_that_texts_look_like() {
        assert_eq!(
            parsed_bytes(br#"{"a": [1, 2], "b": "x, [y]: \\\", {"}"#).unwrap(),
            7 * BYTES_PER_VALUE + 2 * BYTES_PER_NAME
        );
        assert_eq!(
            parsed_bytes(&vec![b','; MAX_VALUES])
                .unwrap_err()
                .detail
                .code,
            Some("body_too_large")
        );
    }

    #[test]
    fn a_body_that_stalls_or_arrives_slowly_is_ended_before_one_that_arrives_steadily() {
        let options = ServerOptions {
            head_time_out: Duration::from_secs(5),
            client_time_out: Duration::from_secs(30),
            ..ServerOptions::default()
        };
        let begin = Instant::now();
        let after = |seconds: u64, bytes| {
            let now = begin + Duration::from_secs(seconds);
            (deadline(begin, now, bytes, &options) - begin).as_secs()
        };
        // In this order: nothing arrives; nothing after a first part; less than the minimum rate; enough, but for too
        // long.
        assert_eq!(after(0, 0), 5);
        assert_eq!(after(2, 8 << 20), 7);
        assert_eq!(after(9, 5 * MIN_RATE), 10);
        assert_eq!(after(28, 8 << 20), 30);
    }
}

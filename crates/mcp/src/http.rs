//! Servers that are reached by streamable HTTP. Requests go through `ureq`, as all that Triad fetches.
//!
//! A server may answer a request with one JSON object, or with a stream of events that ends with it. What else such a
//! stream has (logs, progress) is skipped. No stream is opened for messages that belong to no request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;
use ureq::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
};
use ureq::{Agent, Body};

use crate::meter::Meter;

type Failure = StreamableHttpError<ureq::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// Bytes of an error's body that are shown.
const SHOWN: u64 = 300;

/// Sends requests to one server.
#[derive(Clone)]
pub(crate) struct HttpClient {
    agent: Agent,
    meter: Meter,
}

impl HttpClient {
    /// Creates a client whose requests take at most `time`.
    pub(crate) fn new(time: Duration, meter: &Meter) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // A server elsewhere must not get what is meant for this one.
            .max_redirects(0)
            .timeout_global(Some(time))
            .build()
            .new_agent();
        Self {
            agent,
            meter: meter.clone(),
        }
    }

    /// Sends a request in a thread for blocking work.
    async fn run<T: Send + 'static>(
        &self,
        request: Result<Request<Vec<u8>>, ureq::http::Error>,
        read: impl FnOnce(Response<Body>, &Meter) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let request = request.map_err(|error| StreamableHttpError::Client(error.into()))?;
        let this = self.clone();
        let send = move || {
            let response = this.agent.run(request);
            read(response.map_err(StreamableHttpError::Client)?, &this.meter)
        };
        tokio::task::spawn_blocking(send).await?
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = ureq::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        custom: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(&message)?;
        let asked = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let had_session = session.is_some();
        let request = request(
            Method::POST,
            &uri,
            session.as_deref(),
            token.as_deref(),
            custom,
        )
        .header(header::CONTENT_TYPE, JSON_MIME_TYPE)
        .header(
            header::ACCEPT,
            format!("{JSON_MIME_TYPE}, {EVENT_STREAM_MIME_TYPE}"),
        )
        .body(body);
        self.run(request, move |response, meter| {
            let answer = answer(response, had_session, meter)?;
            belongs(asked.as_ref(), answer)
        })
        .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        custom: Headers,
    ) -> Result<(), Failure> {
        let request = request(
            Method::DELETE,
            &uri,
            Some(&session),
            token.as_deref(),
            custom,
        );
        self.run(request.body(Vec::new()), |response, _| {
            match response.status() {
                StatusCode::METHOD_NOT_ALLOWED => {
                    Err(StreamableHttpError::ServerDoesNotSupportDeleteSession)
                }
                _ => Ok(()),
            }
        })
        .await
    }

    async fn get_stream(
        &self,
        _: Arc<str>,
        _: Option<Arc<str>>,
        _: Option<String>,
        _: Option<String>,
        _: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

fn request(
    method: Method,
    uri: &str,
    session: Option<&str>,
    token: Option<&str>,
    custom: Headers,
) -> ureq::http::request::Builder {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in custom {
        request = request.header(name, value);
    }
    if let Some(session) = session {
        request = request.header(HEADER_SESSION_ID, session);
    }
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    request
}

/// Checks that a request is answered, and by its own answer. The request would wait for ever for another one.
fn belongs(
    asked: Option<&RequestId>,
    answer: StreamableHttpPostResponse,
) -> Result<StreamableHttpPostResponse, Failure> {
    let Some(asked) = asked else {
        return Ok(answer);
    };
    let wrong = |message: String| {
        Err(StreamableHttpError::UnexpectedServerResponse(
            message.into(),
        ))
    };
    let id = match &answer {
        StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Response(response), _) => {
            Some(&response.id)
        }
        StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) => {
            match &error.id {
                Some(id) => Some(id),
                None => return wrong(format!("an error: {}", error.error.message)),
            }
        }
        StreamableHttpPostResponse::Accepted => {
            return wrong("it accepts the request, but does not answer it".into());
        }
        _ => None,
    };
    match id {
        Some(id) if id == asked => Ok(answer),
        Some(id) => wrong(format!(
            "it answers the request {id}, which is not the one that was made"
        )),
        None => wrong("it answers the request with a message that is no answer".into()),
    }
}

/// Reads the response to a message.
fn answer(
    response: Response<Body>,
    had_session: bool,
    meter: &Meter,
) -> Result<StreamableHttpPostResponse, Failure> {
    let status = response.status();
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        return Ok(StreamableHttpPostResponse::Accepted);
    }
    if status == StatusCode::NOT_FOUND && had_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    let text = |headers: &HeaderMap, name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    let session = text(response.headers(), HEADER_SESSION_ID);
    let kind = text(response.headers(), header::CONTENT_TYPE.as_str());
    let is = |expected: &str| {
        let kind = kind.as_deref().unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case(expected)
    };
    let reader = Counted {
        reader: response.into_body().into_reader(),
        meter: meter.clone(),
    };
    if status.is_success() && is(EVENT_STREAM_MIME_TYPE) {
        let message = last_event(BufReader::new(reader))?;
        return Ok(StreamableHttpPostResponse::Json(message, session));
    }
    let mut body = Vec::new();
    let mut reader: Box<dyn Read> = match status.is_success() || is(JSON_MIME_TYPE) {
        true => Box::new(reader),
        false => Box::new(reader.take(SHOWN)),
    };
    reader.read_to_end(&mut body)?;
    let parsed = serde_json::from_slice(&body);
    match parsed {
        Ok(message) if is(JSON_MIME_TYPE) => Ok(StreamableHttpPostResponse::Json(message, session)),
        Err(error) if status.is_success() && is(JSON_MIME_TYPE) => Err(error.into()),
        _ if status.is_success() => Err(StreamableHttpError::UnexpectedContentType(kind)),
        _ => {
            let text: String = String::from_utf8_lossy(&body)
                .chars()
                .take(SHOWN as usize)
                .collect();
            let message = format!("HTTP status {status}: {}", text.trim());
            Err(StreamableHttpError::UnexpectedServerResponse(
                message.into(),
            ))
        }
    }
}

/// Reads events up to the first one that is a response or an error.
fn last_event(mut reader: impl BufRead) -> Result<ServerJsonRpcMessage, Failure> {
    let (mut data, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        let is_end = reader.read_line(&mut line)? == 0;
        let text = line.trim_end_matches(['\r', '\n']);
        if let Some(value) = text.strip_prefix("data:") {
            data.push_str(value.strip_prefix(' ').unwrap_or(value));
            data.push('\n');
        }
        if !text.is_empty() && !is_end {
            continue;
        }
        if !data.trim().is_empty() {
            let message: ServerJsonRpcMessage = serde_json::from_str(&data)?;
            let is_answer = matches!(
                message,
                ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)
            );
            if is_answer {
                return Ok(message);
            }
            data.clear();
        }
        if is_end {
            return Err(StreamableHttpError::UnexpectedEndOfStream);
        }
    }
}

/// A reader that fails once the server sent too much.
struct Counted<R> {
    reader: R,
    meter: Meter,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.meter.take(count as u64)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_events_is_read_up_to_its_answer() {
        let answer = r#"{"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}"#;
        let log = r#"{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}"#;
        let stream = format!(
            ": hello\r\n\r\nevent: message\r\ndata: {log}\r\n\r\nid: 1\ndata: {answer}\n\nrest"
        );
        let message = last_event(stream.as_bytes()).unwrap();
        assert!(matches!(message, ServerJsonRpcMessage::Response(_)));
        // The last event may lack its empty line.
        let cut = format!("data: {answer}");
        assert!(last_event(cut.as_bytes()).is_ok());
        let none = last_event(format!("data: {log}\n\n").as_bytes()).unwrap_err();
        assert!(matches!(none, StreamableHttpError::UnexpectedEndOfStream));
        let rubbish = last_event(&b"data: {\n\n"[..]).unwrap_err();
        assert!(matches!(rubbish, StreamableHttpError::Deserialize(_)));
    }
}

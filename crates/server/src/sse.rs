//! Parts of answers as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use crate::answers::{Answers, Part};

/// How often a client that has nothing to read is sent a comment, so that it is found out when it is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The form of an event, for `/openapi.json`: OpenAPI 3.1 has a stream's schema describe each of its events.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only a description of what `axum` writes")]
pub(crate) struct StreamEvent {
    /// The event's kind; `message` where it has no name, as in OpenAI's completions.
    event: Option<String>,
    /// A part of the answer as JSON; behind the last part of OpenAI's completions, `[DONE]`.
    data: String,
}

/// What makes events of parts.
pub(crate) trait Render: Send + 'static {
    /// What is sent before the first part.
    fn begin(&mut self) -> Vec<Event>;
    /// What is sent of a part.
    fn part(&mut self, part: Part) -> Vec<Event>;
    /// What is sent behind the last part.
    fn end(&mut self) -> Vec<Event>;
}

/// The events of `answers`, which are cancelled when the response is dropped.
pub(crate) fn respond(mut answers: Answers, mut render: impl Render) -> Response {
    let begin = stream::iter(render.begin());
    let parts = stream::poll_fn(move |context| answers.parts.poll_recv(context)).map(Some);
    let events = parts.chain(stream::iter([None])).flat_map(move |part| {
        stream::iter(match part {
            Some(part) => render.part(part),
            None => render.end(),
        })
    });
    let events = begin.chain(events).map(Ok::<_, Infallible>);
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // Proxies that collect what they pass on would hold every part back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An event with `data` as JSON.
pub(crate) fn json(data: &impl Serialize) -> Event {
    Event::default().data(serde_json::to_string(data).expect("responses are JSON"))
}

/// Returns an event of the kind `name` with `data` as JSON. The kind is its first line: some clients read it before the data.
pub(crate) fn named(name: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).expect("responses are JSON");
    Event::default().event(name).data(data)
}

/// The last event of OpenAI's streams.
pub(crate) fn done() -> Event {
    Event::default().data("[DONE]")
}

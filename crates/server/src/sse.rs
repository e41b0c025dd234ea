//! Streaming of completions as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::{Answers, StreamItem};

/// The interval of keep-alive comments in an idle stream, which detect a client that disconnected.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An event of a `text/event-stream` response: the schema of such a response describes one event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only a description of what `axum` writes")]
pub(crate) struct StreamEvent {
    /// The kind of the event. Without a name it is `message`, as in OpenAI's completions.
    event: Option<String>,
    /// A chunk of the completion as JSON. After the last chunk of OpenAI's completions, `[DONE]`.
    data: String,
}

/// A conversion of parts into events.
pub(crate) trait Render: Send + 'static {
    /// Returns the events before the first part.
    fn begin(&mut self) -> Vec<Event>;
    /// Returns the events of a part.
    fn part(&mut self, part: StreamItem) -> Vec<Event>;
    /// Returns the events after the last part.
    fn end(&mut self) -> Vec<Event>;
}

/// Returns a stream of the events of `answers`. Dropping the response cancels `answers`.
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
    // Disables buffering in proxies, which would delay each chunk.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns an event with `data` as JSON.
pub(crate) fn json(data: &impl Serialize) -> Event {
    Event::default().data(serde_json::to_string(data).expect("responses serialize to JSON"))
}

/// Returns an event of the kind `name` with `data` as JSON. The kind is the event's first line, because some clients
/// read it before the data.
pub(crate) fn named(name: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).expect("responses serialize to JSON");
    Event::default().event(name).data(data)
}

/// Returns the last event of OpenAI's streams.
pub(crate) fn done() -> Event {
    Event::default().data("[DONE]")
}

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
    /// Returns whether the response needs no more parts, although more may arrive.
    fn is_over(&self) -> bool {
        false
    }
}

/// Returns a stream of the events of `answers`. Dropping the response cancels `answers`, and so does its end.
pub(crate) fn respond(answers: Answers, mut render: impl Render) -> Response {
    let begin = stream::iter(render.begin());
    let events = stream::unfold((Some(answers), render), |(open, mut render)| async move {
        let mut answers = open?;
        let (mut events, is_over) = match answers.parts.recv().await {
            Some(part) => (render.part(part), render.is_over()),
            None => (Vec::new(), true),
        };
        if is_over {
            events.extend(render.end());
        }
        // Dropping the answers ends their generation, and gives their place in the queue back.
        let open = (!is_over).then_some(answers);
        Some((stream::iter(events), (open, render)))
    });
    let events = begin.chain(events.flatten()).map(Ok::<_, Infallible>);
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use triad_engine::Cancel;

    use super::*;

    /// A response that needs this number of parts.
    struct Short(usize);

    impl Render for Short {
        fn begin(&mut self) -> Vec<Event> {
            vec![json(&"begin")]
        }

        fn part(&mut self, _: StreamItem) -> Vec<Event> {
            self.0 -= 1;
            vec![json(&"part")]
        }

        fn end(&mut self) -> Vec<Event> {
            vec![json(&"end")]
        }

        fn is_over(&self) -> bool {
            self.0 == 0
        }
    }

    /// Returns the events of a response that needs `needed` parts, and whether its answers are cancelled, if there are
    /// three parts, and more may follow if `is_open`.
    async fn events(needed: usize, is_open: bool) -> (String, bool) {
        let (sender, parts) = mpsc::channel(4);
        for choice in 0..3 {
            let (text, tokens, count) = ("a".into(), Vec::new(), 1);
            let part = StreamItem::Text {
                choice,
                text,
                tokens,
                count,
            };
            sender.send(part).await.unwrap();
        }
        let sender = is_open.then_some(sender);
        let cancel = Cancel::new();
        let response = respond(Answers::of_parts(parts, cancel.clone()), Short(needed));
        let body = axum::body::to_bytes(response.into_body(), 1 << 16);
        let body = tokio::time::timeout(Duration::from_secs(5), body).await;
        let body = body.expect("the stream stays open").unwrap();
        let is_closed = sender.is_none_or(|sender| sender.is_closed());
        let text = String::from_utf8(body.to_vec()).unwrap();
        (text, is_closed && cancel.is_cancelled())
    }

    #[tokio::test]
    async fn a_response_that_is_over_ends_its_stream_and_its_answers() {
        let expected = "data: \"begin\"\n\ndata: \"part\"\n\ndata: \"part\"\n\ndata: \"end\"\n\n";
        assert_eq!(events(2, true).await, (expected.to_owned(), true));
    }

    #[tokio::test]
    async fn a_response_ends_after_the_last_part() {
        let (text, is_cancelled) = events(9, false).await;
        assert_eq!(text.matches("part").count(), 3);
        assert!(text.ends_with("data: \"end\"\n\n") && is_cancelled);
    }
}

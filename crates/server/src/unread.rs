//! Request bodies that a response leaves unread.
//!
//! A request may be answered before its body is read: its key is wrong, or the body too large. If the connection ended at
//! once, a client that still writes would get a reset in place of the response. The rest of the body is therefore read and
//! dropped, within limits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, header};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::connections::Connection;
use crate::options::ServerOptions;

/// The rest of a body that is read, in multiples of the largest body.
const BODIES: usize = 8;

/// The limits within which the rest of a body is read.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes: usize,
    time: Duration,
    /// The time within which some of the rest has to arrive.
    pause: Duration,
}

/// The body of a request on `connection`. Dropped before its end, the rest is read and dropped.
pub(crate) struct RequestBody {
    /// `None` once the rest is read elsewhere.
    body: Option<Incoming>,
    connection: Arc<Connection>,
    limits: Limits,
    /// Whether nothing more of the body is to be read: it is complete, has stalled, or its client waits for the permission to
    /// send it.
    is_over: bool,
}

impl RequestBody {
    /// Returns `body` of a request with `headers`.
    pub(crate) fn new(
        body: Incoming,
        headers: &HeaderMap,
        connection: Arc<Connection>,
        options: &ServerOptions,
    ) -> Self {
        Self {
            is_over: body.is_end_stream() || headers.contains_key(header::EXPECT),
            body: Some(body),
            connection,
            limits: Limits {
                bytes: options.body_bytes.saturating_mul(BODIES),
                time: options.client_time_out,
                pause: options.head_time_out,
            },
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        self.is_over = !matches!(polled, Poll::Ready(Some(Ok(_))));
        Poll::Ready(ready!(polled))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::new, Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.is_over || self.is_end_stream() {
            return;
        }
        // Without a runtime, the server ends, and its connections with it.
        if let (Some(body), Ok(runtime)) = (self.body.take(), Handle::try_current()) {
            let rest = self.connection.read_rest();
            let limits = self.limits;
            runtime.spawn(async move {
                read_rest(body, limits).await;
                drop(rest);
            });
        }
    }
}

/// Reads the rest of a body, until it ends or exceeds its limits.
async fn read_rest(mut body: impl Body<Data = Bytes> + Unpin, limits: Limits) {
    let end = Instant::now() + limits.time;
    let mut bytes = 0_usize;
    while bytes <= limits.bytes {
        let deadline = end.min(Instant::now() + limits.pause);
        let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await else {
            return;
        };
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;

    use super::*;

    /// Returns the number of frames of 10 bytes that are read from an endless body, each of which comes after `pause`.
    async fn frames(limits: Limits, pause: Duration) -> usize {
        let (sender, mut sent) = tokio::sync::mpsc::unbounded_channel();
        let stream = futures_util::stream::unfold(sender, move |sender| async move {
            tokio::time::sleep(pause).await;
            let _ = sender.send(());
            let frame = Frame::data(Bytes::from_static(&[0; 10]));
            Some((Ok::<_, Infallible>(frame), sender))
        });
        read_rest(Box::pin(StreamBody::new(stream)), limits).await;
        let mut count = 0;
        while sent.try_recv().is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn the_rest_of_a_body_is_read_until_it_is_too_large_takes_too_long_or_stalls() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(600));
        let limits = |bytes, time, pause| Limits { bytes, time, pause };
        let of_bytes = limits(100, long, long);
        assert_eq!(frames(of_bytes, Duration::ZERO).await, 11);
        // It would never end.
        let of_time = limits(usize::MAX, 5 * short, long);
        frames(of_time, short).await;
        let of_pause = limits(usize::MAX, long, short);
        assert_eq!(frames(of_pause, long).await, 0);
    }
}

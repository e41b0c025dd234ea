//! Response bodies that hold something until they are sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};

/// Maximum size of a frame in bytes. A connection takes a whole frame before it sends it.
const FRAME: usize = 64 << 10;

/// The body of a response. It drops what it holds when its last frame is taken, or its client leaves.
pub(crate) struct HeldBody<T> {
    body: Body,
    /// The rest of the latest frame.
    rest: Bytes,
    _held: T,
}

impl<T> HeldBody<T> {
    /// Returns `body` with `held` attached.
    pub(crate) fn new(body: Body, held: T) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _held: held,
        }
    }
}

impl<T: Unpin> hyper::body::Body for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let bytes = self.rest.len().min(FRAME);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest + of_body.lower());
        if let Some(upper) = of_body.upper() {
            hint.set_upper(rest.saturating_add(upper));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn what_a_body_holds_stays_until_its_last_frame_is_taken() {
        let held = Arc::new(());
        let text: Bytes = (0..=255).cycle().take(3 * FRAME + 5).collect();
        let mut body = HeldBody::new(Body::from(text.clone()), Arc::clone(&held));
        let mut taken = Vec::new();
        while taken.len() < text.len() {
            let left = (text.len() - taken.len()) as u64;
            assert_eq!(hyper::body::Body::size_hint(&body).exact(), Some(left));
            assert!(!hyper::body::Body::is_end_stream(&body));
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(frame.len() <= FRAME, "{}", frame.len());
            taken.extend(frame);
        }
        assert!(taken == text && hyper::body::Body::is_end_stream(&body));
        drop(body);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

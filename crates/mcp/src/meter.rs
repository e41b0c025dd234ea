//! Counts the bytes that a server sends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// The bytes that a server may still send for the running request.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    left: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Counts {
            left: AtomicU64::new(0),
            is_exceeded: AtomicBool::new(false),
        }))
    }

    /// Allows `most` bytes from now on.
    pub(crate) fn allow(&self, most: u64) {
        self.0.left.store(most, Ordering::Relaxed);
    }

    /// Returns whether the server ever sent too much.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.0.is_exceeded.load(Ordering::Relaxed)
    }

    /// Takes `bytes` from the rest.
    ///
    /// # Errors
    /// If there are not as many.
    pub(crate) fn take(&self, bytes: u64) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(bytes);
        let counts = &*self.0;
        if counts
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_err()
        {
            counts.is_exceeded.store(true, Ordering::Relaxed);
            return Err(io::Error::other("the server sends too much"));
        }
        Ok(())
    }
}

/// A reader that fails once the server sent too much.
pub(crate) struct Metered<R> {
    pub(crate) reader: R,
    pub(crate) meter: Meter,
}

impl<R: AsyncRead + Unpin> AsyncRead for Metered<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.reader).poll_read(context, buffer))?;
        Poll::Ready(this.meter.take((buffer.filled().len() - before) as u64))
    }
}

//! The memory budget that all programs of a processor share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// A number of bytes, with or without a limit.
#[derive(Debug)]
pub(crate) struct Window {
    limit: Option<usize>,
    used: Arc<AtomicUsize>,
}

/// Part of a window that a program holds until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Window {
    pub fn new(limit: Option<usize>) -> Self {
        Self {
            limit,
            used: Arc::default(),
        }
    }

    pub fn reserve(&self, processor: &str, bytes: usize) -> Result<Reservation> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        before.map_err(|used| Error::WindowFull {
            processor: processor.to_owned(),
            needed: bytes,
            free: limit - used,
            window: limit,
        })?;
        Ok(Reservation {
            bytes,
            used: Arc::clone(&self.used),
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

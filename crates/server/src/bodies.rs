//! The memory that bodies of requests take together, and threads for large ones.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, ApiResult};

/// Bodies are counted in this many bytes.
const UNIT: usize = 1 << 10;

/// Memory for bodies, and threads for large ones.
pub(crate) struct Bodies {
    free: Arc<Semaphore>,
    pub(crate) threads: Handle,
}

impl Bodies {
    /// Bodies that take at most so many bytes together, the large ones of which are parsed by `threads`.
    pub(crate) fn new(bytes: usize, threads: Handle) -> Self {
        Self {
            free: Arc::new(Semaphore::new((bytes / UNIT).clamp(1, u32::MAX as usize))),
            threads,
        }
    }
}

/// A share of the memory for bodies, given back when it is dropped.
pub(crate) struct Share(pub(crate) Option<OwnedSemaphorePermit>);

impl Share {
    /// Adds so many bytes.
    ///
    /// # Errors
    /// If other bodies have them.
    pub(crate) fn grow(&mut self, bodies: &Bodies, bytes: usize) -> ApiResult<()> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let more = Arc::clone(&bodies.free).try_acquire_many_owned(units).map_err(|_| {
            let message = "the bodies of other requests take the memory that there is for them: try again later";
            ApiError::unavailable(message).with_code("bodies_full")
        })?;
        match &mut self.0 {
            Some(share) => share.merge(more),
            None => self.0 = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_counted_together_and_given_back() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let bodies = Bodies::new(4 * UNIT, runtime.handle().clone());
        let (mut one, mut other) = (Share(None), Share(None));
        one.grow(&bodies, 2 * UNIT).unwrap();
        one.grow(&bodies, 1).unwrap();
        assert_eq!(
            other.grow(&bodies, 2 * UNIT).unwrap_err().detail.code,
            Some("bodies_full")
        );
        drop(one);
        other.grow(&bodies, 4 * UNIT).unwrap();
    }
}

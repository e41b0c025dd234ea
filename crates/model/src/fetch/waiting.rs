//! Waits for the network and for other programs on threads of their own, so that the user can cancel a wait.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::progress::{Progress, cancelled, fetch_error};
use crate::error::Result;

/// The interval at which a wait checks whether the user cancelled it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` on a thread and returns its result. If the user cancels, the thread ends by itself, at the latest after
/// the time-out of its request, and its result is dropped.
///
/// # Errors
/// If the user cancels, or there are no more threads.
pub(super) fn wait<T: Send + 'static>(
    progress: &dyn Progress,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, results) = sync_channel(1);
    spawn(move || {
        let _ = sender.send(work());
    })?;
    let result = receive(&results, progress)?;
    result.ok_or_else(|| fetch_error("a thread that waited for the network ended"))
}

/// Waits for `time`.
///
/// # Errors
/// If the user cancels.
pub(super) fn pause(progress: &dyn Progress, time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        if progress.cancelled() {
            return Err(cancelled());
        }
        let rest = time.saturating_sub(start.elapsed());
        if rest.is_zero() {
            return Ok(());
        }
        thread::sleep(rest.min(POLL_INTERVAL));
    }
}

/// Starts a thread that ends by itself.
///
/// # Errors
/// If there are no more threads.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("triad-fetch".into());
    let started = thread.spawn(work);
    started.map_err(|error| fetch_error(format!("cannot start a thread: {error}")))?;
    Ok(())
}

/// Returns what comes next from a thread; `None` after its end.
///
/// # Errors
/// If the user cancels.
pub(super) fn receive<T>(results: &Receiver<T>, progress: &dyn Progress) -> Result<Option<T>> {
    loop {
        if progress.cancelled() {
            return Err(cancelled());
        }
        match results.recv_timeout(POLL_INTERVAL) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

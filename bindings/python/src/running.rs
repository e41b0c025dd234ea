//! Long-running work, without Python's lock, and with Ctrl-C.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use triad_engine::Cancel;

/// Interval at which a waiting thread checks for Ctrl-C; events wake it immediately.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Work on its own thread, which sends events `E`. Dropping this value cancels it.
pub struct Running<E, R> {
    events: Receiver<E>,
    thread: Option<JoinHandle<R>>,
    cancel: Cancel,
}

impl<E: Send + 'static, R: Send + 'static> Running<E, R> {
    /// Starts `work` on a new thread.
    pub fn start(work: impl FnOnce(&Cancel, &Sender<E>) -> R + Send + 'static) -> Self {
        let (sender, events) = channel();
        let cancel = Cancel::new();
        let cancelled = cancel.clone();
        Self {
            events,
            thread: Some(thread::spawn(move || work(&cancelled, &sender))),
            cancel,
        }
    }

    /// Waits for the next event; returns `None` at the end.
    ///
    /// # Errors
    /// `KeyboardInterrupt`, and any other exception of a signal handler; the work is then cancelled, and has ended.
    pub fn next(&mut self, py: Python) -> PyResult<Option<E>> {
        loop {
            let events = &mut self.events;
            let received = py.detach(move || events.recv_timeout(POLL_INTERVAL));
            match received {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = py.check_signals() {
                self.stop(py);
                return Err(error);
            }
        }
    }

    /// Returns the flag that cancels the work.
    pub fn canceller(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns the result, after the last event.
    ///
    /// # Errors
    /// `RuntimeError` if the work panicked.
    pub fn result(&mut self, py: Python) -> Option<PyResult<R>> {
        let thread = self.thread.take()?;
        Some(py.detach(|| thread.join()).map_err(|_| panicked()))
    }

    fn stop(&mut self, py: Python) {
        self.cancel.cancel();
        let _ = self.result(py);
    }
}

impl<E, R> Drop for Running<E, R> {
    fn drop(&mut self) {
        // The work ends within one layer of the model, and needs no Python for that.
        self.cancel.cancel();
    }
}

fn panicked() -> PyErr {
    PyRuntimeError::new_err("a thread of triad panicked; its message is on standard error")
}

/// Returns the result of `work`, which may send sentences for `progress`.
///
/// # Errors
/// Those of `work` and of `progress`, and `KeyboardInterrupt`.
pub fn wait<R: Send + 'static>(
    py: Python,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Cancel, &mut dyn FnMut(&str)) -> PyResult<R> + Send + 'static,
) -> PyResult<R> {
    let mut running = Running::start(move |cancel, sender| {
        work(cancel, &mut |step| {
            let _ = sender.send(step.to_owned());
        })
    });
    while let Some(step) = running.next(py)? {
        if let Some(progress) = progress
            && let Err(error) = progress.call1((step,))
        {
            running.stop(py);
            return Err(error);
        }
    }
    running.result(py).unwrap_or_else(|| Err(panicked()))?
}

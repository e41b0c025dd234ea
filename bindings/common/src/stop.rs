//! Ends an answer or an opening from another thread.

use std::sync::{Arc, Mutex, PoisonError};

use triad::Cancel;

/// A handle that ends one answer or one opening, from any thread, also before that has begun. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    cancel: Option<Cancel>,
}

impl Stop {
    /// Creates a handle that has not stopped anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the work that is bound to this handle, or will be.
    pub fn stop(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_stopped = true;
        if let Some(cancel) = &state.cancel {
            cancel.cancel();
        }
    }

    /// Binds the handle to work that `cancel` ends.
    pub fn bind(&self, cancel: Cancel) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_stopped {
            cancel.cancel();
        }
        state.cancel = Some(cancel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cancelled_whether_it_is_bound_before_or_after_the_stop() {
        for is_bound_first in [true, false] {
            let (stop, cancel) = (Stop::new(), Cancel::new());
            if is_bound_first {
                stop.bind(cancel.clone());
                assert!(!cancel.is_cancelled());
            }
            stop.clone().stop();
            stop.bind(cancel.clone());
            assert!(cancel.is_cancelled());
        }
    }
}

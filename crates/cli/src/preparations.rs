//! The preparation of packages while a server answers from the files as they are.

use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use triad_console::output;

use crate::first_run::Later;

/// The interval at which a preparation is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Preparations that run one after another. Dropped, they end; the next ones go on from there.
pub struct Preparations {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    is_stopped: bool,
}

impl Preparations {
    /// Starts the preparations.
    pub fn start(all: Vec<Later>) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let of_thread = Arc::clone(&state);
        let run = move || {
            for later in all {
                prepare(&of_thread, &later);
            }
        };
        let started = thread::Builder::new()
            .name("preparations".into())
            .spawn(run);
        if let Err(error) = started {
            output::note(&format!("note: no package is prepared: {error}"));
        }
        Self { state }
    }
}

/// Prepares one package, and prints how it ended.
fn prepare(state: &Mutex<State>, later: &Later) {
    {
        let mut state = lock(state);
        if state.is_stopped {
            return;
        }
        state.child = later.start();
        if state.child.is_none() {
            return;
        }
    }
    loop {
        let mut state = lock(state);
        let Some(child) = &mut state.child else {
            return;
        };
        // A child whose state is unknown is as good as ended.
        if !matches!(child.try_wait(), Ok(None)) {
            state.child = None;
            break;
        }
        drop(state);
        thread::sleep(POLL_INTERVAL);
    }
    let name = later.name();
    output::note(&if later.is_done() {
        format!("the package of {name} is prepared; the server takes it at its next start")
    } else {
        let error = later.failure();
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        format!("preparing the package of {name} failed{error}")
    });
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Preparations {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.is_stopped = true;
        if let Some(mut child) = state.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

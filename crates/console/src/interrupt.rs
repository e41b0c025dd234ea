//! Ctrl-C: ends what runs now if that can be ended cleanly, otherwise the process, with exit code 130.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use triad_model::output;

/// What a shell reports for a process that ended by the signal of Ctrl-C.
pub const EXIT_CODE: u8 = 130;

type Action = Box<dyn FnOnce() + Send>;

/// Run by the next Ctrl-C instead of ending the process.
static ACTION: Mutex<Option<Action>> = Mutex::new(None);

fn action() -> MutexGuard<'static, Option<Action>> {
    ACTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes Ctrl-C over. To be called once, first thing.
pub fn install() -> Result<()> {
    let handler = || {
        let action = action().take();
        match action {
            Some(action) => action(),
            None => {
                output::remove_unfinished();
                std::process::exit(EXIT_CODE.into())
            }
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")
}

/// Until the answer is dropped, the first Ctrl-C runs `action`; a second one ends the process.
#[must_use]
pub fn on_interrupt(new: impl FnOnce() + Send + 'static) -> Guard {
    *action() = Some(Box::new(new));
    Guard(())
}

/// See [`on_interrupt`].
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        *action() = None;
    }
}

/// The error of a command that Ctrl-C ended; has an exit code of its own and no message.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

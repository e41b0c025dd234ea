//! Handling of Ctrl-C: it ends the running work cleanly if possible, otherwise the process, with exit code 130.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use triad_model::output;

/// The exit code that a shell reports for a process that SIGINT ended.
pub const EXIT_CODE: u8 = 130;

type Action = Box<dyn FnOnce() + Send>;

/// Action that the next Ctrl-C runs instead of ending the process.
static ACTION: Mutex<Option<Action>> = Mutex::new(None);

fn action() -> MutexGuard<'static, Option<Action>> {
    ACTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler of Ctrl-C. Must be called once, at the start.
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

/// Registers `action` for the first Ctrl-C until the returned guard is dropped. A second Ctrl-C ends the process.
#[must_use]
pub fn on_interrupt(new: impl FnOnce() + Send + 'static) -> Guard {
    *action() = Some(Box::new(new));
    Guard(())
}

/// Guard of a registered action: see [`on_interrupt`].
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        *action() = None;
    }
}

/// The error of a command that Ctrl-C ended. It has its own exit code and no message.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

//! Ctrl-C, and SIGTERM and SIGHUP as it: ends what runs now if that can be ended cleanly, otherwise the process, with exit code
//! 130.

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

/// Blocks SIGHUP where it is ignored, as `nohup` has it: the handler would be called in place of that. All threads of this process
/// begin later, and inherit it.
#[cfg(target_os = "linux")]
fn keep_hangup_ignored() {
    use nix::sys::signal::{SigSet, Signal};
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok())
        .unwrap_or(0);
    if ignored & (1 << (Signal::SIGHUP as u32 - 1)) != 0 {
        // One that is not blocked ends the process, as any other signal does.
        let _ = SigSet::from(Signal::SIGHUP).thread_block();
    }
}

/// Takes Ctrl-C, SIGTERM and SIGHUP over. To be called once, first thing.
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
    #[cfg(target_os = "linux")]
    keep_hangup_ignored();
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

//! Handling of Ctrl-C, SIGTERM and SIGHUP: they end the running work cleanly if possible, otherwise the process, with exit
//! code 130.

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

/// Blocks SIGHUP where it is ignored, as under `nohup`: the handler would be called instead. Threads that start later inherit
/// it.
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

/// Installs the handler of Ctrl-C, SIGTERM and SIGHUP. Must be called once, at the start.
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

/// Drops what the user has typed at the terminal and no one has read yet.
#[cfg(unix)]
pub fn forget_typed() {
    use rustix::termios::{QueueSelector, tcflush};
    // Standard input that is no terminal has nothing typed.
    let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
}

/// Drops nothing: this system has no such function that Triad can use.
#[cfg(not(unix))]
pub fn forget_typed() {}

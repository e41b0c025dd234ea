//! The start and the end of a command: logging, Ctrl-C, choice of the fastest kernels, exit code.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Result;
use tracing_subscriber::filter::LevelFilter;
use triad_frontend::kernels;

use crate::interrupt::{self, Interrupted};
use crate::{output, progress};

/// Settings for running a command.
pub struct Settings {
    /// The log level on standard error.
    pub log: LevelFilter,
    /// Whether the command multiplies matrices of models and should use the fastest kernels.
    pub computes: bool,
}

/// Runs a command, prints its error in one line, and returns its exit code.
pub fn run(settings: &Settings, command: impl FnOnce() -> Result<()>) -> ExitCode {
    if settings.log != LevelFilter::OFF {
        let log = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_ansi(has_colors())
            .log_internal_errors(false);
        log.with_max_level(settings.log).init();
    }
    let isa = triad_kernels::isa::requested()
        .map(|_| ())
        .map_err(anyhow::Error::msg);
    let done = isa.and_then(|()| interrupt::install()).and_then(|()| {
        if settings.computes {
            kernels::use_fastest(|| progress::spinner(kernels::TIMING));
        }
        command()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

/// Returns whether standard error is a terminal whose user wants colors.
fn has_colors() -> bool {
    let wants = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wants && io::stderr().is_terminal()
}

/// Prints the error in one line, and returns the exit code.
fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<Interrupted>() {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    let reader_left = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    // The reader of the output closed the pipe: `triad ... | head`.
    if error.chain().any(reader_left) {
        return ExitCode::SUCCESS;
    }
    let sentence = format!("{error:#}")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    output::note(&format!("error: {sentence}"));
    ExitCode::FAILURE
}

//! The `triad` command.
//!
//! This file reads the command line and turns errors into exit codes; each command is one file in
//! [`commands`]. What they share: [`progress`] draws bars, [`interrupt`] handles Ctrl-C, [`measurements`] reads tables, [`output`]
//! prints, [`output_file`] writes files, none of them one of the [`inputs`], [`chart`] draws figures, [`timeline_file`]
//! timelines, [`preparing`] shows how packages are made, [`failure`](mod@failure) reads errors. What does not print is in the crate
//! `triad-frontend`.
#![forbid(unsafe_code)]
// Their macros panic where the stream cannot be written: `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod adapters;
mod arguments;
mod arithmetic;
mod chart;
mod commands;
mod cut;
mod device;
mod failure;
mod inputs;
mod interrupt;
mod measurements;
#[cfg(feature = "server")]
mod named_adapters;
mod output;
mod output_file;
mod package_fields;
mod partition;
mod preparing;
mod processors;
mod progress;
mod prompt;
mod timeline_file;
mod version;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use commands::{
    bench, completions, devices, eval, fit, hwbench, info, logits, man, plan, prepare, profile,
    pull, reproduce, run, simulate, study, tokenize, verify,
};
#[cfg(feature = "server")]
use commands::{grammar_check, serve};
use interrupt::Interrupted;
use triad_frontend::kernels;

/// Run language models on this device.
#[derive(Parser)]
#[command(version = version::version(), propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  triad run -p 'Why is the sky blue?'      answer with the default model, fetched when first used
  triad run                                chat
  triad COMMAND --help                     examples of every command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say on standard error what happens inside
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    #[cfg(feature = "server")]
    Serve(Box<serve::Arguments>),
    Pull(pull::Arguments),
    Prepare(prepare::Arguments),
    Profile(profile::Arguments),
    Verify(verify::Arguments),
    Info(info::Arguments),
    Fit(fit::Arguments),
    Plan(plan::Arguments),
    Simulate(simulate::Arguments),
    Reproduce(reproduce::Arguments),
    Bench(bench::Arguments),
    Hwbench(hwbench::Arguments),
    Eval(eval::Arguments),
    Study(study::Arguments),
    Logits(logits::Arguments),
    Tokenize(tokenize::Arguments),
    Devices(devices::Arguments),
    Completions(completions::Arguments),
    /// Write a manual page for each command
    #[command(hide = true)]
    Man(man::Arguments),
    /// Compile a grammar within limits, as `triad serve` asks it to
    #[cfg(feature = "server")]
    #[command(hide = true, name = grammar_check::NAME)]
    GrammarCheck,
}

fn main() -> ExitCode {
    let Cli { command, verbose } = Cli::parse();
    let level = if verbose {
        LevelFilter::DEBUG
    } else {
        command.log_level()
    };
    if level != LevelFilter::OFF {
        let log = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .log_internal_errors(false);
        log.with_max_level(level).init();
    }
    let tier = triad_kernels::tier::requested()
        .map(|_| ())
        .map_err(anyhow::Error::msg);
    let done = tier.and_then(|()| interrupt::install()).and_then(|()| {
        if command.computes() {
            kernels::use_fastest(|| progress::spinner(kernels::TIMING));
        }
        command.run()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

impl Command {
    /// Returns what is logged unless `--verbose` asks for more. Clients of a server don't learn why it failed: the log does.
    fn log_level(&self) -> LevelFilter {
        match self {
            #[cfg(feature = "server")]
            Self::Serve(_) => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        }
    }

    /// Whether it multiplies matrices of models, so that it should use the fastest kernels.
    fn computes(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Prepare(_)
            | Self::Profile(_)
            | Self::Verify(_)
            | Self::Fit(_)
            | Self::Bench(_) => true,
            Self::Hwbench(_) | Self::Eval(_) | Self::Study(_) | Self::Logits(_) => true,
            #[cfg(feature = "server")]
            Self::Serve(_) => true,
            Self::Pull(_)
            | Self::Info(_)
            | Self::Plan(_)
            | Self::Simulate(_)
            | Self::Reproduce(_) => false,
            // `devices` shows what is chosen, and so chooses itself.
            Self::Tokenize(_) | Self::Devices(_) | Self::Completions(_) | Self::Man(_) => false,
            #[cfg(feature = "server")]
            Self::GrammarCheck => false,
        }
    }

    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Run(arguments) => run::run(&arguments),
            #[cfg(feature = "server")]
            Self::Serve(arguments) => serve::run(*arguments),
            Self::Pull(arguments) => pull::run(&arguments),
            Self::Prepare(arguments) => prepare::run(&arguments),
            Self::Profile(arguments) => profile::run(&arguments),
            Self::Verify(arguments) => verify::run(&arguments),
            Self::Info(arguments) => info::run(&arguments),
            Self::Fit(arguments) => fit::run(&arguments),
            Self::Plan(arguments) => plan::run(&arguments),
            Self::Simulate(arguments) => simulate::run(&arguments),
            Self::Reproduce(arguments) => reproduce::run(&arguments),
            Self::Bench(arguments) => bench::run(&arguments),
            Self::Hwbench(arguments) => hwbench::run(&arguments),
            Self::Eval(arguments) => eval::run(&arguments),
            Self::Study(arguments) => study::run(&arguments),
            Self::Logits(arguments) => logits::run(&arguments),
            Self::Tokenize(arguments) => tokenize::run(&arguments),
            Self::Devices(arguments) => devices::run(&arguments),
            Self::Completions(arguments) => completions::run(&arguments),
            Self::Man(arguments) => man::run(&arguments),
            #[cfg(feature = "server")]
            Self::GrammarCheck => grammar_check::run(),
        }
    }
}

/// Prints what went wrong in one line, and returns the exit code.
fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<Interrupted>() {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    let reader_left = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    // Whoever read our output has enough of it: `triad ... | head`.
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

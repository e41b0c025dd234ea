//! The `triad` command.
//!
//! This file reads the command line and turns errors into exit codes; each command is one file in
//! [`commands`]. What they share: [`progress`] draws bars, [`interrupt`] handles Ctrl-C, [`output`]
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

#[cfg(feature = "server")]
use commands::serve;
use commands::{
    bench, completions, devices, eval, fit, hwbench, info, logits, man, plan, prepare, profile, pull, reproduce, run,
    simulate, study, tokenize, verify,
};
use interrupt::Interrupted;

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
}

fn main() -> ExitCode {
    let Cli { command, verbose } = Cli::parse();
    if verbose {
        let log = tracing_subscriber::fmt().with_writer(io::stderr).log_internal_errors(false);
        log.with_max_level(LevelFilter::DEBUG).init();
    }
    let tier = triad_kernels::tier::requested().map(|_| ()).map_err(anyhow::Error::msg);
    let done = tier.and_then(|()| interrupt::install()).and_then(|()| match command {
        Command::Run(arguments) => run::run(&arguments),
        #[cfg(feature = "server")]
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Pull(arguments) => pull::run(&arguments),
        Command::Prepare(arguments) => prepare::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Fit(arguments) => fit::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Hwbench(arguments) => hwbench::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments),
        Command::Study(arguments) => study::run(&arguments),
        Command::Logits(arguments) => logits::run(&arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

/// Prints what went wrong in one line, and returns the exit code.
fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<Interrupted>() {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    let reader_left = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    // Whoever read our output has enough of it: `triad ... | head`.
    if error.chain().any(reader_left) {
        return ExitCode::SUCCESS;
    }
    let sentence = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    output::note(&format!("error: {sentence}"));
    ExitCode::FAILURE
}

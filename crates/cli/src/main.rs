//! The `triad` command.
//!
//! This file parses the command line. Each command is a module in [`commands`]. Code shared with `triad-lab` is in the
//! crate `triad-console`, code that does not print is in `triad-frontend`.
#![forbid(unsafe_code)]
// These macros panic if the stream cannot be written. The functions in `output` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod adapters;
mod commands;
mod first_run;
#[cfg(all(feature = "mcp", feature = "server"))]
mod host_tools;
#[cfg(feature = "mcp")]
mod mcp_tools;
#[cfg(not(feature = "server"))]
mod missing;
mod moved;
#[cfg(feature = "server")]
mod named_adapters;
mod package_fields;
#[cfg(feature = "server")]
mod preparations;
mod prompt;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use commands::{
    bench, completions, devices, eval, fit, info, list, logits, man, plan, prepare, profile, ps,
    pull, remove, run, tokenize, verify,
};
#[cfg(feature = "server")]
use commands::{grammar_check, serve};
use triad_console::{process, renamed, version};

/// Run language models on this device.
#[derive(Parser)]
#[command(name = "triad", version = version::version(), propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  triad run -p 'Why is the sky blue?'      answer with the default model, fetched when first used
  triad run                                chat
  triad COMMAND --help                     help and examples of a command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log details to standard error
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    #[cfg(feature = "server")]
    Serve(Box<serve::Arguments>),
    #[cfg(not(feature = "server"))]
    Serve(missing::Serve),
    Pull(pull::Arguments),
    List(list::Arguments),
    Remove(remove::Arguments),
    Ps(ps::Arguments),
    Prepare(prepare::Arguments),
    Profile(profile::Arguments),
    Verify(verify::Arguments),
    #[command(visible_alias = "show")]
    Info(info::Arguments),
    Fit(fit::Arguments),
    Plan(plan::Arguments),
    Bench(bench::Arguments),
    Eval(eval::Arguments),
    Logits(logits::Arguments),
    Tokenize(tokenize::Arguments),
    Devices(devices::Arguments),
    Completions(completions::Arguments),
    /// Write a manual page for each command
    #[command(hide = true)]
    Man(man::Arguments),
    /// Compile a grammar within limits, for `triad serve`
    #[cfg(feature = "server")]
    #[command(hide = true, name = grammar_check::NAME)]
    GrammarCheck,
    #[command(flatten)]
    Moved(moved::Moved),
}

fn main() -> ExitCode {
    let Cli { command, verbose } = Cli::parse_from(renamed::command_line());
    let settings = process::Settings {
        log: if verbose {
            LevelFilter::DEBUG
        } else {
            command.log_level()
        },
        computes: command.computes(),
    };
    process::run(&settings, || command.run())
}

impl Command {
    /// Returns the log level without `--verbose`. A server logs errors, since its clients do not receive their reasons.
    fn log_level(&self) -> LevelFilter {
        match self {
            #[cfg(feature = "server")]
            Self::Serve(_) => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        }
    }

    /// Returns whether the command computes with models, and should therefore use the fastest kernels.
    fn computes(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Prepare(_)
            | Self::Profile(_)
            | Self::Verify(_)
            | Self::Fit(_)
            | Self::Bench(_) => true,
            Self::Eval(_) | Self::Logits(_) => true,
            #[cfg(feature = "server")]
            Self::Serve(_) => true,
            #[cfg(not(feature = "server"))]
            Self::Serve(_) => false,
            Self::List(_) | Self::Remove(_) | Self::Ps(_) => false,
            Self::Pull(_) | Self::Info(_) | Self::Plan(_) | Self::Moved(_) => false,
            // `devices` shows the chosen kernels, so it chooses them itself.
            Self::Tokenize(_) | Self::Devices(_) | Self::Completions(_) | Self::Man(_) => false,
            #[cfg(feature = "server")]
            Self::GrammarCheck => false,
        }
    }

    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Run(arguments) => run::run(*arguments),
            #[cfg(feature = "server")]
            Self::Serve(arguments) => serve::run(*arguments),
            #[cfg(not(feature = "server"))]
            Self::Serve(serve) => serve.run(),
            Self::Pull(arguments) => pull::run(&arguments),
            Self::List(arguments) => list::run(&arguments),
            Self::Remove(arguments) => remove::run(&arguments),
            Self::Ps(arguments) => ps::run(&arguments),
            Self::Prepare(arguments) => prepare::run(&arguments),
            Self::Profile(arguments) => profile::run(&arguments),
            Self::Verify(arguments) => verify::run(&arguments),
            Self::Info(arguments) => info::run(&arguments),
            Self::Fit(arguments) => fit::run(&arguments),
            Self::Plan(arguments) => plan::run(&arguments),
            Self::Bench(arguments) => bench::run(&arguments),
            Self::Eval(arguments) => eval::run(&arguments),
            Self::Logits(arguments) => logits::run(&arguments),
            Self::Tokenize(arguments) => tokenize::run(&arguments),
            Self::Devices(arguments) => devices::run(&arguments),
            Self::Completions(arguments) => completions::run(&arguments, Cli::command()),
            Self::Man(arguments) => man::run(&arguments, Cli::command()),
            Self::Moved(moved) => moved.run(),
            #[cfg(feature = "server")]
            Self::GrammarCheck => grammar_check::run(),
        }
    }
}

//! The `triad-lab` command: studies, simulated phones, the papers' tables, kernel measurements.
//!
//! This file parses the command line. Each command is one module in [`commands`], which prints what the library
//! computes.
#![forbid(unsafe_code)]
// These macros panic if the stream can't be written; the functions of `output` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;
use triad_console::{process, renamed, version};

use commands::{hwbench, plan, record, report, reproduce, simulate, study};

/// Study how models run on several processors: measured here, simulated on phones, compared with papers.
#[derive(Parser)]
#[command(name = "triad-lab", version = version::version(), propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  triad-lab simulate --shape qwen1.5-1.8b   simulate a prefill on a phone
  triad-lab reproduce                       compare the papers' tables with our own values
  triad-lab COMMAND --help                  examples of every command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log internal events to standard error
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    Study(study::Arguments),
    Simulate(simulate::Arguments),
    Plan(plan::Arguments),
    Reproduce(reproduce::Arguments),
    Hwbench(hwbench::Arguments),
    Record(record::Arguments),
    Report(report::Arguments),
}

fn main() -> ExitCode {
    let Cli { command, verbose } = Cli::parse_from(renamed::command_line());
    let settings = process::Settings {
        log: if verbose {
            LevelFilter::DEBUG
        } else {
            LevelFilter::OFF
        },
        computes: matches!(command, Command::Study(_) | Command::Hwbench(_)),
    };
    process::run(&settings, || match command {
        Command::Study(arguments) => study::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Hwbench(arguments) => hwbench::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
    })
}

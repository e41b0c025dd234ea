//! `triad verify`: is a package still what was written?

use std::path::PathBuf;

use anyhow::Result;
use triad_engine::package::Package;

use crate::{output, progress};

/// Check every file of a package by its hash.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad verify model.triad")]
pub struct Arguments {
    /// The folder of a package
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,
}

/// Prints OK, or fails with the first file that differs.
pub fn run(arguments: &Arguments) -> Result<()> {
    let package = Package::open(&arguments.package)?;
    let spinner = progress::spinner(format!("reading {}", output::bytes(package.bytes())));
    package.verify()?;
    drop(spinner);
    output::text(&format!("{}: OK", arguments.package.display()))
}

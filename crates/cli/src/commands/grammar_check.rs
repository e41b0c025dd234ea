//! `triad grammar-check`: a separate process that compiles the grammar of a request before `triad serve` compiles it.

use std::io;

use anyhow::{Context, Result};

/// The name of this command.
pub const NAME: &str = "grammar-check";

/// Compiles the grammar on standard input within the limits that it names, and writes whether that succeeded.
pub fn run() -> Result<()> {
    triad_grammar::answer(io::stdin().lock(), io::stdout().lock())
        .context("cannot check the grammar on standard input")
}

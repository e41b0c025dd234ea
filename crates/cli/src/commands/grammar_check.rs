//! `triad grammar-check`: the process in which `triad serve` compiles a grammar of a request before it does so itself.

use std::io;

use anyhow::{Context, Result};

/// The name of this command.
pub const NAME: &str = "grammar-check";

/// Compiles the grammar on standard input within the limits that it names, and writes whether that succeeded.
pub fn run() -> Result<()> {
    triad_grammar::answer(io::stdin().lock(), io::stdout().lock())
        .context("cannot check the grammar on standard input")
}

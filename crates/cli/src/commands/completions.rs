//! `triad completions`: what a shell needs to complete this command.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use triad_console::output;

/// Print a script that lets a shell complete this command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad completions bash > ~/.local/share/bash-completion/completions/triad
  triad completions zsh > ~/.zfunc/_triad
  triad completions fish > ~/.config/fish/completions/triad.fish")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "triad", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

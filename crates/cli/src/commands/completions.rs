//! `triad completions`: prints the completion script of a shell.

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use triad_console::output;

/// Print a script that completes this command in a shell.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad completions bash > ~/.local/share/bash-completion/completions/triad
  triad completions zsh > ~/.zfunc/_triad
  triad completions fish > ~/.config/fish/completions/triad.fish")]
pub struct Arguments {
    /// Shell to complete in
    shell: Shell,
}

/// Prints the script that completes `command`.
pub fn run(arguments: &Arguments, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "triad", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

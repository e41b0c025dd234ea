//! Commands that moved to `triad-lab`.

use anyhow::{Result, bail};

/// A command that moved, with any arguments after it.
#[derive(clap::Subcommand)]
pub enum Moved {
    /// Moved to triad-lab
    #[command(hide = true, disable_help_flag = true)]
    Study(Rest),
    /// Moved to triad-lab
    #[command(hide = true, disable_help_flag = true)]
    Simulate(Rest),
    /// Moved to triad-lab
    #[command(hide = true, disable_help_flag = true)]
    Reproduce(Rest),
    /// Moved to triad-lab
    #[command(hide = true, disable_help_flag = true)]
    Hwbench(Rest),
}

/// Arguments that are ignored.
#[derive(clap::Args)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<std::ffi::OsString>,
}

impl Moved {
    /// Fails with an error that names the new command.
    pub fn run(&self) -> Result<()> {
        let name = match self {
            Self::Study(_) => "study",
            Self::Simulate(_) => "simulate",
            Self::Reproduce(_) => "reproduce",
            Self::Hwbench(_) => "hwbench",
        };
        bail!(
            "`triad {name}` is now `triad-lab {name}`: install it with `cargo install --path crates/lab`, or run \
             `cargo run --release -p triad-lab -- {name}`"
        )
    }
}

//! The command of a feature that this program was built without.

use std::ffi::OsString;

use anyhow::{Result, bail};

use triad_console::version;

/// Serve models over HTTP: not in this program
///
/// It was built without the feature `server`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Serve {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

impl Serve {
    /// Fails with an error that tells how to build the server.
    pub fn run(&self) -> Result<()> {
        bail!(version::without("server"))
    }
}

//! The argument `--nice`: the priority of a command's threads.

use anyhow::Result;

use crate::arguments;

/// The lowest priority that a system has.
pub const LOWEST: usize = 19;

/// The argument for the priority of this process.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct NiceArgument {
    /// Lower the priority, so that other programs come first: by N from 1 to 19, as nice(1) does
    #[arg(long, value_name = "N", value_parser = nice)]
    nice: Option<usize>,
}

fn nice(text: &str) -> Result<usize, String> {
    arguments::whole_number(text, 1, LOWEST)
}

impl NiceArgument {
    /// Lowers the priority of this thread and of those that it starts later. Called before any thread of a model starts.
    ///
    /// # Errors
    /// If the system has no such priorities, or refuses.
    pub fn apply(self) -> Result<()> {
        self.nice.map_or(Ok(()), lower)
    }
}

#[cfg(unix)]
fn lower(by: usize) -> Result<()> {
    use anyhow::Context;
    rustix::process::nice(by as i32)
        .map(drop)
        .with_context(|| format!("cannot lower the priority by {by} (--nice)"))
}

#[cfg(not(unix))]
fn lower(_: usize) -> Result<()> {
    anyhow::bail!("--nice: this system has no such priorities")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_lowered_and_never_raised() {
        assert_eq!(nice("19"), Ok(19));
        for wrong in ["-1", "0", "20", "x", ""] {
            assert_eq!(
                nice(wrong).unwrap_err(),
                "expected a whole number from 1 to 19",
                "{wrong}"
            );
        }
    }
}

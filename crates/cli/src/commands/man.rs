//! `triad man`: writes the manual, made from the same descriptions as `--help`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;

use triad_console::output_file::OutputFile;

/// Write a manual page for each command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad man ~/.local/share/man/man1        then: man triad, man triad-run")]
pub struct Arguments {
    /// Folder to write to; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the manual pages of `command`.
pub fn run(arguments: &Arguments, mut command: Command) -> Result<()> {
    let folder = &arguments.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // This also adds the global options to each command.
    command.build();
    page(&command, "triad", folder)
}

/// Writes the page of the command with this full name, and the pages of its subcommands.
fn page(command: &Command, name: &str, folder: &Path) -> Result<()> {
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    let described = command
        .clone()
        .display_name(name.to_owned())
        .version(env!("CARGO_PKG_VERSION"));
    let manual = Man::new(described)
        .manual("Triad")
        .source(concat!("triad ", env!("CARGO_PKG_VERSION")));
    manual
        .render(&mut text)
        .with_context(|| format!("cannot describe {name}"))?;
    OutputFile::create(&path)?.write(|file| file.write_all(&text))?;
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help");
    below
        .into_iter()
        .try_for_each(|below| page(below, &format!("{name}-{}", below.get_name()), folder))
}

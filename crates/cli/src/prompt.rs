//! The text of a prompt, from the command line, a file or standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use triad_console::inputs;
use triad_model::files;

/// Maximum bytes of a prompt. A longer one is refused unread: no model has enough context, and a device file never
/// ends.
const MAX_BYTES: u64 = 64 << 20;

/// The source of a prompt.
#[derive(clap::Args)]
#[group(multiple = false)]
pub struct PromptArguments {
    /// Text of the prompt
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// File with the prompt (UTF-8; a byte order mark and one newline at the end are not part of the prompt)
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl PromptArguments {
    /// Returns the prompt, or `None` if standard input is a terminal.
    pub fn read(&self) -> Result<Option<String>> {
        let text = if let Some(prompt) = &self.prompt {
            prompt.clone()
        } else if let Some(path) = &self.file {
            let name = path.display().to_string();
            inputs::add(path);
            let file =
                File::open(path).with_context(|| format!("cannot read the prompt file {name}"))?;
            read(file, &format!("the prompt file {name}"))?
        } else if io::stdin().is_terminal() {
            return Ok(None);
        } else {
            read(io::stdin().lock(), "the prompt on standard input")?
        };
        ensure!(!text.is_empty(), "the prompt is empty");
        Ok(Some(text))
    }

    /// Returns the prompt as [`PromptArguments::read`] does. Fails if standard input is a terminal.
    pub fn require(&self) -> Result<String> {
        self.read()?
            .context("no prompt: give one with -p, with -f, or on standard input")
    }
}

fn read(source: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    source
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() as u64 <= MAX_BYTES,
        "{name} is longer than {} MiB",
        MAX_BYTES >> 20
    );
    let mut text = match String::from_utf8(files::without_mark(&bytes).to_vec()) {
        Ok(text) => text,
        Err(error) => bail!(
            "{name} is not UTF-8 text: byte {} is wrong",
            error.utf8_error().valid_up_to()
        ),
    };
    let end = text
        .strip_suffix('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line).len());
    text.truncate(end.unwrap_or(text.len()));
    Ok(text)
}

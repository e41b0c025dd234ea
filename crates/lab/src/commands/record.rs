//! `triad-lab record`: runs a command and keeps what it measured.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use triad_console::output;
use triad_console::output_file::OutputFile;
use triad_frontend::machine::Machine;
use triad_lab::report::data::{Data, Run, Source};
use triad_lab::report::record::{self, Selection};

use super::report::read;

/// Run a command that measures, and write what it prints to a file for `triad-lab report`.
///
/// The command prints one JSON object or a Markdown table. Each round adds a value to the rows with the same labels. The
/// file also has the machine, the commit of the checkout in this folder and the command line.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab record prefill.json --rounds 3 --rows 'results.*' --label test --label tokens \\
    --value rate=tokens_per_second.median --set model=SmolLM2 -- triad bench --prompt 64,256 --decode 32 --json
  triad-lab record peers.json --rows 'comparisons.*' --label engine --label tokens --value median --from peers.out \\
    -- benches/peers/run --parts prefill --json peers.out
  triad-lab record families.json --rows '*' --label checkpoint --value 'apart=largest relative difference' \\
    -- cargo test -p triad-engine --test families -- --nocapture")]
pub struct Arguments {
    /// File to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the measured objects are in the output: names with dots between them, `*` for all elements
    #[arg(long, value_name = "PATH", default_value = "")]
    rows: String,
    /// Field that tells cases apart; NAME=FIELD gives it another name
    #[arg(long = "label", value_name = "FIELD", value_parser = named)]
    labels: Vec<(String, String)>,
    /// Field that was measured; NAME=FIELD gives it another name
    #[arg(long = "value", value_name = "FIELD", required = true, value_parser = named)]
    values: Vec<(String, String)>,
    /// Label that all rows of this command get
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = set)]
    constants: Vec<(String, String)>,
    /// How often to run the command
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Rounds that the command itself makes medians of, for the document
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    inner_rounds: Option<u16>,
    /// The machine, in words [default: the processor's name and the number of threads]
    #[arg(long, value_name = "TEXT")]
    machine: Option<String>,
    /// Command line for the document, without paths of this machine [default: the command]
    #[arg(long, value_name = "TEXT")]
    shown: Option<String>,
    /// Read what the command writes to this new file instead of its standard output, and remove the file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Add to the file, which must be of the same machine and commit
    #[arg(long)]
    append: bool,
    /// The command, after `--`
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

/// Parses `NAME=FIELD`, or `FIELD` for both.
fn named(text: &str) -> Result<(String, String), String> {
    let (name, field) = text.split_once('=').unwrap_or((text, text));
    match name.is_empty() || field.is_empty() {
        true => Err("expected FIELD or NAME=FIELD".into()),
        false => Ok((name.into(), field.into())),
    }
}

/// Parses `NAME=VALUE`.
fn set(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = arguments.machine.clone().unwrap_or_else(machine);
    let mut data = Data {
        machine,
        commit: commit()?,
        source: Source::Recorded,
        runs: Vec::new(),
    };
    let path = &arguments.file;
    if arguments.append {
        let old = Data::parse(&path.display().to_string(), &read(path)?)?;
        if (&old.machine, &old.commit, old.source) != (&data.machine, &data.commit, data.source) {
            bail!(
                "{} is of {}, commit {}: expected {}, commit {}",
                path.display(),
                old.machine,
                old.commit,
                data.machine,
                data.commit
            );
        }
        data = old;
    }
    if let Some(path) = arguments.from.as_ref().filter(|path| path.exists()) {
        bail!(
            "{} exists: expected a file that only the command writes",
            path.display()
        );
    }
    // Opened before the rounds, so that a path that can't be written is found at once.
    let file = OutputFile::create(path)?;
    let selection = Selection {
        rows: arguments.rows.clone(),
        constants: arguments.constants.iter().cloned().collect(),
        labels: arguments.labels.clone(),
        values: arguments.values.clone(),
    };
    let mut rows = Vec::new();
    for round in 0..arguments.rounds {
        output::note(&format!("round {} of {}", round + 1, arguments.rounds));
        record::add(
            &mut rows,
            &printed(&arguments.command, arguments.from.as_deref())?,
            &selection,
        )?;
    }
    // One round of a command may have several objects with the same labels, for its own rounds.
    let values = rows
        .iter()
        .flat_map(|row| row.values.values())
        .map(Vec::len)
        .max();
    data.runs.push(Run {
        command: arguments
            .shown
            .clone()
            .unwrap_or_else(|| arguments.command.join(" ")),
        rounds: arguments
            .inner_rounds
            .map_or(1, usize::from)
            .max(values.unwrap_or(1)),
        rows,
    });
    let text = data.text()?;
    // What is written can be read again.
    Data::parse(&path.display().to_string(), &text)?;
    file.write(|file| file.write_all(text.as_bytes()))
}

/// Runs the command and returns what it printed or wrote.
fn printed(command: &[String], from: Option<&Path>) -> Result<String> {
    let [program, arguments @ ..] = command else {
        bail!("no command");
    };
    let ran = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !ran.status.success() {
        bail!("{program} failed: {}", ran.status);
    }
    match from {
        // The next round writes it again.
        Some(path) => read(path).and_then(|text| {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
            Ok(text)
        }),
        None => String::from_utf8(ran.stdout).with_context(|| format!("the output of {program}")),
    }
}

fn machine() -> String {
    let processor = Machine::detect().processor;
    let threads = triad_frontend::machine::threads();
    format!(
        "{threads} threads of {}",
        processor.as_deref().unwrap_or("an unknown processor")
    )
}

/// Returns the commit of the checkout in this folder, whose code must be as committed.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let ran = Command::new("git")
            .args(arguments)
            .output()
            .context("cannot run git")?;
        if !ran.status.success() {
            bail!(
                "git {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&ran.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
    };
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/",
        ":(top,exclude)docs",
    ])?;
    if !changed.is_empty() {
        bail!(
            "the code has changes that are not committed, so no commit says what is measured:\n{changed}"
        );
    }
    git(&["rev-parse", "--short=8", "HEAD"])
}

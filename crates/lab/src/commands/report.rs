//! `triad-lab report`: writes the tables of the documents again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use triad_console::output;
use triad_console::output_file::OutputFile;
use triad_lab::report::data::Data;
use triad_lab::report::page;

/// Make the tables of the documents from the measurements in docs/measurements/data.
///
/// A table of a page stands between two comments. The first one names a file of measurements and says which of its
/// values the table has. `triad-lab record` writes such files.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab report
  triad-lab report --check")]
pub struct Arguments {
    /// Folder of the repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// Write nothing, and fail if a page is not what its measurements make of it
    #[arg(long)]
    check: bool,
}

/// Files of measurements, below the root.
const DATA: &str = "docs/measurements/data";
/// Pages, below the root.
const PAGES: &str = "docs/measurements";

/// Maximum bytes of a file that is read.
const MAX_BYTES: u64 = 4 << 20;

pub fn run(arguments: &Arguments) -> Result<()> {
    let files = files(&arguments.root.join(DATA))?;
    let mut used = BTreeSet::new();
    // Nothing is written before every page can be made.
    let mut different = Vec::new();
    for path in in_folder(&arguments.root.join(PAGES), "md")? {
        let text = read(&path)?;
        let rendered = page::rendered(&text, &files).with_context(|| path.display().to_string())?;
        used.extend(rendered.used);
        if rendered.text != text {
            different.push((path, rendered.text));
        }
    }
    let unused: Vec<_> = files
        .keys()
        .filter(|name| !used.contains(*name))
        .map(String::as_str)
        .collect();
    if !unused.is_empty() {
        bail!(
            "no page shows the measurements {} in {DATA}",
            unused.join(", ")
        );
    }
    let names: Vec<_> = different
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    if names.is_empty() {
        return output::text("all tables are as measured");
    }
    if arguments.check {
        bail!(
            "not what the measurements make of it: {}; run `triad-lab report`",
            names.join(", ")
        );
    }
    for (path, text) in &different {
        OutputFile::create(path)?.write(|file| file.write_all(text.as_bytes()))?;
    }
    output::text(&format!("written: {}", names.join(", ")))
}

/// Reads all files of measurements.
fn files(folder: &Path) -> Result<BTreeMap<String, Data>> {
    let mut files = BTreeMap::new();
    for path in in_folder(folder, "json")? {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let data = Data::parse(&path.display().to_string(), &read(&path)?)?;
        files.insert(name, data);
    }
    Ok(files)
}

/// Returns the files of a folder with a suffix, in order.
fn in_folder(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
    let unreadable = || format!("cannot read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(unreadable)?;
    let mut paths: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()
        .with_context(unreadable)?;
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == suffix)
    });
    paths.sort();
    Ok(paths)
}

/// Reads a text of bounded size.
pub(super) fn read(path: &Path) -> Result<String> {
    let unreadable = || format!("cannot read {}", path.display());
    let bytes = fs::metadata(path).with_context(unreadable)?.len();
    if bytes > MAX_BYTES {
        bail!(
            "{} has {bytes} bytes: expected at most {MAX_BYTES}",
            path.display()
        );
    }
    fs::read_to_string(path).with_context(unreadable)
}

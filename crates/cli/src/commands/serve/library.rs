//! `--allow-pull`: the models of the cache, which clients may fetch and delete.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use triad_console::output;
use triad_model::ErrorKind;
use triad_model::fetch::{self, DEFAULT_MODEL, Placing, Progress, PullOptions};
use triad_model::vision::{is_mmproj, mmproj_next_to};
use triad_server::{Deletion, HostedModel, LibraryError, LoadedModel, ModelLibrary, repository};

use super::arguments::Arguments;
use super::found::Found;

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

    /// Returns the model of the cache at `path`. Each load finds the files again that it runs from: a pull may have replaced
    /// them, and then its package is that of another version.
    fn hosted(&self, name: &str, path: &Path) -> Result<HostedModel, LibraryError> {
        let find = {
            let (arguments, name, path) = (
                Arc::clone(&self.arguments),
                name.to_owned(),
                path.to_owned(),
            );
            move || Found::of_cache(&arguments, &name, &path)
        };
        let (found, bytes) = find().map_err(|error| unusable(name, error))?;
        let (arguments, source) = (Arc::clone(&self.arguments), path.to_owned());
        let load = move || -> anyhow::Result<LoadedModel> {
            let pulled = fetch::pulled(&source)?;
            let loaded = find()?.0.load(&arguments)?;
            Ok(LoadedModel {
                is_current: Box::new(move || !pulled.is_replaced()),
                ..loaded
            })
        };
        Ok(HostedModel {
            load: Box::new(move || load().map_err(Into::into)),
            ..found.hosted(bytes, &self.arguments)
        })
    }

    /// Checks that a file that a client asks for takes the pictures from no model next to it: of two encoders, none is
    /// chosen.
    fn check_encoder(name: &str) -> Result<(), LibraryError> {
        match place(name)? {
            Some(path) if is_mmproj(&path) && !mmproj_next_to(&path).is_empty() => {
                Err(LibraryError::Refused(format!(
                    "there is another encoder of pictures in the folder of {name}, and of two, models use none: delete \
                     that one first"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Returns a path by which files can be compared, without links. The file may not exist.
fn canonical(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|parent| {
        let rest = path.strip_prefix(parent).ok()?;
        // Joining nothing would append a separator.
        let parent = parent.canonicalize().ok()?;
        Some(if rest == Path::new("") {
            parent
        } else {
            parent.join(rest)
        })
    });
    there.unwrap_or_else(|| path.to_owned())
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

/// Returns the error of a fetch. The hub's reasons, and those of the disk, name no files of this machine, apart from their
/// paths.
fn unfetched(error: triad_model::Error) -> LibraryError {
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::Fetch => LibraryError::Refused(message),
        ErrorKind::Hub => LibraryError::Hub(message),
        ErrorKind::Full => LibraryError::Full(message),
        _ => LibraryError::Failed(error.into()),
    }
}

impl ModelLibrary for CacheLibrary {
    fn models(&self, of: Option<&str>) -> Vec<HostedModel> {
        let cached = fetch::cached().unwrap_or_else(|error| {
            output::note(&format!(
                "note: the models of the cache are not served: {error}"
            ));
            Vec::new()
        });
        let others = cached.into_iter().filter(|model| {
            let is_meant = of.is_none_or(|name| repository(&model.name) == name);
            is_meant && !self.is_of_given(&model.path)
        });
        let hosted = others.filter_map(|model| {
            let hosted = self.hosted(&model.name, &model.path);
            let explain = |error: &LibraryError| {
                let why = match error {
                    LibraryError::Refused(why) => why.clone(),
                    LibraryError::Failed(why) => format!("{} is not served: {why}", model.name),
                    other => format!("{} is not served: {other:?}", model.name),
                };
                output::note(&format!("note: {why}"));
            };
            hosted.inspect_err(explain).ok()
        });
        hosted.collect()
    }

    fn pull(
        &self,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<Option<HostedModel>, LibraryError> {
        self.check_change(name)?;
        Self::check_encoder(name)?;
        let options = PullOptions {
            kept_free: self.arguments.keep_free,
            uses_token: self.arguments.pull_token,
        };
        let path = fetch::pull_with(name, options, progress).map_err(unfetched)?;
        match is_mmproj(&path) {
            true => Ok(None),
            false => self.hosted(name, &path).map(Some),
        }
    }

    fn is_given(&self, name: &str) -> Result<bool, LibraryError> {
        Ok(place(name)?.is_some_and(|path| self.has_given(&path)))
    }

    fn check_change(&self, name: &str) -> Result<(), LibraryError> {
        let missing = |why: &str| {
            Err(LibraryError::Missing(format!(
                "there is no model {name:?}{why}"
            )))
        };
        let own = repository(name);
        // Other files of its folder decide what a given model is: its encoder of pictures is found there.
        if place(own)?.is_some_and(|folder| self.is_of_given(&folder)) {
            return Err(LibraryError::Given);
        }
        let placing = fetch::placing(name).map_err(not_found)?;
        match placing {
            Placing::Own => Ok(()),
            Placing::Linked => Err(LibraryError::Linked),
            Placing::OtherSpelling => missing(", but one whose name is spelled otherwise"),
            Placing::Path => missing(&format!(
                ": expected hf:owner/name, hf:owner/name:file or {DEFAULT_MODEL}"
            )),
        }
    }

    fn delete(&self, name: &str, progress: &dyn Progress) -> Result<Deletion, LibraryError> {
        self.check_change(name)?;
        // Packages stay: a pull made none, and they may be those of other files with the same content.
        let removal = fetch::removal(name, progress).map_err(not_found)?;
        let names = removal.models().iter().map(|model| model.name.clone());
        Ok(Deletion {
            names: names.collect(),
            end: Box::new(move || {
                let removed = removal.finish().map(drop);
                removed.map_err(|error| LibraryError::Failed(error.into()))
            }),
        })
    }
}

/// Returns the reason why the files of a model are not found.
fn not_found(error: triad_model::Error) -> LibraryError {
    match error.kind() {
        ErrorKind::Fetch => LibraryError::Missing(error.message().to_owned()),
        _ => LibraryError::Failed(error.into()),
    }
}

//! Loads ONNX Runtime's library, once per process.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use ort::logging::LogLevel;

use super::provider::Provider;
use crate::error::{Error, Result};

/// The oldest supported version.
const OLDEST: &str = "1.24";

/// The loaded library and its path. ONNX Runtime can't be unloaded or loaded twice.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// The libraries of providers that were registered.
static REGISTERED: Mutex<Vec<(Provider, PathBuf)>> = Mutex::new(Vec::new());

/// Held while a session of a provider that [builds alone](Provider::builds_alone) is built.
static BUILDING: Mutex<()> = Mutex::new(());

/// Builds a session while no other thread does.
pub(super) fn build_alone<T>(build: impl FnOnce() -> T) -> T {
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    build()
}

/// Registers the library at `path` as that of `provider`, unless it is registered already. Returns its full path.
pub(super) fn register(
    environment: &Environment,
    provider: Provider,
    path: &Path,
) -> Result<PathBuf> {
    let refused = |reason: String| Error::ProviderLibrary {
        provider: provider.to_string(),
        path: path.to_owned(),
        reason,
    };
    if !provider.may_have_library() {
        return Err(refused("it is a part of ONNX Runtime".to_owned()));
    }
    let found = path
        .canonicalize()
        .map_err(|error| refused(error.to_string()))?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    match registered.iter().find(|(other, _)| *other == provider) {
        Some((_, other)) if *other == found => return Ok(found),
        Some((_, other)) => {
            let other = other.display();
            return Err(refused(format!(
                "this process uses {other}: use one library per process"
            )));
        }
        None => {}
    }
    environment
        .register_ep_library(provider.canonical(), &found)
        .map_err(|error| refused(error.to_string()))?;
    registered.push((provider, found.clone()));
    Ok(found)
}

/// Describes the file of a provider's library, so that another version has another description. Providers do not report
/// their version before a session exists.
pub(super) fn build(path: &Path) -> String {
    let metadata = path.metadata().ok();
    let written = metadata
        .as_ref()
        .and_then(|metadata| metadata.modified().ok());
    let bytes = metadata.map(|metadata| metadata.len());
    format!("{}, {bytes:?} bytes, {written:?}", path.display())
}

/// Loads the library at `path`, or returns it if it is loaded already.
pub(super) fn load(path: &Path) -> Result<Environment> {
    let missing = |reason: std::io::Error| Error::LibraryMissing {
        path: path.to_owned(),
        reason,
    };
    let found = path.canonicalize().map_err(missing)?;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*loaded {
        Some((other, environment)) if *other == found => return Ok(environment.clone()),
        Some((other, _)) => {
            return Err(Error::LibraryLoaded {
                loaded: other.clone(),
                path: path.to_owned(),
            });
        }
        None => {}
    }
    let builder = ort::init_from(&found).map_err(|error| refused(path, error))?;
    let wrong = |error: ort::Error| Error::LibraryWrong {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let environment = builder
        .with_name("triad")
        .with_telemetry(false)
        .build()
        .map_err(wrong)?;
    // Errors that it would log are returned, too.
    environment.set_log_level(LogLevel::Fatal);
    *loaded = Some((found, environment.clone()));
    Ok(environment)
}

fn refused(path: &Path, error: ort::LoadDynamicError) -> Error {
    let path = path.to_owned();
    match error {
        ort::LoadDynamicError::BadVersion { version_str, .. } => Error::LibraryVersion {
            path,
            found: version_str,
            oldest: OLDEST,
        },
        error => Error::LibraryWrong {
            path,
            reason: error.to_string(),
        },
    }
}

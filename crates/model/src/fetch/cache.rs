//! The folder of fetched models, and the lock that keeps two pulls of one model apart.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Progress, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::output;

/// `TRIAD_CACHE`, or `triad` in the platform's cache folder.
pub(super) fn folder() -> Result<PathBuf> {
    folder_from(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn folder_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let platform = || {
        if cfg!(windows) {
            variable("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            variable("HOME").map(|home| home.join("Library/Caches"))
        } else {
            // The XDG specification has relative paths ignored.
            let xdg = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
            xdg.or_else(|| variable("HOME").map(|home| home.join(".cache")))
        }
    };
    variable("TRIAD_CACHE").or_else(|| Some(platform()?.join("triad"))).ok_or_else(|| {
        Error::new(ErrorKind::Io, "no cache folder is known on this machine: set TRIAD_CACHE to a folder for models")
    })
}

/// Held while one process fetches into a folder; let go when dropped, or when the process ends.
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates `folder` where needed and waits until no other process fetches into it.
    pub(super) fn acquire(folder: &Path, progress: &dyn Progress) -> Result<Self> {
        let cannot = |what: &str, error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot {what}: {error}; TRIAD_CACHE names another folder")).at(folder)
        };
        fs::create_dir_all(folder).map_err(|error| cannot("create this folder", error))?;
        let path = folder.join(".lock");
        let file = output::open_lock(&path).map_err(|error| cannot("write in this folder", error))?;
        let mut has_reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => return Err(cannot("lock this folder", error)),
                Err(TryLockError::WouldBlock) if progress.cancelled() => return Err(cancelled()),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut has_reported, true) {
                        progress.step("waiting for another process that fetches this model");
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(variables: &[(&str, &str)]) -> Result<PathBuf> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
        folder_from(find)
    }

    #[test]
    fn triad_cache_overrides_the_platform() {
        let found = folder_with(&[("TRIAD_CACHE", "/models"), ("HOME", "/home/a"), ("LOCALAPPDATA", "/local")]);
        assert_eq!(found.unwrap(), PathBuf::from("/models"));
    }

    #[test]
    fn without_any_variable_the_error_names_what_to_set() {
        assert!(folder_with(&[]).unwrap_err().to_string().contains("set TRIAD_CACHE"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn on_linux_the_cache_follows_the_xdg_specification() {
        let home = ("HOME", "/home/a");
        assert_eq!(folder_with(&[home]).unwrap(), PathBuf::from("/home/a/.cache/triad"));
        assert_eq!(folder_with(&[home, ("XDG_CACHE_HOME", "/c")]).unwrap(), PathBuf::from("/c/triad"));
        assert_eq!(folder_with(&[home, ("XDG_CACHE_HOME", "c")]).unwrap(), PathBuf::from("/home/a/.cache/triad"));
    }

    #[test]
    fn a_second_pull_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(folder.path(), &()).unwrap();
        struct Impatient;
        impl Progress for Impatient {
            fn step(&self, what: &str) {
                assert!(what.starts_with("waiting"), "{what}");
            }
            fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
            fn cancelled(&self) -> bool {
                true
            }
        }
        assert!(FolderLock::acquire(folder.path(), &Impatient).is_err());
        drop(first);
        FolderLock::acquire(folder.path(), &Impatient).unwrap();
    }
}

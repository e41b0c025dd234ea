//! The lock that separates two pulls of one model.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

use super::{Progress, cancelled};
pub(super) use crate::cache_folder::folder;
use crate::error::{Error, ErrorKind, Result};
use crate::output;

/// A lock that a process holds while it fetches into a folder; released when dropped, or when the process ends.
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates `folder` if needed and waits until no other process fetches into it.
    pub(super) fn acquire(folder: &Path, progress: &dyn Progress) -> Result<Self> {
        let cannot = |what: &str, error: std::io::Error| {
            Error::new(
                ErrorKind::Io,
                format!("cannot {what}: {error}; TRIAD_CACHE names another folder"),
            )
            .at(folder)
        };
        fs::create_dir_all(folder).map_err(|error| cannot("create this folder", error))?;
        let path = folder.join(".lock");
        let file =
            output::open_lock(&path).map_err(|error| cannot("write in this folder", error))?;
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

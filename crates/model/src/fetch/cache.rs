//! The lock that separates two pulls of one model.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

use super::progress::{Progress, cancelled};
pub(super) use crate::cache_folder::folder;
use crate::error::{Error, ErrorKind, Result};
use crate::output;

/// The name of the lock in the folder.
pub(super) const LOCK: &str = ".lock";

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
        let path = folder.join(LOCK);
        let open = || {
            fs::create_dir_all(folder).map_err(|error| cannot("create this folder", error))?;
            output::open_lock(&path).map_err(|error| cannot("write in this folder", error))
        };
        let mut file = open()?;
        let mut has_reported = false;
        loop {
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { _file: file }),
                Ok(()) if progress.cancelled() => return Err(cancelled()),
                // Its holder has removed the folder: it does not lock the next one.
                Ok(()) => file = open()?,
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

/// Returns whether a process fetches into `folder` now.
pub(super) fn is_locked(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Returns whether the opened `file` is still the one at `path`; true if the system does not report it.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |data: fs::Metadata| (data.dev(), data.ino());
        let there = fs::symlink_metadata(path).map(identity);
        matches!((file.metadata().map(identity), there), (Ok(one), Ok(other)) if one == other)
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
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

    #[cfg(unix)]
    #[test]
    fn a_pull_that_waited_for_a_removal_locks_the_new_folder() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("model");
        let removal = FolderLock::acquire(&folder, &()).unwrap();
        let waiting = std::thread::spawn({
            let folder = folder.clone();
            move || FolderLock::acquire(&folder, &()).unwrap()
        });
        // The other thread opens the lock that is about to go.
        std::thread::sleep(Duration::from_millis(300));
        fs::rename(&folder, cache.path().join("removed")).unwrap();
        drop(removal);
        let _waited = waiting.join().unwrap();
        let file = output::open_lock(&folder.join(LOCK)).unwrap();
        assert!(
            matches!(file.try_lock(), Err(TryLockError::WouldBlock)),
            "a third pull would not wait for it"
        );
    }
}

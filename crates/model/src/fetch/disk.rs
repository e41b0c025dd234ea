//! The free space of the disk that files are fetched to.

use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// The bytes that this user may still write.
    pub(super) available: u64,
    pub(super) total: u64,
}

/// The disk of the cache, and the share of it that fetches leave free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// In percent.
    kept_free: u8,
    /// The bytes of a file after which the space is looked at again.
    interval: u64,
    /// Returns the space of the file system that has a folder; `None` if the system does not tell.
    space: fn(&Path) -> Option<Space>,
}

impl Disk {
    /// Returns the disk, of which fetches leave `kept_free` percent free.
    pub(super) fn new(kept_free: u8) -> Self {
        Self {
            kept_free: kept_free.min(100),
            interval: 16 << 20,
            space: space_of,
        }
    }

    /// Returns the same limit for a disk of another size, which is looked at after each block.
    #[cfg(test)]
    pub(super) fn with_space(self, space: fn(&Path) -> Option<Space>) -> Self {
        Self {
            space,
            interval: 1,
            ..self
        }
    }

    /// Returns whether the space is looked at again at byte `done` of a file, after it was at byte `last`.
    pub(super) fn is_due(&self, last: Option<u64>, done: u64) -> bool {
        last.is_none_or(|last| done.abs_diff(last) >= self.interval)
    }

    /// Returns the bytes that a fetch into `folder` may write; `None` if the system does not tell.
    fn room(&self, folder: &Path) -> Option<u64> {
        let Space { available, total } = (self.space)(folder)?;
        let kept = u128::from(total) * u128::from(self.kept_free) / 100;
        Some(available.saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX)))
    }

    /// Checks that `bytes` of `what` fit into `folder`.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] with the missing bytes.
    pub(super) fn check(&self, folder: &Path, what: &str, bytes: u64) -> Result<()> {
        match self.room(folder) {
            Some(room) if room < bytes => {
                let message = format!(
                    "{what} needs {bytes} more bytes on the disk, but {room} are free{}: {} bytes are missing",
                    self.kept(),
                    bytes - room
                );
                Err(Error::new(ErrorKind::Full, message).at(folder))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the share of the disk of `folder` that stays free is free now.
    ///
    /// # Errors
    /// [`ErrorKind::Full`], if it is not.
    pub(super) fn check_kept(&self, folder: &Path, what: &str, done: u64) -> Result<()> {
        if self.kept_free > 0 && self.room(folder) == Some(0) {
            let message = format!(
                "{what}: stopped at byte {done}: the disk is full{}; the bytes so far are kept",
                self.kept()
            );
            return Err(Error::new(ErrorKind::Full, message).at(folder));
        }
        Ok(())
    }

    fn kept(&self) -> String {
        match self.kept_free {
            0 => String::new(),
            percent => format!(" (fetches leave {percent} % of it free)"),
        }
    }
}

/// Returns the kind of an error of writing.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => ErrorKind::Full,
        _ => ErrorKind::Io,
    }
}

#[cfg(unix)]
fn space_of(folder: &Path) -> Option<Space> {
    let found = rustix::fs::statvfs(folder).ok()?;
    // Some file systems of networks don't tell their size.
    (found.f_blocks > 0).then(|| Space {
        available: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

#[cfg(not(unix))]
fn space_of(_: &Path) -> Option<Space> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_missing_bytes() {
        let half_full = |_: &Path| {
            Some(Space {
                available: 500,
                total: 1000,
            })
        };
        let folder = Path::new("cache");
        let all = Disk::new(0).with_space(half_full);
        all.check(folder, "o/n", 500).unwrap();
        let error = all.check(folder, "o/n", 501).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(
            error.message(),
            "o/n needs 501 more bytes on the disk, but 500 are free: 1 bytes are missing"
        );
        let rest = Disk::new(20).with_space(half_full);
        rest.check(folder, "o/n", 300).unwrap();
        let error = rest.check(folder, "o/n", 301).unwrap_err().to_string();
        assert!(
            error.ends_with("300 are free (fetches leave 20 % of it free): 1 bytes are missing"),
            "{error}"
        );
        rest.check_kept(folder, "o/n", 7).unwrap();
        let short = Disk::new(50).with_space(half_full);
        let error = short.check_kept(folder, "o/n", 7).unwrap_err().to_string();
        assert!(error.contains("stopped at byte 7"), "{error}");
        // A full disk without a share ends a write by itself.
        all.with_space(|_| {
            Some(Space {
                available: 0,
                total: 1000,
            })
        })
        .check_kept(folder, "o/n", 7)
        .unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn the_system_tells_the_space_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let Space { available, total } = space_of(folder.path()).unwrap();
        assert!(total > 0 && available <= total);
        assert!(space_of(&folder.path().join("none")).is_none());
    }
}

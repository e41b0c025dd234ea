//! An unfinished package: a folder next to it, which gets the package's name when it is complete.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use triad_engine::Cancel;
use triad_engine::package::{MANIFEST, MANIFEST_DIGEST, Package, WEIGHTS, is_content};
use triad_model::{Error, ErrorKind, output};

use super::journal::Journal;
use super::recipe::Existing;
use crate::error::Result;

/// The end of the name of a folder in which a package is prepared; the rest is the package's name.
pub const UNFINISHED: &str = ".part";
/// The lock of the process that works in the folder.
const LOCK: &str = "lock";
/// Files that are kept for the next preparation if this one ends early.
const KEPT: [&str; 5] = [
    LOCK,
    Part::STATES[0],
    Part::STATES[1],
    Part::STATES[2],
    Part::STATES[3],
];
/// The unfinished state of an older version.
const OLD_STATE: &str = "calibration.part";
/// Interval between attempts to lock the folder while another process holds it.
const POLL: Duration = Duration::from_millis(100);

/// The locked folder `NAME.part`. If it is dropped before it is finished, it keeps only the files for resuming.
pub(super) struct Part {
    destination: PathBuf,
    folder: PathBuf,
    lock: Option<File>,
}

/// The result of [`Part::open`].
pub(super) enum Opened {
    /// The folder to work in.
    Part(Part),
    /// The package already exists and is kept.
    Kept,
}

impl Part {
    /// The file with the state of the calibration.
    pub(super) const CALIBRATION: &str = "calibration.safetensors";
    /// The file with the state of the encoder's calibration.
    pub(super) const CALIBRATION_OF_ENCODER: &str = "vision-calibration.safetensors";
    /// The file with what four bits cost each layer.
    pub(super) const SENSITIVITIES: &str = "sensitivities.safetensors";
    /// The record of the weights that are written; it keeps them for the next preparation.
    pub(super) const JOURNAL: &str = "written.json";
    /// All files with states.
    const STATES: [&str; 4] = [
        Self::CALIBRATION,
        Self::CALIBRATION_OF_ENCODER,
        Self::SENSITIVITIES,
        Self::JOURNAL,
    ];

    /// Creates or opens the folder next to `destination`, or next to its target if it is a link. Waits while another
    /// process works in it; `waiting` is then called once.
    pub(super) fn open(
        destination: &Path,
        existing: Existing,
        cancel: &Cancel,
        waiting: &mut dyn FnMut(),
    ) -> Result<Opened> {
        let is_link = destination.is_symlink() && destination.is_dir();
        let linked = if is_link {
            destination.canonicalize().ok()
        } else {
            None
        };
        let destination = linked.as_deref().unwrap_or(destination);
        let folder = folder_of(destination).ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                "expected the name of a folder that is to be made",
            )
            .at(destination)
        })?;
        let mut has_reported = false;
        loop {
            cancel.check()?;
            if exists(destination, existing)? {
                return Ok(Opened::Kept);
            }
            let path = folder.join(LOCK);
            let lock = match make(&folder).and_then(|()| output::open_lock(&path)) {
                Ok(lock) => lock,
                // Another process has just renamed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("cannot write in this folder", error, &folder)),
            };
            match lock.try_lock() {
                Ok(()) if path.exists() => {
                    // The previous holder of the lock may have finished the package.
                    if exists(destination, existing)? {
                        return Ok(Opened::Kept);
                    }
                    let part = Self {
                        destination: destination.into(),
                        folder,
                        lock: Some(lock),
                    };
                    part.clear();
                    return Ok(Opened::Part(part));
                }
                Ok(()) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(failed("cannot lock this folder", error, &folder));
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut has_reported, true) {
                        waiting();
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// Returns the path of a file of the package.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Renames the folder to its final name. An existing package is moved aside first and removed afterwards.
    pub(super) fn finish(mut self) -> Result<()> {
        let failed =
            |error: io::Error| failed("cannot give the package its name", error, &self.destination);
        let remove = |name| match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for state in Self::STATES {
            remove(state).map_err(failed)?;
        }
        // Windows cannot rename a folder with an open file. Elsewhere, the lock is held until the folder has its name.
        if cfg!(windows) {
            drop(self.lock.take());
            remove(LOCK).map_err(failed)?;
        }
        // Removed when dropped.
        let aside = tempfile::Builder::new()
            .prefix(".triad-")
            .suffix(".old")
            .tempdir_in(parent(&self.destination));
        let aside = aside.map_err(failed)?;
        let old = aside.path().join("package");
        let replaces = self.destination.exists();
        if replaces {
            fs::rename(&self.destination, &old).map_err(failed)?;
        }
        if let Err(error) = fs::rename(&self.folder, &self.destination) {
            if replaces {
                let _ = fs::rename(&old, &self.destination);
            }
            return Err(failed(error));
        }
        let _ = fs::remove_file(self.destination.join(LOCK));
        self.lock = None;
        Ok(())
    }

    /// Removes files that no later preparation can use: otherwise, a file of a killed preparation would become part of
    /// another package.
    fn clear(&self) {
        let has_journal = self.path(Self::JOURNAL).exists();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_kept = KEPT.iter().any(|kept| name == *kept) || has_journal && name == WEIGHTS;
            if !is_kept {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes the weights that an earlier preparation has written, with their record.
    pub(super) fn remove_written(&self) -> Result<()> {
        Journal::discard(&self.path(Self::JOURNAL), &self.path(WEIGHTS)).map_err(|error| {
            failed(
                "cannot remove files of an earlier preparation",
                error,
                &self.folder,
            )
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Without the lock, the folder may belong to another preparation.
        if self.lock.is_none() {
            return;
        }
        self.clear();
        if !Self::STATES.iter().any(|state| self.path(state).exists()) {
            let _ = fs::remove_file(self.path(LOCK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Returns whether a process prepares a package in the unfinished folder at `path`.
pub fn is_in_use(path: &Path) -> bool {
    let lock = path.join(LOCK);
    lock.is_file()
        && output::open_lock(&lock)
            .is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Returns whether a process prepares the package at `destination` now.
pub fn is_being_prepared(destination: &Path) -> bool {
    let lock = folder_of(destination).and_then(|folder| File::open(folder.join(LOCK)).ok());
    // Dropping the file releases the lock, if this was the only process to have it.
    lock.is_some_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Creates the folder of a preparation, unless it exists.
///
/// # Errors
/// If it cannot be created, or if what exists is not a folder of a preparation by this user, which is then not changed.
fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(parent(folder))?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() || !output::is_of_this_user(&metadata) {
        return Err(io::Error::other(
            "expected no such name, or the folder of an earlier preparation by this user",
        ));
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.to_str().is_some_and(is_made_here) {
            let message = format!(
                "it has {}, which no preparation makes: expected another name",
                name.display()
            );
            return Err(io::Error::other(message));
        }
    }
    Ok(())
}

/// Returns whether a preparation creates a file with this name.
fn is_made_here(name: &str) -> bool {
    let made = [MANIFEST, MANIFEST_DIGEST, OLD_STATE];
    is_content(name)
        || made.iter().chain(&KEPT).any(|made| *made == name)
        || output::is_unfinished(name)
}

/// Returns the folder in which a package is prepared; `None` if its path has no name.
fn folder_of(destination: &Path) -> Option<PathBuf> {
    let mut name = destination.file_name()?.to_owned();
    name.push(UNFINISHED);
    Some(destination.with_file_name(name))
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Returns true if there is a package to keep at `destination`, false if there is none or it is to be replaced.
fn exists(destination: &Path, existing: Existing) -> Result<bool> {
    let is_package = Package::is_at(destination);
    let refuse = |message: &str| Err(Error::new(ErrorKind::Io, message).at(destination).into());
    match existing {
        Existing::Keep if is_package => Ok(true),
        Existing::Refuse if is_package => {
            refuse("there is a package here already; --force replaces it")
        }
        Existing::Replace if is_package => match Package::foreign(destination) {
            Ok(None) => Ok(false),
            Ok(Some(name)) => refuse(&format!(
                "`{name}` in it is no part of a package: it is not replaced"
            )),
            Err(error) => Err(failed("cannot read this folder", error, destination)),
        },
        // An empty folder is replaced.
        _ if fs::read_dir(destination).is_ok_and(|mut entries| entries.next().is_none()) => {
            Ok(false)
        }
        _ if destination.symlink_metadata().is_ok() => {
            refuse("this is there and is no package: it is not replaced")
        }
        _ => Ok(false),
    }
}

fn failed(what: &str, error: io::Error, path: &Path) -> crate::Error {
    Error::new(ErrorKind::Io, what)
        .caused_by(error)
        .at(path)
        .into()
}

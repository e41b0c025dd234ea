//! A package in the making: a folder beside it, which gets the package's name when all is there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use triad_engine::Cancel;
use triad_engine::package::Package;
use triad_model::{Error, ErrorKind};

use super::Existing;
use crate::error::Result;

/// Held by the process that works in the folder.
const LOCK: &str = "lock";
/// Kept when a preparation ends early, for the next one.
const KEPT: [&str; 2] = [LOCK, Part::CALIBRATION];
/// How often another process is looked after.
const POLL: Duration = Duration::from_millis(100);

/// The folder `NAME.part`, locked. Dropped before it is finished, it keeps what can be resumed, and nothing else.
pub(super) struct Part {
    destination: PathBuf,
    folder: PathBuf,
    lock: Option<File>,
}

/// What [`Part::open`] finds.
pub(super) enum Opened {
    /// A folder to work in.
    Part(Part),
    /// The package is there already, and is to be kept.
    Kept,
}

impl Part {
    /// The file with what calibration saw.
    pub(super) const CALIBRATION: &str = "calibration.safetensors";

    /// Makes or finds the folder beside `destination`; waits while another process works in it, `waiting` is called
    /// then, once.
    pub(super) fn open(
        destination: &Path,
        existing: Existing,
        cancel: &Cancel,
        waiting: &mut dyn FnMut(),
    ) -> Result<Opened> {
        let folder = beside(destination, ".part").ok_or_else(|| {
            Error::new(ErrorKind::Io, "expected the name of a folder that is to be made").at(destination)
        })?;
        let mut has_reported = false;
        loop {
            cancel.check()?;
            if exists(destination, existing)? {
                return Ok(Opened::Kept);
            }
            fs::create_dir_all(&folder).map_err(|error| io("cannot create this folder", error, &folder))?;
            let path = folder.join(LOCK);
            let lock = match OpenOptions::new().create(true).write(true).truncate(false).open(&path) {
                Ok(lock) => lock,
                // Another process has just given the folder its name.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io("cannot write in this folder", error, &folder)),
            };
            match lock.try_lock() {
                Ok(()) if path.exists() => {
                    // Who held the lock until now may have finished the package.
                    if exists(destination, existing)? {
                        return Ok(Opened::Kept);
                    }
                    let part = Self { destination: destination.into(), folder, lock: Some(lock) };
                    part.clear();
                    return Ok(Opened::Part(part));
                }
                Ok(()) => {}
                Err(TryLockError::Error(error)) => return Err(io("cannot lock this folder", error, &folder)),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut has_reported, true) {
                        waiting();
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// A file of the package.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Gives the folder its name. A package that had it is moved aside first and removed after.
    pub(super) fn finish(mut self) -> Result<()> {
        let failed = |error: std::io::Error| io("cannot give the package its name", error, &self.destination);
        let remove = |name| match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        remove(Self::CALIBRATION).map_err(failed)?;
        // Windows renames no folder with an open file. Elsewhere the lock holds until the folder has its name.
        if cfg!(windows) {
            drop(self.lock.take());
            remove(LOCK).map_err(failed)?;
        }
        let old = beside(&self.destination, ".old").expect("the part has such a name, too");
        let replaces = self.destination.exists();
        if replaces {
            let cleared = if old.exists() { fs::remove_dir_all(&old) } else { Ok(()) };
            cleared.and_then(|()| fs::rename(&self.destination, &old)).map_err(failed)?;
        }
        if let Err(error) = fs::rename(&self.folder, &self.destination) {
            if replaces {
                let _ = fs::rename(&old, &self.destination);
            }
            return Err(failed(error));
        }
        let _ = fs::remove_file(self.destination.join(LOCK));
        self.lock = None;
        if replaces {
            let _ = fs::remove_dir_all(&old);
        }
        Ok(())
    }

    /// Removes what no later preparation can use: without that, a file of a preparation that was killed would become part of
    /// the package of another one.
    fn clear(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !KEPT.iter().any(|kept| entry.file_name() == *kept) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Without the lock, it may be the folder of another preparation.
        if self.lock.is_none() {
            return;
        }
        self.clear();
        if !self.path(Self::CALIBRATION).exists() {
            let _ = fs::remove_file(self.path(LOCK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// The path with something behind its name; `None` if it has no name.
fn beside(path: &Path, suffix: &str) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    name.push(suffix);
    Some(path.with_file_name(name))
}

/// True if there is a package to be kept at `destination`, false if there is none or it is to be replaced.
fn exists(destination: &Path, existing: Existing) -> Result<bool> {
    let is_package = Package::is_at(destination);
    let refuse = |message: &str| Err(Error::new(ErrorKind::Io, message).at(destination).into());
    match existing {
        Existing::Keep if is_package => Ok(true),
        Existing::Refuse if is_package => refuse("there is a package here already; --force replaces it"),
        Existing::Replace if is_package => Ok(false),
        // An empty folder makes way.
        _ if fs::read_dir(destination).is_ok_and(|mut entries| entries.next().is_none()) => Ok(false),
        _ if destination.symlink_metadata().is_ok() => refuse("this is there and is no package: it is not replaced"),
        _ => Ok(false),
    }
}

fn io(what: &str, error: std::io::Error, path: &Path) -> crate::Error {
    Error::new(ErrorKind::Io, what).caused_by(error).at(path).into()
}

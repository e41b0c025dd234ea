//! The first run of a model: it computes from its file as it is stored, and the package is prepared for the next run.

use std::path::{Path, PathBuf};

use triad_engine::memory;
use triad_model::files;
use triad_prepare::package::is_being_prepared;

use crate::error::Result;
use crate::hashes::Hashes;
use crate::machine;
use crate::packages::{self, Found, LookUp};

/// Maximum bytes of a preparation's log: it has one sentence.
const MAX_LOG_BYTES: u64 = 1 << 16;

/// The files that a model can run from now.
#[derive(Debug)]
pub enum Ready {
    /// A package, or a model that runs as it is stored.
    Found(Found),
    /// The model file, until there is a package.
    Stored(Missing),
    /// None: the model file as it is does not fit into memory, and has to be prepared first.
    TooLarge,
}

/// The package that a model does not have yet.
#[derive(Debug)]
pub struct Missing {
    /// The path that it will have.
    pub package: PathBuf,
    /// The state of its preparation.
    pub preparation: Preparation,
    /// An estimate of the memory that its preparation takes, in bytes.
    pub bytes: u64,
}

/// The state of a preparation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// No process prepares the package.
    Due,
    /// A process prepares it now.
    Running,
    /// The last one failed in the background, with this error.
    Failed(String),
}

/// Finds the files that the model at `path` can run from now. Prepares nothing. `read` is as in
/// [`cached`](packages::cached).
///
/// # Errors
/// As [`package_of`](packages::package_of), except for those of a preparation.
pub fn find(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Ready> {
    let (checkpoint, package) = match packages::look_up(path, read)? {
        LookUp::Found(found) => return Ok(Ready::Found(found)),
        LookUp::Missing {
            checkpoint,
            package,
        } => (checkpoint, package),
    };
    let weights = memory::of_weights(&checkpoint) as u64;
    if machine::available_memory().is_some_and(|available| weights > available) {
        return Ok(Ready::TooLarge);
    }
    Ok(Ready::Stored(Missing {
        preparation: Preparation::current(&package),
        package,
        // The search for shadows holds the model in INT8.
        bytes: checkpoint.description().parameters() as u64,
    }))
}

/// Finds the files as [`find`] does, if the hashes of the model's files are known, so that nothing large has to be read.
///
/// # Errors
/// As [`find`].
pub fn find_known(path: &Path) -> Result<Option<Ready>> {
    let hashes = Hashes::open(path);
    let is_known = |file: &PathBuf| hashes.known(file).is_some();
    if !packages::model_files(path).iter().all(is_known) {
        return Ok(None);
    }
    find(path, &mut |_, _| {}).map(Some)
}

impl Preparation {
    fn current(package: &Path) -> Self {
        if is_being_prepared(package) {
            return Self::Running;
        }
        let log = files::read_text(&packages::log_of(package), MAX_LOG_BYTES).unwrap_or_default();
        let mut errors = log.lines().filter_map(|line| line.strip_prefix("error: "));
        // A program that broke off by a fault of its own writes something else.
        let first = log.lines().find(|line| !line.trim().is_empty());
        match errors.next_back().or(first) {
            Some(error) => Self::Failed(error.trim().into()),
            None => Self::Due,
        }
    }
}

impl Missing {
    /// Returns the path of the file for the standard error of a preparation in the background. If the file has text in
    /// it, the preparation failed with this text. A later preparation that succeeds removes it.
    pub fn log(&self) -> PathBuf {
        packages::log_of(&self.package)
    }

    /// Returns the state of the preparation now.
    pub fn preparation_now(&self) -> Preparation {
        Preparation::current(&self.package)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_preparation_is_due_running_or_failed_with_the_last_line_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("model-0123");
        assert_eq!(Preparation::current(&package), Preparation::Due);
        let log = packages::log_of(&package);
        assert_eq!(log, folder.path().join("model-0123.log"));
        fs::write(&log, "").unwrap();
        assert_eq!(Preparation::current(&package), Preparation::Due);
        fs::write(&log, "a note\nerror: the disk is full\n\n").unwrap();
        let failed = Preparation::Failed("the disk is full".into());
        assert_eq!(Preparation::current(&package), failed);
        let part = folder.path().join("model-0123.part");
        fs::create_dir(&part).unwrap();
        let lock = fs::File::create(part.join("lock")).unwrap();
        assert_eq!(
            Preparation::current(&package),
            failed,
            "left by a process that ended"
        );
        lock.lock().unwrap();
        assert_eq!(Preparation::current(&package), Preparation::Running);
    }
}

//! Files of a package with measurements of several lists of processors.
//!
//! Next to each file is a [`seal`] of this machine: measurements of another machine, or a file that was changed, must
//! not decide where a model is computed.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use triad_engine::package::MANIFEST;
use triad_model::file_lock::FileLock;
use triad_model::{files, output, seal};

use crate::error::{Error, Result};

/// Maximum bytes of a file of measurements.
const MAX_BYTES: u64 = 64 << 20;

/// The purpose of the seals of measurements.
const PURPOSE: &str = "measurements";

/// Measurements on a list of processors, kept in a package.
pub trait Measurements: Serialize + DeserializeOwned {
    /// Name of the file in the package.
    const FILE: &str;
}

/// The measurements of several lists of processors, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent, bound = "T: Measurements")]
pub struct Table<T>(BTreeMap<String, T>);

// A derived implementation would require `T: Default`.
impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Measurements> Table<T> {
    /// Returns the path of the table of a package.
    pub fn path(package: &Path) -> PathBuf {
        package.join(T::FILE)
    }

    /// Returns the path of the seal of the file at `path`.
    fn seal(path: &Path) -> PathBuf {
        path.with_added_extension("seal")
    }

    /// Reads the table of a package; an empty one if nothing was measured on this machine, or if its path is no
    /// [regular file](Self::unread).
    ///
    /// # Errors
    /// If it can't be read, or is not of this version.
    pub fn open(package: &Path) -> Result<Self> {
        let path = Self::path(package);
        let read = || {
            let mut bytes = Vec::new();
            files::open(&path)?
                .take(MAX_BYTES + 1)
                .read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        let table = match read() {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => {
                Err(format!("expected at most {MAX_BYTES} bytes").into())
            }
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(_) if !Self::is_sealed(&path, &bytes) => Ok(Self::default()),
                table => table.map_err(Into::into),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(_) if Self::unread(package).is_some() => Ok(Self::default()),
            Err(error) => {
                return Err(unusable(path, "cannot read the file", error));
            }
        };
        table.map_err(|source| Error::Measurements { path, source })
    }

    /// Returns the path of the table of a package if it is there and neither a regular file nor a folder, such as a named pipe.
    /// It counts as missing.
    pub fn unread(package: &Path) -> Option<PathBuf> {
        let path = Self::path(package);
        let is_other = path
            .metadata()
            .is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        is_other.then_some(path)
    }

    /// Returns whether the file at `path` with these `bytes` has a seal of this machine.
    fn is_sealed(path: &Path, bytes: &[u8]) -> bool {
        let file = files::open(&Self::seal(path));
        let mut found = Vec::new();
        let read = file.and_then(|file| {
            file.take(size_of::<seal::Seal>() as u64 + 1)
                .read_to_end(&mut found)
        });
        read.is_ok() && seal::is_sealed(PURPOSE, &[T::FILE.as_bytes(), bytes], &found)
    }

    /// Reads the table of a package, to add measurements. A file that is damaged or of another version is replaced
    /// immediately by an empty table, since engines that measure read it, too. The second value is whether it was
    /// replaced.
    ///
    /// # Errors
    /// If the file can't be read or replaced.
    pub fn open_or_replace(package: &Path) -> Result<(Self, bool)> {
        match Self::open(package) {
            Err(Error::Measurements { .. }) => {
                let empty = Self::default();
                empty.save(package)?;
                Ok((empty, true))
            }
            opened => Ok((opened?, false)),
        }
    }

    /// Returns the measurements of a list of processors, if there are any.
    pub fn get(&self, processors: &str) -> Option<&T> {
        self.0.get(processors)
    }

    /// Sets the measurements of a list of processors.
    pub fn set(&mut self, processors: &str, measurements: T) {
        self.0.insert(processors.to_owned(), measurements);
    }

    /// Adds the measurements of a list of processors to the table of a package, as it is now: other processes may have
    /// added some since this one read it. A table that is damaged or of another version is replaced.
    ///
    /// # Errors
    /// If it can't be read, locked or written.
    pub fn add(package: &Path, processors: &str, measurements: T) -> Result<()> {
        // Every package has this file, and measurements do not replace it.
        let manifest = package.join(MANIFEST);
        let _lock = FileLock::wait(&manifest)
            .map_err(|error| unusable(manifest, "cannot lock the file", error))?;
        let mut table = match Self::open(package) {
            Err(Error::Measurements { .. }) => Self::default(),
            opened => opened?,
        };
        table.set(processors, measurements);
        table.save(package)
    }

    /// Replaces the table of the package by this one.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn save(&self, package: &Path) -> Result<()> {
        let path = Self::path(package);
        let write = || {
            let mut json = serde_json::to_vec_pretty(self)?;
            json.push(b'\n');
            // Until both are written, the seal does not match the file, and nothing counts as measured.
            output::write_own(&path, &json)?;
            output::write_own(
                &Self::seal(&path),
                &seal::seal(PURPOSE, &[T::FILE.as_bytes(), &json]),
            )
        };
        let written = write();
        written.map_err(|error| unusable(path, "cannot write the file", error))
    }
}

fn unusable(path: PathBuf, problem: &'static str, error: std::io::Error) -> Error {
    Error::Engine(triad_engine::Error::File {
        path,
        problem,
        source: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{CostTable, Costs};

    #[test]
    fn a_table_is_read_as_it_was_written_and_a_damaged_one_is_refused_and_then_replaced() {
        let package = tempfile::tempdir().unwrap();
        assert_eq!(
            CostTable::open(package.path()).unwrap(),
            CostTable::default()
        );
        let mut table = CostTable::default();
        table.set("cpu,npu", Costs::default());
        table.save(package.path()).unwrap();
        assert_eq!(CostTable::open(package.path()).unwrap(), table);
        assert_eq!(
            CostTable::open_or_replace(package.path()).unwrap(),
            (table.clone(), false)
        );
        assert_eq!(
            (table.get("cpu,npu"), table.get("cpu")),
            (Some(&Costs::default()), None)
        );
        fs::write(CostTable::path(package.path()), "{\"cpu\": 1}").unwrap();
        let refused = CostTable::open(package.path()).unwrap_err().to_string();
        assert!(
            refused.contains("costs.json") && refused.contains("triad profile"),
            "{refused}"
        );
        assert_eq!(
            CostTable::open_or_replace(package.path()).unwrap(),
            (CostTable::default(), true)
        );
        assert_eq!(
            CostTable::open(package.path()).unwrap(),
            CostTable::default()
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_named_pipe_in_the_place_of_a_table_or_of_its_seal_counts_as_missing() {
        let package = tempfile::tempdir().unwrap();
        let path = CostTable::path(package.path());
        let mut table = CostTable::default();
        table.set("cpu,npu", Costs::default());
        for name in [path.clone(), CostTable::seal(&path)] {
            table.save(package.path()).unwrap();
            assert_eq!(CostTable::unread(package.path()), None);
            fs::remove_file(&name).unwrap();
            let made = std::process::Command::new("mkfifo").arg(&name).status();
            assert!(made.unwrap().success());
            assert_eq!(
                CostTable::open(package.path()).unwrap(),
                CostTable::default()
            );
            assert_eq!(
                CostTable::unread(package.path()).is_some(),
                name == path,
                "the table itself"
            );
        }
        // Measurements take its place.
        table.save(package.path()).unwrap();
        assert_eq!(CostTable::open(package.path()).unwrap(), table);
    }

    #[test]
    fn what_another_machine_measured_or_somebody_changed_counts_as_not_measured() {
        let package = tempfile::tempdir().unwrap();
        let path = CostTable::path(package.path());
        let mut table = CostTable::default();
        table.set("cpu,npu", Costs::default());
        table.save(package.path()).unwrap();
        let written = fs::read_to_string(&path).unwrap();
        fs::write(&path, written.replace("cpu,npu", "cpu,gpu")).unwrap();
        assert_eq!(
            CostTable::open(package.path()).unwrap(),
            CostTable::default()
        );
        fs::write(&path, written).unwrap();
        assert_eq!(CostTable::open(package.path()).unwrap(), table);
        let seal = CostTable::seal(&path);
        fs::write(&seal, [7; 32]).unwrap();
        assert_eq!(
            CostTable::open(package.path()).unwrap(),
            CostTable::default()
        );
        fs::remove_file(seal).unwrap();
        assert_eq!(
            CostTable::open_or_replace(package.path()).unwrap(),
            (CostTable::default(), false)
        );
    }

    #[test]
    fn what_several_processes_measure_at_once_is_all_kept() {
        let package = tempfile::tempdir().unwrap();
        fs::write(package.path().join("package.json"), "{}").unwrap();
        let names: Vec<String> = (0..16).map(|number| format!("cpu,npu{number}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| CostTable::add(package.path(), name, Costs::default()).unwrap());
            }
        });
        let table = CostTable::open(package.path()).unwrap();
        assert!(names.iter().all(|name| table.get(name).is_some()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced() {
        let package = tempfile::tempdir().unwrap();
        fs::create_dir(CostTable::path(package.path())).unwrap();
        let refused = CostTable::open_or_replace(package.path())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("cannot read the file"), "{refused}");
    }
}

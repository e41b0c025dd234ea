//! Hashes of files, remembered: a file is read again only where it has changed since.
//!
//! A package that is altered computes something else, so that its files are compared with the hashes in `package.json`
//! before it is used ([`open_package`]); a model file is found again in the cache by what it holds ([`Hashes::sha256`]).
//! The hashes are kept in `hashes` in the cache, those of a package that must not be written as well:
//! a small file for each package or model, named by its path. A file counts as unchanged while its size, the times of
//! its last changes, and its number on its device are what they were when it was hashed. Where nothing can be written,
//! files are hashed every time; so are those on a file system in memory, where a change by a mapping leaves these times
//! as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use triad_engine::package::{self, FileDigest, Package};
use triad_model::{fetch, files};

use crate::cache_file;
use crate::error::{Error, Result};

/// A file that changed within so much time may change once more without another time: clocks of file systems tick every
/// few milliseconds.
const TICK: Duration = Duration::from_millis(20);
/// The same, where a file system counts in whole seconds.
const LONG_TICK: Duration = Duration::from_secs(2);

/// What shows without reading it that a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    bytes: u64,
    /// Nanoseconds since 1970: of the content, and of anything about the file, which no program can set.
    modified: u64,
    changed: u64,
    device: u64,
    number: u64,
}

impl State {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let nanoseconds = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_nanos() as u64)
        };
        let modified = nanoseconds(metadata.modified()?);
        #[cfg(unix)]
        let (changed, device, number) = {
            use std::os::unix::fs::MetadataExt;
            let changed =
                i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
            (
                u64::try_from(changed).unwrap_or(0),
                metadata.dev(),
                metadata.ino(),
            )
        };
        #[cfg(not(unix))]
        let (changed, device, number) = (modified, 0, 0);
        Ok(Self {
            bytes: metadata.len(),
            modified,
            changed,
            device,
            number,
        })
    }

    /// How long to wait until any further change has another time; none if that takes too long to wait for.
    fn unsettled(&self) -> Option<Duration> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let age = now.saturating_sub(Duration::from_nanos(self.changed));
        if self.changed.is_multiple_of(1_000_000_000) && age < LONG_TICK {
            return None;
        }
        Some(TICK.saturating_sub(age))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hashed {
    state: State,
    sha256: String,
}

/// The hashes of one model's or package's files.
#[derive(Debug)]
pub struct Hashes {
    /// Where they are kept; none where no cache is known.
    record: Option<PathBuf>,
    files: BTreeMap<PathBuf, Hashed>,
    is_new: bool,
}

impl Hashes {
    /// Those that are known of the files of `subject`, which is a file or a folder.
    pub fn of(subject: &Path) -> Self {
        Self::kept_in(fetch::hashes_folder().ok(), subject)
    }

    /// The same, kept in `folder`; kept nowhere without one.
    pub(crate) fn kept_in(folder: Option<PathBuf>, subject: &Path) -> Self {
        let subject = subject.canonicalize().unwrap_or_else(|_| subject.into());
        let name = package::sha256(subject.as_os_str().as_encoded_bytes());
        let record = folder.map(|folder| folder.join(format!("{}.json", &name[..32])));
        // What is damaged or of another version is as good as none.
        let read = |record: &PathBuf| {
            serde_json::from_slice(&files::read(record, cache_file::MOST_BYTES).ok()?).ok()
        };
        let files = record.as_ref().and_then(read).unwrap_or_default();
        Self {
            record,
            files,
            is_new: false,
        }
    }

    /// The hash of the file at `path`, if the file has not changed since.
    pub fn known(&self, path: &Path) -> Option<&str> {
        if !has_dependable_times(path) {
            return None;
        }
        let hashed = self.files.get(&path.canonicalize().ok()?)?;
        (State::of(path).ok()? == hashed.state).then_some(&hashed.sha256)
    }

    /// The hash of the file at `path`, known or read now. `progress` is called with the bytes of each block that was read.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn sha256(&mut self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String> {
        if let Some(known) = self.known(path) {
            return Ok(known.to_owned());
        }
        settle(path);
        let state = || {
            State::of(path).map_err(|source| Error::File {
                what: "read",
                path: path.into(),
                source,
            })
        };
        let mut before = state()?;
        let settles = before.unsettled();
        if let Some(wait) = settles.filter(|wait| !wait.is_zero()) {
            std::thread::sleep(wait);
            before = state()?;
        }
        let sha256 = FileDigest::read(path, progress)?.sha256;
        if settles.is_some()
            && has_dependable_times(path)
            && state()? == before
            && let Ok(path) = path.canonicalize()
        {
            self.files.insert(
                path,
                Hashed {
                    state: before,
                    sha256: sha256.clone(),
                },
            );
            self.is_new = true;
        }
        Ok(sha256)
    }

    /// The hashes of `files`: those that are not known are read, and kept. `read` is called with the bytes that were read and
    /// the bytes of all that are to be read.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_files(
        &mut self,
        files: &[PathBuf],
        read: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<String>> {
        let unknown = files.iter().filter(|file| self.known(file).is_none());
        let total = unknown
            .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
            .sum();
        let mut done = 0;
        let mut progress = |bytes| {
            done += bytes;
            read(done, total);
        };
        let found = files
            .iter()
            .map(|file| self.sha256(file, &mut progress))
            .collect();
        self.save();
        found
    }

    /// Keeps what was read, where that is possible.
    pub fn save(&self) {
        let Some(record) = self.record.as_ref().filter(|_| self.is_new) else {
            return;
        };
        // What is not kept is hashed again.
        let _ = serde_json::to_vec(&self.files).map(|content| cache_file::write(record, &content));
    }
}

/// Returns whether each change of the file at `path` shows in its times.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_dependable_times(path: &Path) -> bool {
    /// Types of file systems in memory (tmpfs, ramfs, hugetlbfs), which note no change by a mapping.
    const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    // These types have 32 bits; the field has as many as a word.
    rustix::fs::statfs(path).is_ok_and(|system| !IN_MEMORY.contains(&(system.f_type as u32)))
}

/// Returns whether each change of the file at `path` shows in its times.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn has_dependable_times(_: &Path) -> bool {
    true
}

/// Has what was changed in the file at `path` by a mapping written to the disk. Only then a later change by the same mapping
/// shows in the file's times.
fn settle(path: &Path) {
    // Where that is not possible, nothing was changed, or no system call tells more.
    let _ = fs::File::open(path).and_then(|file| file.sync_all());
}

/// Opens the package at `path`. Files that changed since their hashes were last checked are checked again; `read` is called
/// with the bytes that were read of them and the bytes of all that are to be read.
///
/// # Errors
/// If a file cannot be read, or is not what the package names.
pub fn open_package(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Package> {
    let package = Package::open(path)?;
    let (files, stated): (Vec<_>, Vec<_>) = package.digests()?.into_iter().unzip();
    let found = Hashes::of(path).of_files(&files, read)?;
    for ((file, stated), found) in files.iter().zip(&stated).zip(&found) {
        package::compare(file, found, stated)?;
    }
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, records) = (folder.path().join("weights"), folder.path().join("hashes"));
        fs::write(&file, "one").unwrap();
        let read = || {
            let mut bytes = 0;
            let mut hashes = Hashes::kept_in(Some(records.clone()), folder.path());
            let sha256 = hashes.sha256(&file, &mut |read| bytes += read).unwrap();
            hashes.save();
            (sha256, bytes)
        };
        assert_eq!(read(), (package::sha256(b"one"), 3));
        let again = if has_dependable_times(&file) { 0 } else { 3 };
        assert_eq!(read(), (package::sha256(b"one"), again));
        // Of the same size, at once.
        fs::write(&file, "two").unwrap();
        assert_eq!(read(), (package::sha256(b"two"), 3));
        // As a program that hides the change would leave it: only the system's own time shows it.
        #[cfg(unix)]
        {
            let modified = fs::metadata(&file).unwrap().modified().unwrap();
            fs::write(&file, "six").unwrap();
            fs::File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_modified(modified)
                .unwrap();
            assert_eq!(read(), (package::sha256(b"six"), 3));
        }
        fs::write(
            records.read_dir().unwrap().next().unwrap().unwrap().path(),
            "{",
        )
        .unwrap();
        assert_eq!(read().1, 3, "a damaged record is none");
        assert_eq!(records.read_dir().unwrap().count(), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_in_memory_is_read_each_time_since_a_mapping_changes_it_without_its_times() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("skipped: there is no /dev/shm");
            return;
        };
        let (file, records) = (folder.path().join("weights"), tempfile::tempdir().unwrap());
        fs::write(&file, "one").unwrap();
        for _ in 0..2 {
            let mut bytes = 0;
            let mut hashes = Hashes::kept_in(Some(records.path().to_owned()), folder.path());
            assert_eq!(hashes.known(&file), None);
            hashes.sha256(&file, &mut |read| bytes += read).unwrap();
            hashes.save();
            assert_eq!(bytes, 3);
        }
    }

    #[test]
    fn without_a_place_for_records_every_hash_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weights");
        fs::write(&file, "one").unwrap();
        for _ in 0..2 {
            // A file cannot hold files.
            let mut hashes = Hashes::kept_in(Some(file.clone()), folder.path());
            let mut bytes = 0;
            hashes.sha256(&file, &mut |read| bytes += read).unwrap();
            hashes.save();
            assert_eq!(bytes, 3);
        }
    }
}

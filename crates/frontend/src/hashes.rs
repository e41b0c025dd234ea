//! Cached hashes of files: a file is read again only if it changed.
//!
//! A package that was altered computes other results, so [`open_package`] compares its files with the hashes in
//! `package.json` before it is used. A model file finds its package in the cache by the hash of its content
//! ([`Hashes::sha256`]). Hashes are kept in the folder `hashes` in the cache, also those of a package that must not be
//! written: a small file for each package or model, named by its path. A file counts as unchanged while its size, the
//! times of its last changes, and its inode number are the same as when it was hashed. Where the cache can't be
//! written, files are hashed every time. So are files on a file system in memory, where a change through a mapping does
//! not change these times.

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

/// A file that changed less than this ago may change again without a new time: clocks of file systems tick every few
/// milliseconds.
const TICK: Duration = Duration::from_millis(20);
/// The same for file systems that count in whole seconds.
const LONG_TICK: Duration = Duration::from_secs(2);

/// Metadata of a file that differs after each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    bytes: u64,
    /// Nanoseconds since 1970. `modified` is of the content. `changed` is of any change to the file, and programs can't
    /// set it.
    modified: u64,
    changed: u64,
    device: u64,
    number: u64,
}

impl State {
    fn read(path: &Path) -> io::Result<Self> {
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

    /// Returns how long to wait until a further change gets another time; `None` if that is too long.
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
    /// The file that keeps the hashes; `None` without a cache.
    record: Option<PathBuf>,
    files: BTreeMap<PathBuf, Hashed>,
    is_new: bool,
}

impl Hashes {
    /// Reads the known hashes of the files of `subject`, which is a file or a folder.
    pub fn open(subject: &Path) -> Self {
        Self::kept_in(fetch::hashes_folder().ok(), subject)
    }

    /// Reads hashes that are kept in `folder`. Without a folder they are not kept.
    pub(crate) fn kept_in(folder: Option<PathBuf>, subject: &Path) -> Self {
        let subject = subject.canonicalize().unwrap_or_else(|_| subject.into());
        let name = package::sha256(subject.as_os_str().as_encoded_bytes());
        let record = folder.map(|folder| folder.join(format!("{}.json", &name[..32])));
        // A damaged record, or one of another version, is ignored.
        let read = |record: &PathBuf| {
            serde_json::from_slice(&files::read(record, cache_file::MAX_BYTES).ok()?).ok()
        };
        let files = record.as_ref().and_then(read).unwrap_or_default();
        Self {
            record,
            files,
            is_new: false,
        }
    }

    /// Returns the hash of the file at `path`, if it is known and the file has not changed since.
    pub fn known(&self, path: &Path) -> Option<&str> {
        if !has_dependable_times(path) {
            return None;
        }
        let hashed = self.files.get(&path.canonicalize().ok()?)?;
        (State::read(path).ok()? == hashed.state).then_some(&hashed.sha256)
    }

    /// Returns the hash of the file at `path`. Reads the file if its hash is not known; `progress` is called with the
    /// bytes of each block that was read.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn sha256(&mut self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String> {
        if let Some(known) = self.known(path) {
            return Ok(known.to_owned());
        }
        settle(path);
        let state = || {
            State::read(path).map_err(|source| Error::File {
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

    /// Returns the hashes of `files`. Reads the files whose hashes are not known, and keeps these. `read` is called
    /// with the bytes read so far and the bytes to read in total.
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

    /// Writes new hashes to the cache, if possible.
    pub fn save(&self) {
        let Some(record) = self.record.as_ref().filter(|_| self.is_new) else {
            return;
        };
        // Hashes that are not kept are computed again.
        let _ = serde_json::to_vec(&self.files).map(|content| cache_file::write(record, &content));
    }
}

/// Returns whether each change of the file at `path` changes its times.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_dependable_times(path: &Path) -> bool {
    /// Types of file systems in memory (tmpfs, ramfs, hugetlbfs), where a change through a mapping does not change the
    /// times.
    const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    // These types have 32 bits; the field has the size of a word.
    rustix::fs::statfs(path).is_ok_and(|system| !IN_MEMORY.contains(&(system.f_type as u32)))
}

/// Returns whether each change of the file at `path` changes its times.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn has_dependable_times(_: &Path) -> bool {
    true
}

/// Writes changes to the file at `path` that were made through a mapping to disk. Only then does a later change through
/// the same mapping change the file's times.
fn settle(path: &Path) {
    // An error is ignored: then nothing was changed, or no other system call helps.
    let _ = fs::File::open(path).and_then(|file| file.sync_all());
}

/// Opens the package at `path`. Files that changed since their hashes were last checked are checked again. `read` is
/// called with the bytes read so far and the bytes to read in total.
///
/// # Errors
/// If a file cannot be read, or its hash is not the package's.
pub fn open_package(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Package> {
    let package = Package::open(path)?;
    let (files, stated): (Vec<_>, Vec<_>) = package.digests()?.into_iter().unzip();
    let found = Hashes::open(path).of_files(&files, read)?;
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
        // The same size, and at once.
        fs::write(&file, "two").unwrap();
        assert_eq!(read(), (package::sha256(b"two"), 3));
        // A program hides the change by setting the time back: only the system's own time differs.
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

//! Memory-mapped files: weights are used in place, and the system keeps or drops their pages. If there is enough
//! memory, a copy in huge pages replaces the mapping ([`MappedFile::in_huge_pages`]).
//!
//! Mapping a file is unsafe because the bytes of a `&[u8]` must not change, but another process may write to the file.
//! If it truncates the file, a read past the new end raises a signal (`SIGBUS`). [`crate::fetch`] and the writers of
//! packages write another file and rename it, so an existing mapping keeps the old file, and all checks of a file's
//! structure use these same bytes. If another program changes a file in place, the signal is caught ([`lost_pages`]),
//! and [`MappedFile::check_unchanged`] fails: it is called before a result that was computed with a file is returned.
//! This module and its submodule are the only places of the crate with `unsafe`.
#![allow(unsafe_code)]

#[cfg(unix)]
mod lost_pages;

use std::fs::File;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::MmapMut;

use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// Bytes of one request for pages.
#[cfg(unix)]
const REQUEST: usize = 128 << 10;
/// Maximum number of threads that read a file into memory.
#[cfg(unix)]
const MAX_READERS: usize = 4;
/// Minimum bytes per thread: several huge pages.
#[cfg(unix)]
const MIN_READ: usize = 16 << 20;

/// A file mapped read-only into memory, or a copy of it. Clones are handles to the same bytes.
#[derive(Clone, Debug)]
pub struct MappedFile {
    shared: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    path: PathBuf,
    file: File,
    /// Length and times of the mapped file; `None` for a copy, which cannot change.
    mapped: Option<State>,
    /// Dropped before the bytes are unmapped.
    #[cfg(unix)]
    watched: Option<lost_pages::Watched>,
    /// The file, or a copy of it.
    bytes: Mmap,
}

/// Properties of a file that change with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Seconds and nanoseconds of the last change of content or properties, which programs cannot set, unlike the time of
    /// modification. `None` if the file has no name any more: what replaces it changes this time, and not the content.
    #[cfg(unix)]
    changed: Option<(i64, i64)>,
}

impl State {
    fn read(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            changed: (metadata.nlink() > 0).then(|| (metadata.ctime(), metadata.ctime_nsec())),
        })
    }

    /// Returns whether the file in this state has the content that it had `before`.
    fn continues(&self, before: &Self) -> bool {
        #[cfg(unix)]
        let is_same = self.changed.is_none() || self.changed == before.changed;
        #[cfg(not(unix))]
        let is_same = true;
        is_same && (self.bytes, self.modified) == (before.bytes, before.modified)
    }
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let failed = |doing: &str, error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot {doing} the file: {error}")).at(&path)
        };
        let file = files::open(&path).map_err(|error| failed("open", error))?;
        let mapped = State::read(&file).map_err(|error| failed("open", error))?;
        // SAFETY: the mapping is read-only, and a result that was computed with a file that changed while it was mapped
        // is not returned (see the module's documentation).
        let bytes = unsafe { Mmap::map(&file) }.map_err(|error| failed("map", error))?;
        #[cfg(unix)]
        let watched = (!bytes.is_empty()).then(|| {
            let addresses = bytes.as_ptr_range();
            lost_pages::Watched::new(addresses.start.addr()..addresses.end.addr())
        });
        let mapping = Mapping {
            path,
            file,
            mapped: Some(mapped),
            #[cfg(unix)]
            watched,
            bytes,
        };
        Ok(Self {
            shared: Arc::new(mapping),
        })
    }

    /// Reads the same bytes into memory, in huge pages (2 MiB on most processors) if the system has them. Pages of a
    /// file mostly have 4 KiB; a processor that reads all weights for each token has to translate the address of every
    /// page, and its prefetcher starts again in each.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there is not enough memory, or the file cannot be read.
    pub fn in_huge_pages(&self) -> Result<Self> {
        #[cfg(unix)]
        {
            let Mapping {
                path,
                file,
                bytes,
                mapped,
                ..
            } = &*self.shared;
            if bytes.is_empty() || mapped.is_none() {
                return Ok(self.clone());
            }
            let failed = |error: std::io::Error| {
                Error::new(
                    ErrorKind::Io,
                    format!("cannot read the file into memory: {error}"),
                )
                .at(path)
            };
            let mut copy = MmapMut::map_anon(bytes.len()).map_err(failed)?;
            #[cfg(target_os = "linux")]
            if let Err(error) = copy.advise(memmap2::Advice::HugePage) {
                tracing::debug!(path = %path.display(), %error, "no huge pages");
            }
            read_all(file, &mut copy).map_err(failed)?;
            // Tables that were read from the mapping are then also valid for the copy.
            self.check_unchanged()?;
            let bytes = copy.make_read_only().map_err(failed)?;
            let file = file.try_clone().map_err(failed)?;
            Ok(Self {
                shared: Arc::new(Mapping {
                    path: path.clone(),
                    file,
                    mapped: None,
                    watched: None,
                    bytes,
                }),
            })
        }
        #[cfg(not(unix))]
        Ok(self.clone())
    }

    /// Checks that the bytes are still those that were mapped: they differ if another program changed the file in
    /// place, or if pages could not be read. A copy in huge pages never changes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if they differ.
    pub fn check_unchanged(&self) -> Result<()> {
        let Mapping {
            path,
            file,
            mapped: Some(mapped),
            ..
        } = &*self.shared
        else {
            return Ok(());
        };
        #[cfg(unix)]
        let is_lost = self
            .shared
            .watched
            .as_ref()
            .is_some_and(lost_pages::Watched::is_lost);
        #[cfg(not(unix))]
        let is_lost = false;
        match State::read(file) {
            Ok(state) if state.continues(mapped) && !is_lost => Ok(()),
            Ok(State { bytes, .. }) if bytes < mapped.bytes => {
                let message = format!(
                    "the file was truncated while it was in use: {bytes} bytes, expected {}",
                    mapped.bytes
                );
                Err(Error::new(ErrorKind::Io, message).at(path))
            }
            Ok(_) => Err(Error::new(
                ErrorKind::Io,
                "the file was changed while it was in use, or cannot be read",
            )
            .at(path)),
            Err(error) => Err(Error::new(
                ErrorKind::Io,
                format!("the file cannot be read while it is in use: {error}"),
            )
            .at(path)),
        }
    }

    /// Returns the whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.shared.bytes
    }

    /// Returns the path at which the file was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns a part of the file that keeps the mapping alive.
    ///
    /// # Panics
    /// If `range` reaches outside the file: callers check ranges when they read a file's tables.
    pub fn part(&self, range: Range<usize>) -> MappedBytes {
        assert!(
            range.start <= range.end && range.end <= self.bytes().len(),
            "{range:?} is outside the file"
        );
        MappedBytes {
            file: self.clone(),
            range,
        }
    }

    /// Asks the system to read the pages of `range` into memory, and does not wait for them. Nothing happens if the
    /// system has no such call, or for a copy in huge pages.
    pub fn request(&self, range: Range<usize>) {
        #[cfg(unix)]
        if self.shared.mapped.is_some() {
            let end = range.end.min(self.bytes().len());
            // Linux reads no more than this for one call.
            for start in range.clone().step_by(REQUEST) {
                let length = REQUEST.min(end.saturating_sub(start));
                let advice = memmap2::Advice::WillNeed;
                if let Err(error) = self.shared.bytes.advise_range(advice, start, length) {
                    tracing::debug!(path = %self.path().display(), %error, "pages not requested");
                    return;
                }
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Calls [`MappedFile::release`], and advises the system that no other program needs the pages either, so that
    /// their memory is free at once.
    pub fn forget(&self, range: Range<usize>) {
        self.release(range.clone());
        #[cfg(target_os = "linux")]
        if self.shared.mapped.is_some() {
            let (start, length) = (range.start as u64, NonZeroU64::new(range.len() as u64));
            let advice = rustix::fs::Advice::DontNeed;
            if let Err(error) = rustix::fs::fadvise(&self.shared.file, start, length, advice) {
                tracing::debug!(path = %self.path().display(), %error, "pages not forgotten");
            }
        }
    }

    /// Advises the system that the pages of `range` are not needed in memory for now. Their content does not change:
    /// the next read loads them from the file again. Nothing happens if the system has no such call or ignores the
    /// advice, or for a copy in huge pages.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let end = range.end.min(self.bytes().len());
            if range.start < end && self.shared.mapped.is_some() {
                // SAFETY: the range is inside the mapping, which is a shared one of a file and never
                // written to, so dropped pages read back as the same bytes.
                let advised = unsafe {
                    let length = end - range.start;
                    self.shared.bytes.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        range.start,
                        length,
                    )
                };
                if let Err(error) = advised {
                    tracing::debug!(path = %self.path().display(), %error, "pages not released");
                }
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Reads a file from its start until `bytes` is full, in concurrent parts.
#[cfg(unix)]
fn read_all(file: &File, bytes: &mut [u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;

    // The system clears pages before data is read into them, so one thread does not saturate the memory.
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_READERS);
    let length = bytes.len().div_ceil(threads).next_multiple_of(MIN_READ);
    std::thread::scope(|scope| {
        let read =
            |(index, part): (usize, &mut [u8])| file.read_exact_at(part, (index * length) as u64);
        let readers: Vec<_> = bytes
            .chunks_mut(length)
            .enumerate()
            .map(|part| scope.spawn(move || read(part)))
            .collect();
        readers.into_iter().try_for_each(|reader| {
            reader
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Bytes of a [`MappedFile`], which they keep in memory.
#[derive(Clone, Debug)]
pub struct MappedBytes {
    file: MappedFile,
    range: Range<usize>,
}

impl MappedBytes {
    /// Returns some of these bytes.
    ///
    /// # Panics
    /// If `range` exceeds them.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "{range:?} of {}",
            self.range.len()
        );
        let start = self.range.start;
        Self {
            file: self.file.clone(),
            range: start + range.start..start + range.end,
        }
    }

    /// Calls [`MappedFile::release`].
    pub fn release(&self) {
        self.file.release(self.range.clone());
    }

    /// Calls [`MappedFile::request`].
    pub fn request(&self) {
        self.file.request(self.range.clone());
    }

    /// Calls [`MappedFile::forget`].
    pub fn forget(&self) {
        self.file.forget(self.range.clone());
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    #[cfg(unix)]
    use std::os::unix::fs::FileExt;

    use super::*;

    fn temporary(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn released_pages_read_back_unchanged() {
        let content: Vec<u8> = (0..300_000u32).map(|index| (index % 251) as u8).collect();
        let file = temporary(&content);
        let mapped = MappedFile::open(file.path()).unwrap();
        let part = mapped.part(5..299_995);
        mapped.release(5..299_995);
        assert!(*part == content[5..299_995]);
        mapped.release(0..usize::MAX);
        assert!(mapped.bytes() == content);
        part.forget();
        part.request();
        assert!(mapped.bytes() == content);
        mapped.forget(3..4);
        mapped.request(0..content.len());
        assert!(mapped.bytes() == content);
    }

    #[test]
    #[cfg(unix)]
    fn a_copy_in_huge_pages_has_the_bytes_that_the_file_had_and_keeps_them() {
        let content: Vec<u8> = (0..(5 * MIN_READ + 12_345) as u32)
            .map(|index| (index % 251) as u8)
            .collect();
        let file = temporary(&content);
        let copy = MappedFile::open(file.path())
            .unwrap()
            .in_huge_pages()
            .unwrap();
        assert!(
            Arc::ptr_eq(&copy.shared, &copy.in_huge_pages().unwrap().shared),
            "copied once"
        );
        let part = copy.part(7..content.len() - 3);
        assert!(*part == content[7..content.len() - 3]);
        file.as_file().write_all_at(b"changed", 100_000).unwrap();
        copy.release(0..usize::MAX);
        assert!(copy.bytes() == content);
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_has_become_shorter_is_not_copied() {
        let file = temporary(&[1; 10_000]);
        let mapped = MappedFile::open(file.path()).unwrap();
        file.as_file().set_len(9_999).unwrap();
        let error = mapped.in_huge_pages().unwrap_err();
        assert_eq!(
            (error.kind(), error.path()),
            (ErrorKind::Io, Some(file.path()))
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_mapped_file_that_is_truncated_reads_as_zeros_on_every_thread_and_is_not_unchanged() {
        const LENGTH: usize = 1 << 20;
        let files = [1, 2].map(|byte| temporary(&[byte; LENGTH]));
        let [mapped, other] = files
            .each_ref()
            .map(|file| MappedFile::open(file.path()).unwrap());
        for (left, rest) in [(LENGTH as u64 - 1, 1), (LENGTH as u64 / 2 + 5, 1), (0, 0)] {
            mapped
                .check_unchanged()
                .unwrap_or_else(|error| assert!(left < LENGTH as u64 - 1, "{error}"));
            files[0].as_file().set_len(left).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        assert!(
                            mapped.bytes()[left as usize..]
                                .iter()
                                .all(|byte| *byte == 0)
                        );
                    });
                }
            });
            assert_eq!(
                mapped.bytes()[..left as usize]
                    .iter()
                    .all(|byte| *byte == 1),
                rest == 1 || left == 0
            );
            let error = mapped.check_unchanged().unwrap_err();
            assert_eq!(
                (error.kind(), error.path()),
                (ErrorKind::Io, Some(files[0].path()))
            );
            assert!(error.to_string().contains("truncated"), "{error}");
        }
        // The error remains after the file has its old length again.
        files[0].as_file().set_len(LENGTH as u64).unwrap();
        mapped.check_unchanged().unwrap_err();
        drop(mapped);
        assert!(other.bytes().iter().all(|byte| *byte == 2));
        other.check_unchanged().unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_change_that_keeps_length_and_time_is_seen_and_a_removed_name_is_no_change() {
        use std::os::unix::fs::FileExt;

        let files = [temporary(&[1; 10_000]), temporary(&[2; 10_000])];
        let [changed, removed] = files
            .each_ref()
            .map(|file| MappedFile::open(file.path()).unwrap());
        let modified = files[0].as_file().metadata().unwrap().modified().unwrap();
        // The system's clock for files has steps of some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(30));
        files[0].as_file().write_all_at(&[7], 5_000).unwrap();
        files[0].as_file().set_modified(modified).unwrap();
        let error = changed.check_unchanged().unwrap_err();
        assert!(error.to_string().contains("was changed"), "{error}");
        std::fs::remove_file(files[1].path()).unwrap();
        removed.check_unchanged().unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_copy_in_huge_pages_stays_unchanged() {
        let file = temporary(&[1; 10_000]);
        let copy = MappedFile::open(file.path())
            .unwrap()
            .in_huge_pages()
            .unwrap();
        file.as_file().set_len(0).unwrap();
        copy.check_unchanged().unwrap();
        assert!(copy.bytes().iter().all(|byte| *byte == 1));
    }

    #[test]
    #[cfg(unix)]
    fn a_signal_that_is_of_no_watched_file_ends_the_process_as_before() {
        use std::os::unix::process::ExitStatusExt;

        const CHILD: &str = "TRIAD_TEST_BUS_ERROR";
        if std::env::var_os(CHILD).is_some() {
            let watched = temporary(&[1; 10_000]);
            let _watched = MappedFile::open(watched.path()).unwrap();
            let file = temporary(&[1; 10_000]);
            // SAFETY: the process ends at this read.
            let bytes = unsafe { Mmap::map(file.as_file()) }.unwrap();
            file.as_file().set_len(0).unwrap();
            std::process::exit(i32::from(std::hint::black_box(bytes[5_000])));
        }
        let name = "mapped::tests::a_signal_that_is_of_no_watched_file_ends_the_process_as_before";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }

    #[test]
    fn a_part_outlives_its_file_handle() {
        let file = temporary(b"0123456789");
        let part = MappedFile::open(file.path()).unwrap().part(3..6);
        assert_eq!(&*part, b"345");
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let file = temporary(b"");
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(
            (mapped.bytes(), mapped.in_huge_pages().unwrap().bytes()),
            (&b""[..], &b""[..])
        );
    }

    #[test]
    fn a_folder_or_an_absent_file_is_an_io_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        for path in [
            folder.path().to_path_buf(),
            folder.path().join("absent.gguf"),
        ] {
            let error = MappedFile::open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert_eq!(error.path(), Some(path.as_path()));
        }
    }
}

//! Memory-mapped files: weights are used in place, and the system keeps or drops their pages.
//!
//! This is the only place of the crate with `unsafe`. Mapping a file is unsafe because the bytes
//! behind a `&[u8]` must not change, and another process that writes to the file changes them; one
//! that truncates it turns a read past the new end into a signal (`SIGBUS`). Triad assumes what every
//! program that maps its inputs assumes: nobody rewrites a model file in place while it is in use.
//! [`crate::fetch`] keeps to that, it writes beside and renames, which leaves an existing mapping on
//! the old file. All checks of a file's structure are made on these same bytes, so a file changed
//! before it is opened is caught by them.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, ErrorKind, Result};

/// A file mapped read-only into memory. Clones are handles on one mapping.
#[derive(Clone, Debug)]
pub struct MappedFile {
    shared: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    path: PathBuf,
    bytes: Mmap,
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
        // Asked before opening: opening a named pipe waits for its other end.
        if !std::fs::metadata(&path).map_err(|error| failed("open", error))?.is_file() {
            return Err(Error::new(ErrorKind::Io, "expected a regular file").at(path));
        }
        let file = File::open(&path).map_err(|error| failed("open", error))?;
        // SAFETY: the mapping is read-only, and the file is not changed while it is mapped (see the
        // module's documentation).
        let bytes = unsafe { Mmap::map(&file) }.map_err(|error| failed("map", error))?;
        Ok(Self { shared: Arc::new(Mapping { path, bytes }) })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.shared.bytes
    }

    /// Where the file was when it was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// A part of the file that keeps the mapping alive.
    ///
    /// # Panics
    /// If `range` reaches outside the file: callers check ranges when they read a file's tables.
    pub fn part(&self, range: Range<usize>) -> MappedBytes {
        assert!(range.start <= range.end && range.end <= self.bytes().len(), "{range:?} is outside the file");
        MappedBytes { file: self.clone(), range }
    }

    /// Tells the system that the pages under `range` are not needed in memory for now. Their content
    /// is unchanged: the next read takes them from the file again. It is advice; where the system has
    /// no such call or declines, nothing happens.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let end = range.end.min(self.bytes().len());
            if range.start < end {
                // SAFETY: the range is inside the mapping, which is a shared one of a file and never
                // written to, so dropped pages read back as the same bytes.
                let advised = unsafe {
                    let length = end - range.start;
                    self.shared.bytes.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, length)
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

/// Bytes of a [`MappedFile`], which stays mapped as long as they live.
#[derive(Clone, Debug)]
pub struct MappedBytes {
    file: MappedFile,
    range: Range<usize>,
}

impl MappedBytes {
    /// Some of these bytes.
    ///
    /// # Panics
    /// If `range` leaves them.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {}", self.range.len());
        let start = self.range.start;
        Self { file: self.file.clone(), range: start + range.start..start + range.end }
    }

    /// As [`MappedFile::release`].
    pub fn release(&self) {
        self.file.release(self.range.clone());
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
        assert_eq!(MappedFile::open(file.path()).unwrap().bytes(), b"");
    }

    #[test]
    fn a_folder_or_an_absent_file_is_an_io_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("absent.gguf")] {
            let error = MappedFile::open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert_eq!(error.path(), Some(path.as_path()));
        }
    }
}

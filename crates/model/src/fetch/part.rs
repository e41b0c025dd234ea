//! An unfinished file: written under another name, checked, and renamed only when it is complete.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::output;

/// Bytes per read and write.
pub(super) const BLOCK: usize = 256 << 10;

/// The known properties of a file before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Its length.
    pub(super) bytes: Option<u64>,
    /// Its sha256 in hexadecimal.
    pub(super) sha256: Option<String>,
}

impl Expected {
    /// Returns whether the sha256 is known and the file at `path` has it.
    pub(super) fn is_met_by(&self, path: &Path) -> bool {
        let Some(sha256) = &self.sha256 else {
            return false;
        };
        let length_fits = || Some(fs::metadata(path).ok()?.len() == self.bytes?);
        if length_fits() == Some(false) {
            return false;
        }
        let hash = || -> io::Result<String> {
            let mut hasher = Sha256::new();
            hash_all(&mut files::open(path)?, &mut hasher)?;
            Ok(hexadecimal(hasher))
        };
        hash().is_ok_and(|hash| hash.eq_ignore_ascii_case(sha256))
    }
}

/// `NAME.part` next to its final name `NAME`: a plain file of this user that a later run can resume.
pub(super) struct Part {
    destination: PathBuf,
    path: PathBuf,
    file: File,
    hasher: Sha256,
    length: u64,
}

impl Part {
    /// Starts with an empty file; truncates an older part.
    pub(super) fn create(destination: &Path) -> Result<Self> {
        let mut part = Self::open(destination)?;
        part.restart()?;
        Ok(part)
    }

    /// Resumes an older part at its end.
    pub(super) fn resume(destination: &Path) -> Result<Self> {
        let mut part = Self::open(destination)?;
        let hashed = hash_all(&mut part.file, &mut part.hasher);
        part.length = hashed.map_err(|error| part.error("read", &error))?;
        Ok(part)
    }

    fn open(destination: &Path) -> Result<Self> {
        let mut name = destination.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let file = output::open_own(&path).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot write: {error}")).at(&path)
        })?;
        Ok(Self {
            destination: destination.into(),
            path,
            file,
            hasher: Sha256::new(),
            length: 0,
        })
    }

    fn error(&self, verb: &str, error: &io::Error) -> Error {
        Error::new(
            ErrorKind::Io,
            format!("cannot {verb} at byte {}: {error}", self.length),
        )
        .at(&self.path)
    }

    /// Returns the number of bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Discards all bytes.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.hasher = Sha256::new();
        self.length = 0;
        let emptied = self.file.rewind().and_then(|()| self.file.set_len(0));
        emptied.map_err(|error| self.error("write", &error))
    }

    /// Appends `bytes`.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|error| self.error("write", &error))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Renames the file if it meets `expected`; otherwise removes it.
    pub(super) fn finish(self, expected: &Expected) -> Result<()> {
        let refuse = |message: String| {
            let _ = fs::remove_file(&self.path);
            Err(Error::new(
                ErrorKind::Fetch,
                format!("{message}; what was fetched is removed"),
            )
            .at(&self.destination))
        };
        if let Some(bytes) = expected.bytes.filter(|bytes| *bytes != self.length) {
            return refuse(format!(
                "{} bytes were fetched, expected {bytes}",
                self.length
            ));
        }
        let hash = hexadecimal(self.hasher.clone());
        if let Some(sha256) = expected
            .sha256
            .as_ref()
            .filter(|sha256| !hash.eq_ignore_ascii_case(sha256))
        {
            return refuse(format!(
                "the sha256 of what was fetched is {hash}, expected {sha256}"
            ));
        }
        self.file
            .sync_all()
            .map_err(|error| self.error("write", &error))?;
        fs::rename(&self.path, &self.destination).map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("cannot rename {}: {error}", self.path.display()),
            )
            .at(&self.destination)
        })
    }
}

fn hash_all(file: &mut File, hasher: &mut Sha256) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut length = 0;
    loop {
        match file.read(&mut block)? {
            0 => return Ok(length),
            read => {
                hasher.update(&block[..read]);
                length += read as u64;
            }
        }
    }
}

fn hexadecimal(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sha256 of `abc`, from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn abc() -> Expected {
        Expected {
            bytes: Some(3),
            sha256: Some(ABC.to_uppercase()),
        }
    }

    #[test]
    fn a_resumed_part_has_the_hash_of_the_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("model.gguf");
        Part::create(&destination).unwrap().append(b"ab").unwrap();
        assert!(!destination.exists());
        let mut part = Part::resume(&destination).unwrap();
        assert_eq!(part.length(), 2);
        part.append(b"c").unwrap();
        part.finish(&abc()).unwrap();
        assert_eq!(fs::read(&destination).unwrap(), b"abc");
        assert!(abc().is_met_by(&destination));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_what_was_expected_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("model.gguf");
        for bytes in ["abd", "abcd", ""] {
            let mut part = Part::create(&destination).unwrap();
            part.append(bytes.as_bytes()).unwrap();
            let error = part.finish(&abc()).unwrap_err().to_string();
            assert!(
                error.contains("expected") && error.contains("is removed"),
                "{error}"
            );
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file_and_the_byte() {
        if !Path::new("/dev/full").exists() {
            return;
        }
        #[cfg(unix)]
        {
            let folder = tempfile::tempdir().unwrap();
            let destination = folder.path().join("model.gguf");
            let mut part = Part::open(&destination).unwrap();
            part.file = File::options().write(true).open("/dev/full").unwrap();
            let error = part.append(b"abc").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(
                error
                    .to_string()
                    .contains("model.gguf.part: cannot write at byte 0: No space left"),
                "{error}"
            );
            assert!(!destination.exists());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_a_part_is_replaced_and_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, destination) = (folder.path().join("mine"), folder.path().join("model.gguf"));
        for open in [Part::create, Part::resume] {
            fs::write(&mine, "mine").unwrap();
            std::os::unix::fs::symlink(&mine, folder.path().join("model.gguf.part")).unwrap();
            let mut part = open(&destination).unwrap();
            part.append(b"abc").unwrap();
            part.finish(&abc()).unwrap();
            assert_eq!(
                (fs::read(&mine).unwrap(), fs::read(&destination).unwrap()),
                (b"mine".into(), b"abc".into())
            );
            assert!(!destination.is_symlink());
        }
    }
}

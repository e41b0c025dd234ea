//! An unfinished file: written under another name, checked, and renamed only when it is complete.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::disk::kind_of;
use super::progress::hub_error;
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::output;

/// Bytes per read and write.
pub(super) const BLOCK: usize = 256 << 10;

/// The end of the name of an unfinished file.
pub(super) const PART: &str = ".part";

/// Returns the path of the unfinished file of `destination`.
pub(super) fn part_of(destination: &Path) -> PathBuf {
    let mut name = destination.as_os_str().to_owned();
    name.push(PART);
    PathBuf::from(name)
}

/// The known properties of a file before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Its length.
    pub(super) bytes: Option<u64>,
    /// Its hash.
    pub(super) hash: Option<Hash>,
}

/// The known hash of a file, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256(String),
    /// The sha1 of the file as git stores it: after its length.
    GitBlob(String),
}

impl Expected {
    /// Returns whether the hash is known and the file at `path` has it.
    pub(super) fn is_met_by(&self, path: &Path) -> bool {
        let (Some(hash), Ok(data)) = (&self.hash, fs::metadata(path)) else {
            return false;
        };
        if self.bytes.is_some_and(|bytes| bytes != data.len()) {
            return false;
        }
        let found = files::open(path).and_then(|mut file| match hash {
            Hash::Sha256(_) => {
                let mut hasher = Sha256::new();
                hash_all(&mut file, &mut hasher)?;
                Ok(hexadecimal(hasher))
            }
            Hash::GitBlob(_) => git_blob(&mut file, data.len()),
        });
        found.is_ok_and(|found| hash.is(&found))
    }

    /// Returns whether a download of the file can be continued: only a strong hash of the whole file shows that the
    /// first part and the rest belong together.
    pub(super) fn is_resumable(&self) -> bool {
        matches!(self.hash, Some(Hash::Sha256(_)))
    }
}

impl Hash {
    fn is(&self, found: &str) -> bool {
        let (Self::Sha256(hash) | Self::GitBlob(hash)) = self;
        hash.eq_ignore_ascii_case(found)
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
        let path = part_of(destination);
        let file = output::open_own(&path).map_err(|error| {
            Error::new(kind_of(&error), format!("cannot write: {error}")).at(&path)
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
            kind_of(error),
            format!("cannot {verb} at byte {}: {error}", self.length),
        )
        .at(&self.path)
    }

    /// Returns the number of bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
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
    pub(super) fn finish(mut self, expected: &Expected) -> Result<()> {
        let found = match &expected.hash {
            Some(Hash::GitBlob(_)) => {
                let rewound = self.file.rewind();
                let hashed = rewound.and_then(|()| git_blob(&mut self.file, self.length));
                hashed.map_err(|error| self.error("read", &error))?
            }
            _ => hexadecimal(self.hasher.clone()),
        };

        let refuse = |message: String| {
            let _ = fs::remove_file(&self.path);
            let message = format!("{message}; what was fetched is removed");
            Err(hub_error(message).at(&self.destination))
        };
        if let Some(bytes) = expected.bytes.filter(|bytes| *bytes != self.length) {
            return refuse(format!(
                "{} bytes were fetched, expected {bytes}",
                self.length
            ));
        }
        if let Some(hash) = expected.hash.as_ref().filter(|hash| !hash.is(&found)) {
            let (kind, hash) = match hash {
                Hash::Sha256(hash) => ("sha256", hash),
                Hash::GitBlob(hash) => ("git hash", hash),
            };
            return refuse(format!(
                "the {kind} of what was fetched is {found}, expected {hash}"
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

/// Returns git's hash of a file of `length` bytes.
fn git_blob(file: &mut File, length: u64) -> io::Result<String> {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {length}\0"));
    hash_all(file, &mut hasher)?;
    Ok(hexadecimal(hasher))
}

fn hash_all(file: &mut File, hasher: &mut impl Digest) -> io::Result<u64> {
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

fn hexadecimal(hasher: impl Digest) -> String {
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

    const GIT: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";

    fn abc() -> Expected {
        Expected {
            bytes: Some(3),
            hash: Some(Hash::Sha256(ABC.to_uppercase())),
        }
    }

    #[test]
    fn a_file_of_git_has_its_hash_or_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("config.json");
        let expected = Expected {
            bytes: Some(3),
            // From `printf abc | git hash-object --stdin`.
            hash: Some(Hash::GitBlob(GIT.into())),
        };
        let mut part = Part::create(&destination).unwrap();
        part.append(b"abd").unwrap();
        let error = part.finish(&expected).unwrap_err().to_string();
        assert!(error.contains(&format!("expected {GIT}")), "{error}");
        assert!(!destination.exists());
        let mut part = Part::create(&destination).unwrap();
        part.append(b"abc").unwrap();
        part.finish(&expected).unwrap();
        assert!(expected.is_met_by(&destination));
        fs::write(&destination, "abd").unwrap();
        assert!(!expected.is_met_by(&destination));
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
            part.append(b"a").unwrap();
            part.file = File::options().write(true).open("/dev/full").unwrap();
            let error = part.append(b"bc").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full);
            assert!(
                error
                    .to_string()
                    .contains("model.gguf.part: cannot write at byte 1: No space left"),
                "{error}"
            );
            assert!(!destination.exists());
            drop(part);
            // With room, the next one goes on.
            let mut part = Part::resume(&destination).unwrap();
            part.append(b"bc").unwrap();
            part.finish(&abc()).unwrap();
            assert_eq!(fs::read(&destination).unwrap(), b"abc");
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

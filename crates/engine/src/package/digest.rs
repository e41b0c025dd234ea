//! Hashes of files.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use triad_model::{Error, ErrorKind, Result, files};

/// Bytes per read.
const BLOCK: usize = 1 << 20;

/// Returns the sha256 of `bytes` in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(Sha256::new_with_prefix(bytes))
}

/// Length and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// The length.
    pub bytes: u64,
    /// The sha256 in hexadecimal.
    pub sha256: String,
}

impl FileDigest {
    /// Returns the digest of the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of_file(path: &Path) -> Result<Self> {
        Self::read(path, &mut |_| {})
    }

    /// Returns the digest of the file at `path`. Calls `progress` with the number of bytes of each block that was read.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, "cannot read the file")
                .caused_by(error)
                .at(path)
        };
        // The file is read and not mapped, so that its pages count for this process only while they are copied.
        let mut file = files::open(path).map_err(failed)?;
        let mut hasher = Sha256::new();
        let mut block = vec![0; BLOCK];
        let mut bytes = 0;
        loop {
            match file.read(&mut block).map_err(failed)? {
                0 => {
                    return Ok(Self {
                        bytes,
                        sha256: hexadecimal(hasher),
                    });
                }
                read => {
                    hasher.update(&block[..read]);
                    bytes += read as u64;
                    progress(read as u64);
                }
            }
        }
    }
}

/// Checks that the file at `path` has this hash.
pub(super) fn check(path: &Path, expected: &str) -> Result<()> {
    compare(path, &FileDigest::of_file(path)?.sha256, expected)
}

/// Checks that `found`, the hash of the file at `path`, is the `expected` one.
///
/// # Errors
/// If it is not: the file was altered.
pub fn compare(path: &Path, found: &str, expected: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let message = format!(
        "altered since the package was made: its sha256 is {found}, expected {expected:?}; prepare the model again"
    );
    Err(Error::new(ErrorKind::Malformed, message).at(path))
}

fn hexadecimal(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

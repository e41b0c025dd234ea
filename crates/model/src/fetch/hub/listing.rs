//! A hub's list of the files of a repository.

use serde::Deserialize;

use super::super::part::{Expected, Hash};
use super::super::progress::hub_error;
use crate::error::Result;

/// Maximum bytes of a response about a repository; thousands of files fit.
pub(super) const LARGEST_LISTING: u64 = 32 << 20;

/// The hub's description of a repository.
#[derive(Deserialize)]
pub(super) struct Listing {
    /// The commit that the list is of.
    pub(super) sha: Option<String>,
    pub(super) siblings: Vec<Sibling>,
}

/// One file of a repository, in the hub's own field names.
#[derive(Clone, Deserialize)]
pub(super) struct Sibling {
    #[serde(rename = "rfilename")]
    pub(super) name: String,
    pub(super) size: Option<u64>,
    /// The sha1 of what git stores under this name: the file itself, or the description of a large file.
    #[serde(rename = "blobId")]
    pub(super) blob: Option<String>,
    pub(super) lfs: Option<Lfs>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Lfs {
    pub(super) sha256: Option<String>,
    pub(super) size: Option<u64>,
}

impl Listing {
    /// Returns the revision from which all files are fetched: the commit of the list, or the main branch of a hub that
    /// names none.
    pub(super) fn revision(&self) -> Result<&str> {
        match self.sha.as_deref() {
            None => Ok("main"),
            Some(commit) if is_commit(commit) => Ok(commit),
            Some(other) => Err(hub_error(format!(
                "the hub's list of files has the `sha` {:?}, expected the hexadecimal digits of a commit",
                other.chars().take(80).collect::<String>()
            ))),
        }
    }
}

/// Returns whether `id` is the name of a commit: a sha1 or a sha256.
fn is_commit(id: &str) -> bool {
    [40, 64].contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Sibling {
    /// Returns what the list states of the file.
    pub(super) fn expected(&self) -> Expected {
        let lfs = self.lfs.as_ref();
        Expected {
            bytes: lfs.and_then(|lfs| lfs.size).or(self.size),
            hash: match lfs {
                Some(lfs) => lfs.sha256.clone().map(Hash::Sha256),
                // Another length is a hash of another kind, which is not checked.
                None => {
                    let blob = self.blob.clone().filter(|blob| blob.len() == 40);
                    blob.map(Hash::GitBlob)
                }
            },
        }
    }
}

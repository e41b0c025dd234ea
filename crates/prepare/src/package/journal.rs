//! The record of the weights that an unfinished preparation has written, from which the next one continues.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use triad_engine::package::sha256;
use triad_model::mapped::MappedFile;
use triad_model::safetensors::write::{Entry, Layout};
use triad_model::{output, seal};

/// The purpose of its [`seal`].
const PURPOSE: &str = "written weights";
/// The maximum size in bytes. A hundred thousand tensors take less.
const MAX_BYTES: u64 = 1 << 26;

/// The tensors that are written.
pub(super) struct Journal {
    path: PathBuf,
    content: Content,
}

#[derive(Serialize, Deserialize)]
struct Content {
    /// Identifies all that determines the weights.
    key: String,
    /// The number of complete blocks.
    blocks: usize,
    /// The sha256 of each tensor.
    tensors: BTreeMap<String, String>,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Sealed {
    content: Content,
    seal: String,
}

impl Content {
    fn seal(&self) -> String {
        let bytes = seal::seal(PURPOSE, &[json!(self).to_string().as_bytes()]);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Journal {
    /// Creates the record of no tensors.
    pub(super) fn new(path: &Path, key: String) -> Self {
        Self {
            path: path.into(),
            content: Content {
                key,
                blocks: 0,
                tensors: BTreeMap::new(),
            },
        }
    }

    /// Reads the record at `path`; returns `None` if there is none of this machine with this `key`.
    pub(super) fn read(path: &Path, key: &str) -> Option<Self> {
        let mut bytes = Vec::new();
        let file = output::open_own(path).ok()?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        let Sealed { content, seal } = serde_json::from_slice(&bytes).ok()?;
        let is_ours = content.key == key && content.seal() == seal;
        is_ours.then(|| Self {
            path: path.into(),
            content,
        })
    }

    /// Removes the record at `path` and the weights that it describes.
    pub(super) fn discard(path: &Path, weights: &Path) -> io::Result<()> {
        for path in [path, weights] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the weights for writing; returns `None` if they are not those of the record.
    pub(super) fn open(&self, weights: &Path, layout: &Layout, entries: &[Entry]) -> Option<File> {
        let file = output::open_own(weights).ok()?;
        let mapped = MappedFile::open(weights.to_owned()).ok()?;
        let bytes = mapped.bytes();
        let is_whole = bytes.len() == layout.file_length() && bytes.starts_with(&layout.header);
        let mut written = entries.iter().zip(&layout.places);
        let are_same = is_whole
            && written.all(|(entry, place)| {
                let expected = self.content.tensors.get(&entry.name);
                expected.is_none_or(|expected| sha256(&bytes[place.clone()]) == *expected)
            });
        are_same.then_some(file)
    }

    /// Returns whether a tensor is written.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.content.tensors.contains_key(tensor)
    }

    /// Returns the number of complete blocks.
    pub(super) fn blocks(&self) -> usize {
        self.content.blocks
    }

    /// Adds a tensor that is written.
    pub(super) fn add(&mut self, tensor: &str, bytes: &[u8]) {
        self.content
            .tensors
            .insert(tensor.to_owned(), sha256(bytes));
    }

    /// Saves the record, with this many complete blocks.
    pub(super) fn write(&mut self, blocks: usize) -> io::Result<()> {
        self.content.blocks = blocks;
        let sealed = json!({"content": self.content, "seal": self.content.seal()});
        output::write_own(&self.path, sealed.to_string().as_bytes())
    }
}

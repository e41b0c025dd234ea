//! Compiled graphs in a folder, so that a device compiles each once.
//!
//! A graph's name is a hash of all that it depends on; beside it lies the hash of what it should contain. A file that is
//! not what it should be is built again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Rises with every change of what is stored or of what a name depends on.
const FORMAT: &str = "2";

/// Where one compiled graph lies or will lie.
#[derive(Debug)]
pub(super) struct Entry {
    graph: PathBuf,
    hash: PathBuf,
}

impl Entry {
    /// Of what `parts` describe.
    pub fn new(folder: &Path, parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for part in [FORMAT.as_bytes()].iter().chain(parts) {
            // Lengths keep parts apart.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let name = hexadecimal(&digest.finalize());
        Self { graph: folder.join(format!("{name}.onnx")), hash: folder.join(format!("{name}.sha256")) }
    }

    /// The compiled graph, if it is there and as it was written.
    pub fn read(&self) -> Option<Vec<u8>> {
        let graph = fs::read(&self.graph).ok()?;
        let hash = fs::read_to_string(&self.hash).ok()?;
        (hexadecimal(&Sha256::digest(&graph)) == hash).then_some(graph)
    }

    /// Has `compile` write the graph to a file beside its place, and moves it there. Answers what `compile` does, and why
    /// the graph is not kept if it is not; where no file can be made, `compile` is given none.
    pub fn write<T>(&self, compile: impl FnOnce(Option<&Path>) -> Result<T>) -> Result<(T, Option<Error>)> {
        let folder = self.graph.parent().unwrap_or(Path::new("."));
        let failed = |reason: io::Error| Error::Cache { path: folder.to_owned(), reason };
        let beside = fs::create_dir_all(folder).and_then(|()| tempfile::tempdir_in(folder));
        let beside = match beside {
            Ok(beside) => beside,
            Err(reason) => return Ok((compile(None)?, Some(failed(reason)))),
        };
        let graph = beside.path().join("graph.onnx");
        let compiled = compile(Some(&graph))?;
        Ok((compiled, self.keep(folder, &graph).err().map(failed)))
    }

    /// Moves what was compiled to its place.
    fn keep(&self, folder: &Path, graph: &Path) -> io::Result<()> {
        let hash = hexadecimal(&Sha256::digest(fs::read(graph)?));
        let hash_file = NamedTempFile::new_in(folder)?;
        fs::write(&hash_file, hash)?;
        fs::rename(graph, &self.graph)?;
        hash_file.persist(&self.hash)?;
        Ok(())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

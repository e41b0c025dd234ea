//! Compiled graphs in a folder, so that a device compiles each once.
//!
//! A graph's name is a hash of all that it depends on; beside it is a file with the hash of what it should contain. A
//! file that is not what it should be is built again. The folder has a limit ([`evict`]): what was used longest ago
//! makes way.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Rises with every change of what is stored or of what a name depends on.
const FORMAT: &str = "2";

/// The path of one compiled graph, which may not be there yet.
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
        if hexadecimal(&Sha256::digest(&graph)) != hash {
            return None;
        }
        // Not every file system notes reads by itself. Where it can't be noted, the graph is compiled again some day.
        let used = FileTimes::new().set_accessed(SystemTime::now());
        let _ = File::open(&self.graph).and_then(|file| file.set_times(used));
        Some(graph)
    }

    /// Has `compile` write the graph to a file beside its place, and moves it there. Returns what `compile` returns, and why
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

/// Clocks of file systems are a few milliseconds late.
const LATE: Duration = Duration::from_secs(1);
/// Folders in which graphs are compiled are gone after that, unless their process was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes graphs of `folder`, those used longest ago first, until the others take at most `limit` bytes. What was used
/// since `start` stays whatever it takes: one run needs all of that at once.
pub(super) fn evict(folder: &Path, limit: u64, start: SystemTime) {
    let mut graphs = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        let age = metadata.modified().ok().and_then(|time| start.duration_since(time).ok());
        if metadata.is_dir() && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(path);
        } else if metadata.is_file() && path.extension().is_some_and(|extension| extension == "onnx") {
            // Where no access is known, the graph counts as old as it is.
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            graphs.push((metadata.accessed().unwrap_or(written).max(written), metadata.len(), path));
        }
    }
    graphs.sort();
    let mut bytes: u64 = graphs.iter().map(|(_, bytes, _)| bytes).sum();
    for (used, size, path) in graphs {
        if bytes <= limit || used + LATE >= start {
            break;
        }
        // Without its hash a graph is none, should its own removal fail.
        let removed = fs::remove_file(path.with_extension("sha256")).and_then(|()| fs::remove_file(&path));
        if removed.is_ok() {
            bytes -= size;
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A graph of ten bytes that was written a day ago and used `ago`.
    fn graph(folder: &Path, name: &str, ago: Duration) {
        fs::write(folder.join(format!("{name}.onnx")), [0; 10]).unwrap();
        fs::write(folder.join(format!("{name}.sha256")), "").unwrap();
        let times = FileTimes::new().set_modified(SystemTime::now() - 24 * HOUR).set_accessed(SystemTime::now() - ago);
        File::options().write(true).open(folder.join(format!("{name}.onnx"))).unwrap().set_times(times).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_used_longest_ago_makes_way_for_what_is_used_now() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let start = SystemTime::now() - HOUR / 2;
        for (name, ago) in [("a", 2 * HOUR), ("b", 4 * HOUR), ("c", 3 * HOUR), ("now", HOUR / 4)] {
            graph(folder, name, ago);
        }
        evict(folder, 40, start);
        assert_eq!(names(folder).len(), 8, "all of them are within the limit");
        evict(folder, 25, start);
        assert_eq!(names(folder), ["a.onnx", "a.sha256", "now.onnx", "now.sha256"]);
        evict(folder, 0, start);
        assert_eq!(names(folder), ["now.onnx", "now.sha256"], "what this run uses stays");
        evict(&folder.join("none"), 0, start);
    }

    #[test]
    fn a_graph_that_is_read_counts_as_used() {
        let folder = tempfile::tempdir().unwrap();
        let entry = Entry::new(folder.path(), &[b"graph"]);
        entry.write(|path| Ok(fs::write(path.unwrap(), "compiled").is_ok())).unwrap();
        let times = FileTimes::new().set_accessed(SystemTime::now() - HOUR).set_modified(SystemTime::now() - HOUR);
        File::options().write(true).open(&entry.graph).unwrap().set_times(times).unwrap();
        graph(folder.path(), "other", HOUR / 2);
        let written = fs::metadata(&entry.graph).unwrap().modified().unwrap();
        assert_eq!(entry.read().unwrap(), b"compiled");
        assert_eq!(fs::metadata(&entry.graph).unwrap().modified().unwrap(), written, "it was not written again");
        evict(folder.path(), 8, SystemTime::now() + HOUR);
        assert_eq!(entry.read().unwrap(), b"compiled");
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("abandoned")).unwrap();
        evict(folder.path(), 0, SystemTime::now());
        assert_eq!(names(folder.path()), ["abandoned"], "it may be another process that compiles");
        evict(folder.path(), 0, SystemTime::now() + 48 * HOUR);
        assert!(names(folder.path()).is_empty());
    }
}

//! A cache of compiled graphs in a folder, so that a device compiles each only once.
//!
//! A graph's file name is a hash of everything that it depends on, including the machine. Next to it is a file with
//! this machine's [`seal`] of name and content. Without the right seal, a graph is built again, so that graphs of other
//! machines or from other sources never run. The folder has a size limit ([`evict`]): the least recently used graphs
//! are removed.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use triad_model::{files, output, seal};

use crate::error::{Error, Result};

/// Format version. Increase it whenever the stored data or the inputs of a name change.
const FORMAT: &str = "4";
/// Purpose of the graphs' seals.
const PURPOSE: &str = "a compiled graph";
/// File extension of seals.
const SEAL: &str = "seal";
/// Most bytes of a file with a seal.
const MAX_SEAL: u64 = 1024;
/// File extension of the hashes that earlier versions stored instead of seals.
const OLD_HASH: &str = "sha256";

/// The path of one compiled graph, which may not exist yet.
#[derive(Debug)]
pub(super) struct Entry {
    name: String,
    graph: PathBuf,
    seal: PathBuf,
}

impl Entry {
    /// Creates the entry of the graph that `parts` describe.
    pub fn new(folder: &Path, parts: &[&[u8]]) -> Self {
        // Two machines that share a folder use different names.
        let mut digest = Sha256::new_with_prefix(seal::seal("names of compiled graphs", &[]));
        for part in [FORMAT.as_bytes()].iter().chain(parts) {
            // The lengths separate the parts.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let name = hexadecimal(&digest.finalize());
        let path = |extension| folder.join(format!("{name}.{extension}"));
        Self {
            graph: path("onnx"),
            seal: path(SEAL),
            name,
        }
    }

    /// Returns the compiled graph, if it exists and is unchanged.
    pub fn read(&self) -> Option<Vec<u8>> {
        // A named pipe in their place would hold the thread that reads it.
        let graph = files::read(&self.graph, u64::MAX - 1).ok()?;
        let found = files::read(&self.seal, MAX_SEAL).ok()?;
        if !seal::is_sealed(PURPOSE, &[self.name.as_bytes(), &graph], &found) {
            return None;
        }
        // Some file systems do not record reads. If the time can't be set, the graph is eventually compiled again.
        let used = FileTimes::new().set_accessed(SystemTime::now());
        let _ = File::open(&self.graph).and_then(|file| file.set_times(used));
        Some(graph)
    }

    /// Makes `compile` write the graph to a temporary file, and moves it into place. Returns the result of `compile`,
    /// and the reason why the graph is not kept, if so. If no file can be created, `compile` gets none.
    pub fn write<T>(
        &self,
        compile: impl FnOnce(Option<&Path>) -> Result<T>,
    ) -> Result<(T, Option<Error>)> {
        let folder = self.graph.parent().unwrap_or(Path::new("."));
        let failed = |reason: io::Error| Error::Cache {
            path: folder.to_owned(),
            reason,
        };
        let temporary = fs::create_dir_all(folder).and_then(|()| tempfile::tempdir_in(folder));
        let temporary = match temporary {
            Ok(temporary) => temporary,
            Err(reason) => return Ok((compile(None)?, Some(failed(reason)))),
        };
        let graph = temporary.path().join("graph.onnx");
        let compiled = compile(Some(&graph))?;
        Ok((compiled, self.keep(&graph).err().map(failed)))
    }

    /// Moves the compiled graph into place.
    fn keep(&self, graph: &Path) -> io::Result<()> {
        let seal = seal::seal(PURPOSE, &[self.name.as_bytes(), &fs::read(graph)?]);
        fs::rename(graph, &self.graph)?;
        output::write_own(&self.seal, &seal)
    }
}

/// Tolerance for file system clocks, which may be a few milliseconds late.
const LATE: Duration = Duration::from_secs(1);
/// Age after which a temporary compilation folder is removed. Only killed processes leave such folders.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes the least recently used graphs of `folder`, until the others take at most `limit` bytes. Graphs that were
/// used since `start` always stay: one run needs all of them.
pub(super) fn evict(folder: &Path, limit: u64, start: SystemTime) {
    let mut graphs = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else {
            continue;
        };
        let age = metadata
            .modified()
            .ok()
            .and_then(|time| start.duration_since(time).ok());
        if metadata.is_dir() && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(path);
        } else if metadata.is_file()
            && path
                .extension()
                .is_some_and(|extension| extension == "onnx")
        {
            // If no access time is known, the time of writing counts.
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            graphs.push((
                metadata.accessed().unwrap_or(written).max(written),
                metadata.len(),
                path,
            ));
        }
    }
    graphs.sort();
    let mut bytes: u64 = graphs.iter().map(|(_, bytes, _)| bytes).sum();
    for (used, size, path) in graphs {
        if bytes <= limit || used + LATE >= start {
            break;
        }
        // Removes the seal first. If removing the graph then fails, the graph is invalid.
        let _ = [SEAL, OLD_HASH].map(|extension| fs::remove_file(path.with_extension(extension)));
        if fs::remove_file(&path).is_ok() {
            bytes -= size;
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Creates a graph of ten bytes that was written a day ago and used `ago`.
    fn graph(folder: &Path, name: &str, ago: Duration) {
        fs::write(folder.join(format!("{name}.onnx")), [0; 10]).unwrap();
        fs::write(folder.join(format!("{name}.seal")), "").unwrap();
        let times = FileTimes::new()
            .set_modified(SystemTime::now() - 24 * HOUR)
            .set_accessed(SystemTime::now() - ago);
        File::options()
            .write(true)
            .open(folder.join(format!("{name}.onnx")))
            .unwrap()
            .set_times(times)
            .unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_used_longest_ago_makes_way_for_what_is_used_now() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let start = SystemTime::now() - HOUR / 2;
        for (name, ago) in [
            ("a", 2 * HOUR),
            ("b", 4 * HOUR),
            ("c", 3 * HOUR),
            ("now", HOUR / 4),
        ] {
            graph(folder, name, ago);
        }
        evict(folder, 40, start);
        assert_eq!(names(folder).len(), 8, "all of them are within the limit");
        evict(folder, 25, start);
        assert_eq!(names(folder), ["a.onnx", "a.seal", "now.onnx", "now.seal"]);
        evict(folder, 0, start);
        assert_eq!(
            names(folder),
            ["now.onnx", "now.seal"],
            "what this run uses stays"
        );
        evict(&folder.join("none"), 0, start);
    }

    #[test]
    fn a_graph_that_is_read_counts_as_used() {
        let folder = tempfile::tempdir().unwrap();
        let entry = Entry::new(folder.path(), &[b"graph"]);
        entry
            .write(|path| Ok(fs::write(path.unwrap(), "compiled").is_ok()))
            .unwrap();
        let times = FileTimes::new()
            .set_accessed(SystemTime::now() - HOUR)
            .set_modified(SystemTime::now() - HOUR);
        File::options()
            .write(true)
            .open(&entry.graph)
            .unwrap()
            .set_times(times)
            .unwrap();
        graph(folder.path(), "other", HOUR / 2);
        let written = fs::metadata(&entry.graph).unwrap().modified().unwrap();
        assert_eq!(entry.read().unwrap(), b"compiled");
        assert_eq!(
            fs::metadata(&entry.graph).unwrap().modified().unwrap(),
            written,
            "it was not written again"
        );
        evict(folder.path(), 8, SystemTime::now() + HOUR);
        assert_eq!(entry.read().unwrap(), b"compiled");
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    #[cfg(unix)]
    fn a_named_pipe_in_the_place_of_a_graph_or_of_its_seal_is_none_and_nothing_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let entry = Entry::new(folder.path(), &[b"one"]);
        for extension in ["onnx", SEAL] {
            entry
                .write(|path| Ok(fs::write(path.unwrap(), "compiled").is_ok()))
                .unwrap();
            assert!(entry.read().is_some());
            let path = entry.graph.with_extension(extension);
            fs::remove_file(&path).unwrap();
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
            assert_eq!(entry.read(), None);
        }
    }

    #[test]
    fn a_graph_that_this_machine_did_not_compile_under_its_name_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let entries = [b"one", b"two"].map(|graph| Entry::new(folder.path(), &[graph]));
        for (entry, content) in entries.iter().zip(["compiled one", "compiled two"]) {
            entry
                .write(|path| Ok(fs::write(path.unwrap(), content).is_ok()))
                .unwrap();
            assert_eq!(entry.read().unwrap(), content.as_bytes());
        }
        let seal = fs::read(&entries[0].seal).unwrap();
        for (graph, seal) in [
            // With a hash that anyone can compute, with no seal, and with the seal of another graph.
            (
                "planted",
                hexadecimal(&Sha256::digest("planted")).into_bytes(),
            ),
            ("planted", Sha256::digest("planted").to_vec()),
            ("planted", Vec::new()),
            ("planted", seal),
            ("compiled two", fs::read(&entries[1].seal).unwrap()),
        ] {
            fs::write(&entries[0].graph, graph).unwrap();
            fs::write(&entries[0].seal, seal).unwrap();
            fs::write(
                entries[0].graph.with_extension("sha256"),
                hexadecimal(&Sha256::digest(graph)),
            )
            .unwrap();
            assert_eq!(entries[0].read(), None, "{graph}");
        }
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("abandoned")).unwrap();
        evict(folder.path(), 0, SystemTime::now());
        assert_eq!(
            names(folder.path()),
            ["abandoned"],
            "it may be another process that compiles"
        );
        evict(folder.path(), 0, SystemTime::now() + 48 * HOUR);
        assert!(names(folder.path()).is_empty());
    }
}

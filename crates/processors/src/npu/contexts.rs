//! Graphs that are compiled ahead of time for a chip, usually on another machine than the one that runs them.
//!
//! A folder has the compiled graphs of one package, for one chip and one length of chunks. Its index, [`INDEX`], names
//! each by a hash of the graph with its weights. A device that is given such a folder compiles nothing: a graph that the
//! folder lacks, and a file that is not the one that was written, are errors. Each graph has to multiply correctly before
//! it is used (module `self_test`). That is no protection: a compiled graph is a program for the device.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use triad_model::{files, output};

use super::cache::hexadecimal;
use super::provider::Provider;
use super::self_test;
use crate::error::{Error, Result};
use crate::subgraph::DeviceSubgraph;

/// The index of a folder.
pub(super) const INDEX: &str = "contexts.json";
/// Version of the index, and of what a graph's name depends on.
const FORMAT: u32 = 1;
/// Most bytes of an index: a graph takes about 200.
const MAX_INDEX: u64 = 1 << 24;
/// Most rows of a graph.
const MAX_ROWS: usize = 1 << 20;

/// A chip with an NPU for which Qualcomm's provider compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    name: &'static str,
    /// Version of the NPU's instructions.
    architecture: u32,
    /// Number of the chip in Qualcomm's runtime.
    soc_model: u32,
}

impl Chip {
    /// The chips that have a name.
    pub const ALL: [Self; 4] = [
        Self::new("snapdragon-8gen2", 73, 43),
        Self::new("snapdragon-8gen3", 75, 57),
        Self::new("snapdragon-8elite", 79, 69),
        Self::new("snapdragon-8elite-gen5", 81, 87),
    ];

    const fn new(name: &'static str, architecture: u32, soc_model: u32) -> Self {
        Self {
            name,
            architecture,
            soc_model,
        }
    }

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the options of Qualcomm's provider that select it.
    pub(super) fn options(self) -> [(String, String); 2] {
        [
            ("htp_arch", self.architecture),
            ("soc_model", self.soc_model),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_string()))
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Chip {
    type Err = String;

    /// # Errors
    /// The names that were expected.
    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|chip| chip.name == name)
            .ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// How graphs that are compiled ahead of time are used.
#[derive(Clone, Debug)]
pub enum Contexts {
    /// They are compiled for `chip`. [`Npu::keep_contexts`](super::Npu::keep_contexts) gives the folder its name.
    Compile {
        /// The chip that will run them.
        chip: Chip,
        /// A folder that does not exist yet.
        folder: PathBuf,
    },
    /// They are run, and no others.
    Run {
        /// The folder that has them.
        folder: PathBuf,
    },
}

/// The graphs of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptContexts {
    /// Number of graphs.
    pub graphs: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// The content of [`INDEX`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    format: u32,
    chip: String,
    /// By name.
    graphs: BTreeMap<String, Graph>,
}

/// A compiled graph of a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    rows: usize,
    bytes: u64,
    sha256: String,
}

/// A folder in use.
#[derive(Debug)]
pub(super) enum Folder {
    Compiling(Compiling),
    Compiled(Compiled),
}

/// A folder whose graphs are being compiled.
#[derive(Debug)]
pub(super) struct Compiling {
    chip: Chip,
    folder: PathBuf,
    /// The folder until it is complete.
    temporary: TempDir,
    graphs: Mutex<BTreeMap<String, Graph>>,
}

/// A folder whose graphs are run.
#[derive(Debug)]
pub(super) struct Compiled {
    folder: PathBuf,
    index: Index,
}

impl Contexts {
    /// Adds the options that select the chip.
    ///
    /// # Errors
    /// If the provider has no chips, or the options select one.
    pub(super) fn complete(
        &self,
        provider: Provider,
        options: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let (Self::Compile { folder, .. } | Self::Run { folder }) = self;
        if provider != Provider::Qnn {
            let reason = format!(
                "graphs are compiled ahead of time for the provider {}: expected it, and not {provider}",
                Provider::Qnn
            );
            return Err(wrong(folder, reason));
        }
        let Self::Compile { chip, .. } = self else {
            return Ok(());
        };
        for (option, value) in chip.options() {
            if options.iter().any(|(other, _)| *other == option) {
                return Err(Error::ProviderOption {
                    provider: provider.to_string(),
                    option,
                    reason: format!("{chip} gives it"),
                });
            }
            options.push((option, value));
        }
        Ok(())
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// If it exists and should not, or has no valid index and should have one.
    pub(super) fn open(&self) -> Result<Folder> {
        match self {
            Self::Compile { chip, folder } => {
                Compiling::new(*chip, folder.clone()).map(Folder::Compiling)
            }
            Self::Run { folder } => Compiled::open(folder.clone()).map(Folder::Compiled),
        }
    }
}

impl Folder {
    /// Returns the rows for which a graph is prepared that is to run up to `rows`: the fewest that the folder has and that
    /// are enough, since inputs are padded.
    pub fn rows(&self, rows: usize) -> usize {
        let Self::Compiled(compiled) = self else {
            return rows;
        };
        let lengths = compiled.index.graphs.values().map(|graph| graph.rows);
        lengths
            .filter(|length| *length >= rows)
            .min()
            .unwrap_or(rows)
    }

    /// Returns the session of a graph of `rows` rows, which has the weights of `subgraph`. `build` builds a graph, and
    /// writes its compiled form to a file.
    ///
    /// # Errors
    /// If the provider refuses the graph, the folder lacks it, or the graph in the folder computes something else.
    pub fn session(
        &self,
        build: impl Fn(&[u8], Option<&Path>, GraphOptimizationLevel) -> Result<Session>,
        graph: &[u8],
        (subgraph, rows): (&DeviceSubgraph, usize),
    ) -> Result<Session> {
        match self {
            Self::Compiling(compiling) => compiling.compile(graph, rows, |path| {
                build(graph, path, GraphOptimizationLevel::All)
            }),
            Self::Compiled(compiled) => {
                let content = compiled.read(graph, rows)?;
                let mut session = build(&content, None, GraphOptimizationLevel::Disable)?;
                self_test::check(&mut session, subgraph, rows)
                    .map_err(|reason| compiled.disproved(graph, &reason))?;
                Ok(session)
            }
        }
    }
}

impl Compiling {
    fn new(chip: Chip, folder: PathBuf) -> Result<Self> {
        if folder.symlink_metadata().is_ok() {
            let reason = "it exists already: expected the name of a new folder for compiled graphs";
            return Err(wrong(&folder, reason));
        }
        let parent = folder.parent().filter(|path| path != &Path::new(""));
        let temporary = tempfile::tempdir_in(parent.unwrap_or(Path::new(".")));
        let temporary = temporary.map_err(|error| wrong(&folder, error))?;
        Ok(Self {
            chip,
            folder,
            temporary,
            graphs: Mutex::default(),
        })
    }

    /// Makes `compile` write the compiled form of a graph of `rows` rows to a file of the folder. If the folder has the
    /// graph already, `compile` gets no file.
    pub fn compile<T>(
        &self,
        graph: &[u8],
        rows: usize,
        compile: impl FnOnce(Option<&Path>) -> Result<T>,
    ) -> Result<T> {
        let name = name(graph);
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        if graphs.contains_key(&name) {
            return compile(None);
        }
        let path = file(self.temporary.path(), &name);
        let compiled = compile(Some(&path))?;
        let content = files::read(&path, u64::MAX - 1);
        let content = content.map_err(|error| wrong(&self.folder, error))?;
        let graph = Graph {
            rows,
            bytes: content.len() as u64,
            sha256: sha256(&content),
        };
        graphs.insert(name, graph);
        Ok(compiled)
    }

    /// Writes the index, and gives the folder its name.
    pub fn finish(&self) -> Result<KeptContexts> {
        let graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let index = Index {
            format: FORMAT,
            chip: self.chip.name.to_owned(),
            graphs: graphs.clone(),
        };
        let failed = |error: std::io::Error| wrong(&self.folder, error);
        let text = serde_json::to_vec_pretty(&index).map_err(|error| failed(error.into()))?;
        let temporary = self.temporary.path();
        output::write_own(&temporary.join(INDEX), &text).map_err(failed)?;
        fs::rename(temporary, &self.folder).map_err(failed)?;
        Ok(KeptContexts {
            graphs: graphs.len(),
            bytes: graphs.values().map(|graph| graph.bytes).sum(),
        })
    }
}

impl Compiled {
    fn open(folder: PathBuf) -> Result<Self> {
        let path = folder.join(INDEX);
        let text = files::read_text(&path, MAX_INDEX).map_err(|error| {
            let expected = "expected in a folder that `triad prepare --for` compiled";
            wrong(&path, format!("{error}: {expected}"))
        })?;
        let index: Index = serde_json::from_str(&text).map_err(|error| wrong(&path, error))?;
        if index.format != FORMAT {
            let reason = format!("format {}, expected {FORMAT}", index.format);
            return Err(wrong(&path, reason));
        }
        if let Err(expected) = index.chip.parse::<Chip>() {
            return Err(wrong(&path, format!("chip {:?}: {expected}", index.chip)));
        }
        let mut graphs = index.graphs.iter();
        if let Some((name, graph)) = graphs.find(|(_, graph)| !(1..=MAX_ROWS).contains(&graph.rows))
        {
            let reason = format!(
                "graph {name} has {} rows, expected 1 to {MAX_ROWS}",
                graph.rows
            );
            return Err(wrong(&path, reason));
        }
        Ok(Self { folder, index })
    }

    /// Returns the compiled form of a graph of `rows` rows.
    pub fn read(&self, graph: &[u8], rows: usize) -> Result<Vec<u8>> {
        let name = name(graph);
        let Some(graph) = self.index.graphs.get(&name) else {
            let mut lengths: Vec<_> = self.index.graphs.values().map(|graph| graph.rows).collect();
            lengths.sort_unstable();
            lengths.dedup();
            let reason = format!(
                "no graph of these weights for chunks of {rows} tokens (it has {} graphs, for chunks of {}): expected the \
                 folder that `triad prepare --for` compiled from this package, with chunks as long",
                self.index.graphs.len(),
                lengths
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
            );
            return Err(wrong(&self.folder, reason));
        };
        let path = file(&self.folder, &name);
        let content = files::read(&path, graph.bytes).map_err(|error| wrong(&path, error))?;
        if content.len() as u64 != graph.bytes || sha256(&content) != graph.sha256 {
            return Err(wrong(&path, format!("not the file that {INDEX} lists")));
        }
        Ok(content)
    }

    /// Returns the error of a graph that computes something else.
    pub fn disproved(&self, graph: &[u8], reason: &str) -> Error {
        let path = file(&self.folder, &name(graph));
        wrong(&path, format!("it does not compute this package: {reason}"))
    }
}

/// Returns the name of a graph: a hash of its content, which has the weights.
fn name(graph: &[u8]) -> String {
    let format = FORMAT.to_le_bytes();
    hexadecimal(
        &Sha256::new_with_prefix(format)
            .chain_update(graph)
            .finalize(),
    )
}

/// Returns the path of the compiled form of a graph.
fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.onnx"))
}

fn sha256(content: &[u8]) -> String {
    hexadecimal(&Sha256::digest(content))
}

fn wrong(path: &Path, reason: impl fmt::Display) -> Error {
    Error::Contexts {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHIP: Chip = Chip::ALL[1];

    /// Compiles two graphs to a folder.
    fn compiled(folder: &Path) -> KeptContexts {
        let compiling = Compiling::new(CHIP, folder.to_owned()).unwrap();
        for graph in [b"one", b"two"] {
            let write = |path: Option<&Path>| {
                fs::write(path.unwrap(), [&b"compiled "[..], graph].concat()).unwrap();
                Ok(())
            };
            compiling.compile(graph, 64, write).unwrap();
        }
        assert!(!folder.exists(), "it is not complete");
        compiling.finish().unwrap()
    }

    fn reason<T: fmt::Debug>(result: Result<T>) -> String {
        match result.unwrap_err() {
            Error::Contexts { reason, .. } => reason,
            error => panic!("{error:?}"),
        }
    }

    #[test]
    fn a_graph_is_found_by_its_content_and_a_missing_one_is_an_error_with_the_lengths_that_exist() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        assert_eq!(
            compiled(&folder),
            KeptContexts {
                graphs: 2,
                bytes: 24
            }
        );
        assert_eq!(
            fs::read_dir(place.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        let found = Compiled::open(folder.clone()).unwrap();
        assert_eq!(found.read(b"one", 64).unwrap(), b"compiled one");
        assert_eq!(found.read(b"two", 64).unwrap(), b"compiled two");
        let missing = reason(found.read(b"three", 32));
        assert!(
            missing.contains("for chunks of 32 tokens (it has 2 graphs, for chunks of 64)"),
            "{missing}"
        );
        let again = Compiling::new(CHIP, folder);
        assert!(reason(again).starts_with("it exists already"));
    }

    #[test]
    fn a_file_that_the_index_does_not_list_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        compiled(&folder);
        let path = file(&folder, &name(b"one"));
        let open = || Compiled::open(folder.clone()).unwrap();
        for content in ["compiled two", "compiled", "compiled one and more", ""] {
            fs::write(&path, content).unwrap();
            reason(open().read(b"one", 64));
        }
        fs::remove_file(&path).unwrap();
        reason(open().read(b"one", 64));
    }

    #[test]
    fn an_index_that_is_not_of_this_version_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        assert!(Compiled::open(folder.clone()).is_err());
        compiled(&folder);
        let path = folder.join(INDEX);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to, expected) in [
            ("\"format\": 1", "\"format\": 2", "format 2, expected 1"),
            (
                "snapdragon-8gen3",
                "snapdragon-8gen9",
                "chip \"snapdragon-8gen9\": expected one of snapdragon-8gen2",
            ),
            ("\"rows\"", "\"lines\"", "unknown field `lines`"),
            (
                "\"rows\": 64",
                "\"rows\": 0",
                "has 0 rows, expected 1 to 1048576",
            ),
            ("{", "", "expected value"),
        ] {
            assert!(text.contains(from));
            fs::write(&path, text.replacen(from, to, 1)).unwrap();
            let error = Compiled::open(folder.clone())
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
            assert!(error.contains(expected) || from == "{", "{error}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_folder_that_was_not_finished() {
        let place = tempfile::tempdir().unwrap();
        let compiling = Compiling::new(CHIP, place.path().join("contexts")).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        drop(compiling);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn chips_are_found_by_their_names() {
        for chip in Chip::ALL {
            assert_eq!(chip.name().parse(), Ok(chip));
        }
        let error = "snapdragon".parse::<Chip>().unwrap_err();
        assert!(
            error.starts_with("expected one of snapdragon-8gen2, "),
            "{error}"
        );
    }
}

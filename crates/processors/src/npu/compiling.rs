//! Compiles graphs ahead of time to a folder.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use triad_model::{files, output};

use super::cache::hexadecimal;
use super::chip::Chip;
use super::compiled::Compiled;
use super::index::{Context, FORMAT, Graph, INDEX, Index, file, name, sha256, wrong};
use super::joined;
use super::provider::Provider;
use crate::error::{Error, Result};
use crate::subgraph::DeviceSubgraph;

/// Bytes of a hash that make a context's tag.
const TAG_BYTES: usize = 8;
/// Most bytes of a compiled model.
const MAX_CONTEXT: u64 = 1 << 32;

/// The graphs of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptContexts {
    /// Number of graphs.
    pub graphs: usize,
    /// Number of contexts that have them.
    pub contexts: usize,
    /// Bytes of all contexts.
    pub bytes: u64,
}

/// A folder whose graphs are to be compiled.
#[derive(Debug)]
pub(super) struct Compiling {
    chip: Chip,
    folder: PathBuf,
    /// Most bytes of the weights of a context.
    context_bytes: usize,
    /// The folder until it is complete.
    temporary: TempDir,
    graphs: Mutex<Vec<Pending>>,
}

/// A graph that is to be compiled.
struct Pending {
    name: String,
    subgraph: DeviceSubgraph,
    rows: usize,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("name", &self.name)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl Compiling {
    /// Begins a new folder.
    ///
    /// # Errors
    /// If it exists, or its parent can't be written.
    pub fn new(chip: Chip, folder: PathBuf, context_bytes: usize) -> Result<Self> {
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
            context_bytes,
            temporary,
            graphs: Mutex::default(),
        })
    }

    /// Adds the graph of a subgraph for a number of rows, unless the folder has it already.
    pub fn add(&self, graph: &[u8], subgraph: &DeviceSubgraph, rows: usize) {
        let name = name(graph);
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        if graphs.iter().all(|other| other.name != name) {
            graphs.push(Pending {
                name,
                subgraph: subgraph.clone(),
                rows,
            });
        }
    }

    /// Compiles the graphs, writes contexts and index, and gives the folder its name. `compile` compiles a model to a file,
    /// and `prove` checks each graph of the folder before it has the name.
    ///
    /// # Errors
    /// If a graph is refused or disproved, or the folder can't be written.
    pub fn finish(
        &self,
        compile: impl Fn(&[u8], &Path) -> Result<()>,
        prove: impl Fn(&Compiled, &DeviceSubgraph, usize) -> Result<()>,
    ) -> Result<KeptContexts> {
        let graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut index = Index {
            format: FORMAT,
            chip: self.chip.name().to_owned(),
            contexts: Vec::new(),
            graphs: BTreeMap::new(),
        };
        for graphs in by_bytes(&graphs, self.context_bytes) {
            self.compile(&compile, graphs, &mut index)?;
        }
        let failed = |error: std::io::Error| wrong(&self.folder, error);
        let text = serde_json::to_vec_pretty(&index).map_err(|error| failed(error.into()))?;
        let temporary = self.temporary.path();
        output::write_own(&temporary.join(INDEX), &text).map_err(failed)?;
        let compiled = Compiled::open(temporary.to_owned())?;
        for graph in &*graphs {
            prove(&compiled, &graph.subgraph, graph.rows)?;
        }
        fs::rename(temporary, &self.folder).map_err(failed)?;
        Ok(KeptContexts {
            graphs: index.graphs.len(),
            contexts: index.contexts.len(),
            bytes: index.contexts.iter().map(|context| context.bytes).sum(),
        })
    }

    /// Compiles graphs to one context, and adds them to the index.
    fn compile(
        &self,
        compile: impl Fn(&[u8], &Path) -> Result<()>,
        graphs: &[Pending],
        index: &mut Index,
    ) -> Result<()> {
        let anchor = joined::anchor();
        let of_graphs = graphs.iter().map(|graph| (&graph.subgraph, graph.rows));
        let all = iter::once((&anchor, 1)).chain(of_graphs);
        let path = self.temporary.path().join("context.onnx");
        let names = graphs.iter().map(|graph| graph.name.as_bytes());
        let tag = names.fold(Sha256::new(), Sha256::chain_update).finalize();
        let tag = hexadecimal(&tag[..TAG_BYTES]);
        compile(&joined::join(&tag, all.clone())?, &path)?;
        let model = files::read(&path, MAX_CONTEXT);
        let model = model.map_err(|error| wrong(&self.folder, error))?;
        fs::remove_file(&path).map_err(|error| wrong(&path, error))?;
        let outputs: Vec<_> = all.map(|(subgraph, _)| subgraph.outputs().len()).collect();
        let (content, names) =
            joined::split(&model, &tag, &outputs).map_err(|reason| Error::PartlyTaken {
                provider: Provider::Qnn.to_string(),
                taken: reason,
            })?;
        let context = index.contexts.len();
        let path = file(self.temporary.path(), context);
        output::write_own(&path, &content).map_err(|error| wrong(&path, error))?;
        let mut names = names.into_iter();
        index.contexts.push(Context {
            bytes: content.len() as u64,
            sha256: sha256(&content),
            tag,
            anchor: names.next().unwrap_or_default(),
        });
        for (number, (graph, name)) in graphs.iter().zip(names).enumerate() {
            let Pending { subgraph, rows, .. } = graph;
            let graph = (
                graph.name.clone(),
                Graph {
                    context,
                    number: number + 1,
                    name,
                    rows: *rows,
                    in_features: subgraph.in_features(),
                    outputs: subgraph.outputs(),
                },
            );
            index.graphs.extend([graph]);
        }
        Ok(())
    }
}

/// Divides graphs, in their order, so that the weights of each part have at most so many bytes, if they can.
fn by_bytes(graphs: &[Pending], most: usize) -> Vec<&[Pending]> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0usize);
    for (index, graph) in graphs.iter().enumerate() {
        let more = graph.subgraph.bytes(0);
        if index > start && bytes.saturating_add(more) > most {
            parts.push(&graphs[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    parts.extend((start < graphs.len()).then(|| &graphs[start..]));
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ort::session::Session;

    use super::*;

    const CHIP: Chip = Chip::ALL[1];

    /// Compiles two graphs to a folder, in contexts of so many bytes.
    fn compile(folder: &Path, context_bytes: usize) -> KeptContexts {
        let compiling = Compiling::new(CHIP, folder.to_owned(), context_bytes).unwrap();
        for graph in [b"one", b"two", b"one"] {
            compiling.add(graph, &joined::anchor(), 64);
        }
        let write = |model: &[u8], path: &Path| {
            fs::write(path, joined::tests::compiled(model)).unwrap();
            Ok(())
        };
        let proved = AtomicUsize::new(0);
        let prove = |compiled: &Compiled, _: &DeviceSubgraph, rows: usize| {
            assert!(!folder.exists(), "it is not complete");
            proved.fetch_add(1, Ordering::Relaxed);
            assert_eq!(compiled.rows(rows - 1), rows);
            Ok(())
        };
        let kept = compiling.finish(write, prove).unwrap();
        assert_eq!(proved.into_inner(), kept.graphs);
        kept
    }

    fn open(folder: &Path) -> Compiled {
        Compiled::open(folder.to_owned()).unwrap()
    }

    fn reason<T>(result: Result<T>) -> String {
        match result.map(|_| ()).unwrap_err() {
            Error::Contexts { reason, .. } => reason,
            error => panic!("{error:?}"),
        }
    }

    /// Builds no session.
    fn refuse(_: &[u8]) -> Result<Session> {
        Err(Error::PartlyTaken {
            provider: "qnn".to_owned(),
            taken: "nothing".to_owned(),
        })
    }

    #[test]
    fn a_graph_is_found_by_its_content_and_a_missing_one_is_an_error_with_the_lengths_that_exist() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        let kept = KeptContexts {
            graphs: 2,
            contexts: 1,
            bytes: 7,
        };
        assert_eq!(compile(&folder, usize::MAX), kept);
        assert_eq!(
            fs::read_dir(place.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        let found = open(&folder);
        let number = |graph: &[u8]| found.graph(&name(graph), 64).unwrap().number;
        assert_eq!((number(b"one"), number(b"two")), (1, 2));
        let missing = reason(found.graph(&name(b"three"), 32));
        assert!(
            missing.contains("for chunks of 32 tokens (it has 2 graphs, for chunks of 64)"),
            "{missing}"
        );
        let again = Compiling::new(CHIP, folder, usize::MAX);
        assert!(reason(again).starts_with("it exists already"));
    }

    #[test]
    fn graphs_that_are_too_many_for_a_context_have_several() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        assert_eq!(compile(&folder, 1).contexts, 2);
        let found = open(&folder);
        for (context, graph) in [b"one", b"two"].into_iter().enumerate() {
            let graph = found.graph(&name(graph), 64).unwrap();
            assert_eq!((graph.context, graph.number), (context, 1));
        }
    }

    #[test]
    fn a_context_that_the_index_does_not_list_is_not_loaded() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        compile(&folder, usize::MAX);
        let path = file(&folder, 0);
        assert!(matches!(
            open(&folder).load(0, refuse),
            Err(Error::PartlyTaken { .. })
        ));
        for content in ["kontext", "context and more", "con", ""] {
            fs::write(&path, content).unwrap();
            reason(open(&folder).load(0, refuse));
        }
        fs::remove_file(&path).unwrap();
        reason(open(&folder).load(0, refuse));
    }

    #[test]
    fn an_index_that_is_not_of_this_version_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        assert!(Compiled::open(folder.clone()).is_err());
        compile(&folder, usize::MAX);
        let path = folder.join(INDEX);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to, expected) in [
            ("\"format\": 2", "\"format\": 1", "format 1, expected 2"),
            (
                "snapdragon-8gen3",
                "snapdragon-8gen9",
                "chip \"snapdragon-8gen9\": expected one of snapdragon-8gen2",
            ),
            ("\"rows\"", "\"lines\"", "unknown field `lines`"),
            (
                "\"rows\": 64",
                "\"rows\": 0",
                "has 0 rows or features, expected 1 to 1048576",
            ),
            ("\"context\": 0", "\"context\": 1", "is in context 1 of 1"),
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
    fn a_graph_that_is_disproved_leaves_no_folder_and_nor_do_those_that_were_not_compiled() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("contexts");
        let compiling = Compiling::new(CHIP, folder.clone(), usize::MAX).unwrap();
        compiling.add(b"one", &joined::anchor(), 64);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        let write = |model: &[u8], path: &Path| {
            fs::write(path, joined::tests::compiled(model)).unwrap();
            Ok(())
        };
        let disprove = |_: &Compiled, _: &DeviceSubgraph, _| refuse(&[]).map(drop);
        assert!(compiling.finish(write, disprove).is_err());
        // The provider has compiled nothing.
        let as_it_is = |model: &[u8], path: &Path| {
            fs::write(path, model).unwrap();
            Ok(())
        };
        let error = compiling.finish(as_it_is, |_, _, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains(" was not compiled"), "{error}");
        drop(compiling);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

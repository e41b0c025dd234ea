//! Loads graphs that were compiled ahead of time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ort::session::Session;
use triad_model::files;

use super::index::{Context, Graph, INDEX, Index, file, name, sha256, wrong};
use super::joined::{self, Part};
use super::library;
use super::program;
use super::self_test;
use crate::error::{Error, Result};
use crate::subgraph::DeviceSubgraph;

/// A folder whose graphs are run.
#[derive(Debug)]
pub(super) struct Compiled {
    folder: PathBuf,
    index: Index,
    loaded: Mutex<Vec<Loaded>>,
}

/// A context that is loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Sessions of graphs that no program has taken yet, by name.
    sessions: BTreeMap<String, Session>,
    /// Keeps the context: it ends with this session.
    anchor: Arc<Session>,
}

impl Compiled {
    /// Opens a folder.
    ///
    /// # Errors
    /// If it has no valid index.
    pub fn open(folder: PathBuf) -> Result<Self> {
        Ok(Self {
            index: Index::read(&folder)?,
            folder,
            loaded: Mutex::default(),
        })
    }

    /// Returns the rows for which a graph is prepared that is to run up to `rows`: the fewest that the folder has and that
    /// are enough, since inputs are padded.
    pub fn rows(&self, rows: usize) -> usize {
        let lengths = self.index.graphs.values().map(|graph| graph.rows);
        lengths
            .filter(|length| *length >= rows)
            .min()
            .unwrap_or(rows)
    }

    /// Returns the session of a graph for `rows` rows, which has the weights of `subgraph`. `build` builds the session of a
    /// model. The graphs of a context are loaded together, once for each time that all of their sessions were taken.
    ///
    /// # Errors
    /// If the folder lacks the graph, its context is not the one that was written, or the provider refuses it; if the graph
    /// computes something else.
    pub fn session(
        &self,
        graph: &[u8],
        (subgraph, rows): (&DeviceSubgraph, usize),
        build: impl Fn(&[u8]) -> Result<Session>,
    ) -> Result<program::Graph> {
        let name = name(graph);
        let graph = self.graph(&name, rows)?;
        if graph.in_features != subgraph.in_features() || graph.outputs != subgraph.outputs() {
            return Err(self.disproved(graph, "it has other shapes"));
        }
        let prefix = joined::prefix(&self.index.contexts[graph.context].tag, graph.number);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |loaded: &mut Loaded| {
            let session = loaded.sessions.remove(&name)?;
            Some((session, Arc::clone(&loaded.anchor)))
        };
        let taken = match loaded.iter_mut().find_map(take) {
            Some(taken) => Some(taken),
            None => {
                // A context whose sessions are all taken is kept by its programs.
                loaded.retain(|loaded| !loaded.sessions.is_empty());
                loaded.push(self.load(graph.context, build)?);
                loaded.last_mut().and_then(take)
            }
        };
        drop(loaded);
        let (mut session, anchor) =
            taken.ok_or_else(|| self.disproved(graph, "its context has it no more"))?;
        self_test::check(&mut session, subgraph, (rows, &prefix))
            .map_err(|reason| self.disproved(graph, &reason))?;
        Ok(program::Graph {
            session,
            context: Some(anchor),
            prefix,
        })
    }

    /// Loads a context, with a session for each of its graphs.
    pub fn load(&self, context: usize, build: impl Fn(&[u8]) -> Result<Session>) -> Result<Loaded> {
        let Context {
            bytes,
            sha256: expected,
            tag,
            anchor,
        } = &self.index.contexts[context];
        let path = file(&self.folder, context);
        let content = files::read(&path, *bytes).map_err(|error| wrong(&path, error))?;
        if content.len() as u64 != *bytes || sha256(&content) != *expected {
            return Err(wrong(&path, format!("not the file that {INDEX} lists")));
        }
        let anchor = Part {
            prefix: joined::prefix(tag, 0),
            name: anchor.clone(),
            rows: 1,
            in_features: 1,
            outputs: vec![1],
        };
        let graphs = self.index.graphs.iter();
        let graphs = graphs.filter(|(_, graph)| graph.context == context);
        library::build_alone(|| {
            let anchor = Arc::new(build(&anchor.model(Some(content)))?);
            // The provider keeps graphs that no session has taken, although their context may end: all are taken, even
            // after an error.
            let sessions: Vec<_> = graphs
                .map(|(name, graph)| Ok((name.clone(), build(&graph.part(tag).model(None))?)))
                .collect();
            Ok(Loaded {
                sessions: sessions.into_iter().collect::<Result<_>>()?,
                anchor,
            })
        })
    }

    /// Returns the graph with this name.
    pub fn graph(&self, name: &str, rows: usize) -> Result<&Graph> {
        self.index.graphs.get(name).ok_or_else(|| {
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
            wrong(&self.folder, reason)
        })
    }

    /// Returns the error of a graph that computes something else.
    fn disproved(&self, graph: &Graph, reason: &str) -> Error {
        let path = file(&self.folder, graph.context);
        let name = &graph.name;
        wrong(
            &path,
            format!("graph {name} does not compute this package: {reason}"),
        )
    }
}

//! The index of a folder of graphs that are compiled ahead of time, and the files that it lists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use triad_model::files;

use super::cache::hexadecimal;
use super::chip::Chip;
use super::joined::{self, Part};
use crate::error::{Error, Result};

/// The index of a folder.
pub(super) const INDEX: &str = "contexts.json";
/// Version of the index, and of what a graph's name depends on.
pub(super) const FORMAT: u32 = 2;
/// Most bytes of an index: a graph takes about 300.
const MAX_INDEX: u64 = 1 << 24;
/// Most rows or features of a graph.
const MAX_SIZE: usize = 1 << 20;

/// The part of an index that all versions have.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// The content of [`INDEX`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    pub format: u32,
    pub chip: String,
    pub contexts: Vec<Context>,
    /// By name.
    pub graphs: BTreeMap<String, Graph>,
}

/// A compiled context of a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Context {
    pub bytes: u64,
    pub sha256: String,
    /// The beginning of the names of its tensors.
    pub tag: String,
    /// The provider's name of the graph that keeps the context.
    pub anchor: String,
}

/// A graph of a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Graph {
    /// Index of its context.
    pub context: usize,
    /// Its place in the context. 0 is the anchor.
    pub number: usize,
    /// The provider's name of it.
    pub name: String,
    pub rows: usize,
    pub in_features: usize,
    /// Features of each output.
    pub outputs: Vec<usize>,
}

impl Index {
    /// Reads the index of a folder.
    ///
    /// # Errors
    /// If there is none, or it is not of this version.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let text = files::read_text(&path, MAX_INDEX).map_err(|error| {
            let expected = "expected in a folder that `triad prepare --for` compiled";
            wrong(&path, format!("{error}: {expected}"))
        })?;
        let version: Version = serde_json::from_str(&text).map_err(|error| wrong(&path, error))?;
        if version.format != FORMAT {
            let reason = format!("format {}, expected {FORMAT}", version.format);
            return Err(wrong(&path, reason));
        }
        let index: Self = serde_json::from_str(&text).map_err(|error| wrong(&path, error))?;
        if let Err(expected) = index.chip.parse::<Chip>() {
            return Err(wrong(&path, format!("chip {:?}: {expected}", index.chip)));
        }
        for (name, graph) in &index.graphs {
            let sizes = [graph.rows, graph.in_features];
            let mut sizes = sizes.iter().chain(&graph.outputs);
            let reason = if let Some(size) = sizes.find(|size| !(1..=MAX_SIZE).contains(*size)) {
                format!("has {size} rows or features, expected 1 to {MAX_SIZE}")
            } else if graph.outputs.is_empty() {
                "has no output".to_owned()
            } else if graph.context >= index.contexts.len() {
                let contexts = index.contexts.len();
                format!("is in context {} of {contexts}", graph.context)
            } else {
                continue;
            };
            return Err(wrong(&path, format!("graph {name} {reason}")));
        }
        Ok(index)
    }
}

impl Graph {
    /// Returns it as a part of the context with this tag.
    pub fn part(&self, tag: &str) -> Part {
        Part {
            prefix: joined::prefix(tag, self.number),
            name: self.name.clone(),
            rows: self.rows,
            in_features: self.in_features,
            outputs: self.outputs.clone(),
        }
    }
}

/// Returns the name of a graph: a hash of its content, which has the weights.
pub(super) fn name(graph: &[u8]) -> String {
    let format = FORMAT.to_le_bytes();
    hexadecimal(
        &Sha256::new_with_prefix(format)
            .chain_update(graph)
            .finalize(),
    )
}

/// Returns the path of a context.
pub(super) fn file(folder: &Path, context: usize) -> PathBuf {
    folder.join(format!("context{context}.bin"))
}

/// Returns the hash of a context.
pub(super) fn sha256(content: &[u8]) -> String {
    hexadecimal(&Sha256::digest(content))
}

/// Returns the error of a folder, or of a file in it.
pub(super) fn wrong(path: &Path, reason: impl fmt::Display) -> Error {
    Error::Contexts {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

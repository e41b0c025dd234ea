//! Models that a server offers, as they are described before they are loaded.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use triad_engine::{Adapter, Engine};

/// The reason why a model could not be loaded.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A model in memory.
pub struct LoadedModel {
    /// The engine that runs the model.
    pub engine: Engine,
    /// The LoRA adapters that were opened for the model, each with the unique name that requests use.
    pub adapters: Vec<(String, Arc<Adapter>)>,
    /// Returns whether the model is that of its files now. Once they are replaced, the next request loads the new ones.
    pub is_current: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("LoadedModel")
            .field("engine", &self.engine)
            .field("adapters", &self.adapters)
            .finish_non_exhaustive()
    }
}

/// A model to serve.
pub struct HostedModel {
    /// The name that clients use, and that responses have.
    pub name: String,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// The memory of the loaded model in bytes: weights, KV cache and activations.
    pub bytes: u64,
    /// Facts that lists of models show.
    pub facts: ModelFacts,
    /// Checks that the model's files may be loaded now. The error is a sentence for clients, without names of files.
    pub check: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Loads the model.
    pub load: Box<dyn Fn() -> Result<LoadedModel, LoadError> + Send + Sync>,
}

/// Facts about a model that are known before it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The model family, such as `llama` or `qwen2`.
    pub family: String,
    /// The format of the file: `gguf`, `safetensors` or `triad`.
    pub format: String,
    /// The number format of the weights. Empty if it is unknown.
    pub quantization: String,
    /// The number of parameters.
    pub parameters: u64,
    /// The bytes of the file or folder.
    pub file_bytes: u64,
    /// The time of the last change of the file or folder.
    pub modified: Option<SystemTime>,
}

impl fmt::Debug for HostedModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            name,
            aliases,
            bytes,
            facts,
            check: _,
            load: _,
        } = self;
        f.debug_struct("HostedModel")
            .field("name", name)
            .field("aliases", aliases)
            .field("bytes", bytes)
            .field("facts", facts)
            .finish_non_exhaustive()
    }
}

impl HostedModel {
    /// Returns all names that clients may use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name]
            .into_iter()
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// Returns whether a request that names `name` is for this model. The suffix `:latest` stands for no tag, as in
    /// Ollama.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is = |name: &str| self.names().any(|own| own == name);
        is(name) || name.strip_suffix(":latest").is_some_and(is)
    }
}

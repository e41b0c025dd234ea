//! Models and their options.

use std::path::Path;
use std::sync::Arc;

use triad_engine::{Cancel, Engine, Error as EngineError, KvFormat, Threads};
use triad_frontend::embedding::{VectorOptions, embed, pooling};
use triad_frontend::open;
use triad_model::tokenizer::EncodeOptions;

use crate::chat::Chat;
use crate::error::Result;
use crate::opened::Opened;
use crate::session::Session;

/// A model that is ready to run. Clones share the model. Its chats and sessions may run concurrently, on any thread.
#[derive(Clone)]
pub struct Model(Arc<Opened>);

impl Model {
    /// Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by
    /// `hf:owner/name[:file]`. Fetches and prepares the model if necessary.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched, read or prepared, or it does not fit into memory.
    pub fn open(name: impl AsRef<str>) -> Result<Self> {
        Self::options().open(name)
    }

    /// Returns the default options of [`Model::open`], to be changed.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Begins a conversation.
    pub fn chat(&self) -> Chat {
        Chat::new(&self.0)
    }

    /// Begins a text.
    pub fn session(&self) -> Session {
        Session::new(&self.0, self.engine().session())
    }

    /// Restores a session that [`Session::save`] wrote.
    ///
    /// # Errors
    /// If the file is not a saved session, is damaged, or is of another model or other options.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Session> {
        Ok(Session::new(&self.0, self.engine().restore(path.as_ref())?))
    }

    /// Returns the embedding of `text`, a vector of length 1. The last hidden states of its tokens are pooled as the
    /// model's authors state, else by their mean.
    ///
    /// # Errors
    /// If the text is empty or longer than the context, or the authors' rules have a part that Triad does not compute.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let tokens = self.0.encode(text)?;
        let options = VectorOptions::of_length_1(pooling(self.engine().model(), None)?);
        Ok(embed(self.engine(), tokens, options, &Cancel::new())?)
    }

    /// Returns the tokens of `text`, with the BOS token if the model expects one. Names of control tokens are plain
    /// text.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.engine().model().tokenizer()?;
        Ok(tokenizer.encode(text, EncodeOptions::TEXT)?)
    }

    /// Returns the text of `tokens`.
    ///
    /// # Errors
    /// If the model has no tokenizer, or a token is outside its vocabulary.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let model = self.engine().model();
        let vocab = model.description().vocab;
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(EngineError::TokenOutOfVocabulary { token, vocab }.into());
        }
        Ok(model.tokenizer()?.decode(tokens))
    }

    /// Returns the name by which the model was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the maximum tokens of a prompt and its answer together.
    pub fn context(&self) -> usize {
        self.engine().context()
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.0.name)
            .field("context", &self.context())
            .finish_non_exhaustive()
    }
}

/// Options for opening a model; [`Model::options`] returns the defaults.
#[derive(Default)]
#[must_use]
pub struct OpenOptions {
    options: open::OpenOptions,
    step: Option<OnStep>,
    cancel: Cancel,
}

/// Called with a sentence as each step begins.
type OnStep = Box<dyn FnMut(&str)>;

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit integers with scales: half the memory.
    Int8,
    /// 32-bit floats.
    F32,
}

impl OpenOptions {
    /// Runs a model file as it is, in float, without preparing it for INT8.
    pub fn no_quantize(mut self) -> Self {
        self.options.float = true;
        self
    }

    /// Computes on `count` threads; the default is one for each fast core.
    pub fn threads(mut self, count: usize) -> Self {
        self.options.threads = Threads::Count(count);
        self
    }

    /// Sets the maximum tokens of a prompt and its answer together; the default is 4096, or the model's own context if
    /// that is less.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.context = Some(tokens);
        self
    }

    /// Sets the prefill chunk size in tokens; the default is 256.
    pub fn prefill_chunk(mut self, tokens: usize) -> Self {
        self.options.session.chunk = tokens;
        self
    }

    /// Sets the number format of the KV cache.
    pub fn cache_type(mut self, format: CacheType) -> Self {
        self.options.session.kv_format = match format {
            CacheType::F16 => KvFormat::F16,
            CacheType::Int8 => KvFormat::Int8,
            CacheType::F32 => KvFormat::F32,
        };
        self
    }

    /// Calls `step` with a sentence for the user when each step begins: fetching, preparing, loading.
    pub fn on_step(mut self, step: impl FnMut(&str) + 'static) -> Self {
        self.step = Some(Box::new(step));
        self
    }

    /// Cancels the opening once `cancel` is set. It then fails.
    pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by
    /// `hf:owner/name[:file]`. Fetches and prepares the model if necessary.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched, read or prepared, or it does not fit into memory.
    pub fn open(self, name: impl AsRef<str>) -> Result<Model> {
        let Self {
            options,
            step,
            cancel,
        } = self;
        let mut step = step.unwrap_or_else(|| Box::new(|_| {}));
        let name = name.as_ref();
        let engine = open::open(name, &options, &cancel, &mut *step)?;
        Ok(Model(Arc::new(Opened::new(name, engine))))
    }
}

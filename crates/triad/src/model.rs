//! A model with its engine.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use triad_engine::{Adapters, Cancel, Engine, Error as EngineError, ScaledAdapter};
use triad_frontend::chat;
use triad_grammar::Grammars;
use triad_model::tokenizer::Special;

use crate::chat::Chat;
use crate::error::Result;
use crate::options::{GenerateOptions, OpenOptions};
use crate::session::Session;

/// A model that is ready to run. Copies are the same model; chats and sessions of it may run at the same time, from any
/// thread.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    name: String,
    engine: Engine,
    grammars: OnceLock<Grammars>,
    /// Held while `grammars` is filled.
    compiling: Mutex<()>,
}

impl Model {
    /// Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by
    /// `hf:owner/name[:file]`. Fetches and prepares it if it is not there.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched, read or prepared, or it does not fit into memory.
    pub fn open(name: impl AsRef<str>) -> Result<Self> {
        Self::options().open(name)
    }

    /// Returns the options that [`Model::open`] uses, to be changed.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    pub(crate) fn new(name: &str, engine: Engine) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            engine,
            grammars: OnceLock::new(),
            compiling: Mutex::new(()),
        }))
    }

    /// Begins a conversation.
    pub fn chat(&self) -> Chat {
        Chat::new(self)
    }

    /// Begins a text.
    pub fn session(&self) -> Session {
        Session::new(self, self.engine().session())
    }

    /// Goes on with a text that [`Session::save`] wrote.
    ///
    /// # Errors
    /// If the file is no saved session, is damaged, or is of another model or other options.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Session> {
        Ok(Session::new(self, self.engine().restore(path.as_ref())?))
    }

    /// Returns the embedding of `text`, a vector of length 1: the mean of its tokens' last hidden states.
    ///
    /// # Errors
    /// If the text is empty or longer than the context.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let tokens = self.encode(text)?;
        let hidden = self.engine().model().description().hidden;
        let mut sums = vec![0.0f64; hidden];
        let cancel = Cancel::new();
        self.engine()
            .session()
            .hidden_states(&tokens, &cancel, |states| {
                for state in states.chunks_exact(hidden) {
                    sums.iter_mut()
                        .zip(state)
                        .for_each(|(sum, value)| *sum += f64::from(*value));
                }
            })?;
        let length = sums.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(EngineError::NotFinite.into());
        }
        let scale = if length > 0.0 { length.recip() } else { 0.0 };
        Ok(sums.iter().map(|value| (value * scale) as f32).collect())
    }

    /// Returns the tokens of `text`, with the token in front that the model expects there. Names of control tokens stay
    /// letters.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.engine().model().tokenizer()?;
        Ok(tokenizer.encode(text, Special::AsText)?)
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

    /// Returns the name that the model was opened by.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns how many tokens a prompt and its answer have together, at most.
    pub fn context(&self) -> usize {
        self.engine().context()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns the tokens of a text to continue, which fit into the context.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let within = (self.context(), &Cancel::new());
        Ok(chat::encode_text(
            self.engine().model(),
            text,
            Special::AsText,
            within,
        )?)
    }

    /// Returns the compiler of constraints, made when it is first needed: it goes through all tokens.
    pub(crate) fn grammars(&self) -> Result<&Grammars> {
        let Inner {
            engine,
            grammars,
            compiling,
            ..
        } = &*self.0;
        let _compiling = compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammars) = grammars.get() {
            return Ok(grammars);
        }
        let made = Grammars::new(Arc::<triad_engine::Model>::clone(engine.model()))?;
        Ok(grammars.get_or_init(|| made))
    }

    /// Opens the adapters of `options`.
    pub(crate) fn adapters(&self, options: &GenerateOptions) -> Result<Adapters> {
        let opened = options.adapters.iter().map(|(path, scale)| {
            Ok(ScaledAdapter {
                adapter: self.engine().model().open_adapter(path)?,
                scale: *scale,
            })
        });
        Ok(Adapters::new(opened.collect::<Result<Vec<_>>>()?)?)
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

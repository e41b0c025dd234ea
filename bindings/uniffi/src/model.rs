//! Models.

use std::sync::Arc;

use triad::Cancel;
use triad_bindings::{Lender, Stop, guarded};

use crate::error::TriadError;
use crate::generator::{Chat, Session};
use crate::options::{AnswerOptions, OpenOptions, Tool};

/// Receives the steps while a model is opened.
#[uniffi::export(callback_interface)]
pub trait StepListener: Send + Sync {
    /// Called with a sentence for the user when each step begins: fetching, preparing, loading.
    fn on_step(&self, sentence: String);
}

/// Ends the opening of a model from another thread.
#[derive(uniffi::Object)]
pub struct Stopper(Stop);

#[uniffi::export]
impl Stopper {
    /// Creates a handle for one opening.
    #[uniffi::constructor]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Stop::new()))
    }

    /// Ends the opening, also if it has not begun.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// A model that is ready to run. Its chats and sessions may run concurrently, on any thread.
#[derive(uniffi::Object)]
pub struct Model(triad::Model);

#[uniffi::export]
impl Model {
    /// Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by
    /// `hf:owner/name[:file]`. Fetches and prepares the model if necessary.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched, read or prepared, or it does not fit into memory.
    #[uniffi::constructor(default(options = None, listener = None, stopper = None))]
    pub fn open(
        name: String,
        options: Option<OpenOptions>,
        listener: Option<Box<dyn StepListener>>,
        stopper: Option<Arc<Stopper>>,
    ) -> Result<Arc<Self>, TriadError> {
        let mut options = options.unwrap_or_default().build()?;
        let cancel = Cancel::new();
        if let Some(stopper) = stopper {
            stopper.0.bind(cancel.clone());
        }
        if let Some(listener) = listener {
            options = options.on_step(move |step| listener.on_step(step.to_owned()));
        }
        let options = options.cancel_with(&cancel);
        let model = guarded(move || Ok(options.open(&name)?))?;
        Ok(Arc::new(Self(model)))
    }

    /// Begins a conversation. With `keep_letters`, names of control tokens in messages are plain text, for messages of
    /// untrusted users.
    ///
    /// # Errors
    /// If an option or a tool is invalid.
    #[uniffi::method(default(system = None, tools = [], options = None, keep_letters = false))]
    pub fn chat(
        &self,
        system: Option<String>,
        tools: Vec<Tool>,
        options: Option<AnswerOptions>,
        keep_letters: bool,
    ) -> Result<Arc<Chat>, TriadError> {
        let tools: Vec<_> = tools.iter().map(Tool::build).collect::<Result<_, _>>()?;
        let options = options.unwrap_or_default().build()?;
        let mut chat = self.0.chat().with_options(options).with_tools(tools);
        if let Some(system) = system {
            chat = chat.with_system(&system);
        }
        if keep_letters {
            chat = chat.with_letters_kept();
        }
        Ok(Arc::new(Chat(Lender::new(chat))))
    }

    /// Begins a text.
    ///
    /// # Errors
    /// If an option is invalid.
    #[uniffi::method(default(options = None))]
    pub fn session(&self, options: Option<AnswerOptions>) -> Result<Arc<Session>, TriadError> {
        let options = options.unwrap_or_default().build()?;
        let session = self.0.session().with_options(options);
        Ok(Arc::new(Session(Lender::new(session))))
    }

    /// Restores a session that `Session.save` wrote.
    ///
    /// # Errors
    /// If the file is not a saved session, is damaged, or is of another model or other options.
    #[uniffi::method(default(options = None))]
    pub fn restore(
        &self,
        path: String,
        options: Option<AnswerOptions>,
    ) -> Result<Arc<Session>, TriadError> {
        let options = options.unwrap_or_default().build()?;
        let session = self.0.restore(path)?.with_options(options);
        Ok(Arc::new(Session(Lender::new(session))))
    }

    /// Returns the embedding of a text, a vector of length 1.
    ///
    /// # Errors
    /// If the text is empty or longer than the context.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, TriadError> {
        Ok(guarded(|| Ok(self.0.embed(text)?))?)
    }

    /// Returns the tokens of a text. Names of control tokens are plain text.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, TriadError> {
        Ok(self.0.tokenize(text)?)
    }

    /// Returns the text of tokens.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String, TriadError> {
        Ok(self.0.detokenize(tokens)?)
    }

    /// Returns the name by which the model was opened.
    pub fn name(&self) -> String {
        self.0.name().to_owned()
    }

    /// Returns the maximum tokens of a prompt and its answer together.
    pub fn context(&self) -> u64 {
        self.0.context() as u64
    }
}

//! A text that a model continues.

use std::path::Path;
use std::sync::Arc;

use triad_engine::Session as EngineSession;
use triad_frontend::picture_reader::ShownPrompt;

use crate::error::Result;
use crate::generation::{Generation, Parts};
use crate::opened::Opened;
use crate::options::GenerateOptions;

/// A text that a model continues, with the keys and values of its tokens.
pub struct Session {
    model: Arc<Opened>,
    /// Moved to a generation while it runs.
    session: Option<EngineSession>,
    options: GenerateOptions,
}

impl Session {
    pub(crate) fn new(model: &Arc<Opened>, session: EngineSession) -> Self {
        Self {
            model: Arc::clone(model),
            session: Some(session),
            options: GenerateOptions::new(),
        }
    }

    /// Returns the session with these options for its generations.
    #[must_use]
    pub fn with_options(mut self, options: GenerateOptions) -> Self {
        self.options = options;
        self
    }

    /// Continues `prompt`, which is the whole text. Tokens at its beginning that the session already has are not
    /// computed again.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, an option is invalid, or an adapter or constraint can't be
    /// used.
    pub fn generate(&mut self, prompt: &str) -> Result<Generation<'_>> {
        let tokens = self.model.encode(prompt)?;
        self.generate_with(tokens.into(), &self.options.clone(), Parts::Text)
    }

    pub(crate) fn generate_with(
        &mut self,
        prompt: ShownPrompt,
        options: &GenerateOptions,
        parts: Parts,
    ) -> Result<Generation<'_>> {
        let mut engine_options = options.for_engine(&self.model)?;
        engine_options.spelled = parts.spelled();
        let adapters = self.model.adapters(&options.adapters)?;
        let mut session = self
            .session
            .take()
            .unwrap_or_else(|| self.model.engine.session());
        if let Err(error) = session.set_adapters(&adapters) {
            self.session = Some(session);
            return Err(error.into());
        }
        Generation::start(&mut self.session, session, prompt, engine_options, parts)
    }

    /// Returns the tokens of the session: prompts and answers.
    pub fn tokens(&self) -> &[u32] {
        self.session.as_ref().map_or(&[], EngineSession::tokens)
    }

    /// Writes the session to `path`, for [`Model::restore`](crate::Model::restore).
    ///
    /// # Errors
    /// If the file can't be written. An existing file is then unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        match &self.session {
            Some(session) => Ok(session.save(path.as_ref())?),
            None => Ok(self.model.engine.session().save(path.as_ref())?),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("model", &self.model.name)
            .field("tokens", &self.tokens().len())
            .finish_non_exhaustive()
    }
}

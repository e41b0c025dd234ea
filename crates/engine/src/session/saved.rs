//! Sessions in files, and how an engine makes sessions.

use std::io;
use std::path::Path;
use std::sync::Arc;

use triad_model::output::OutputFile;

use super::Session;
use super::phases::Phases;
use crate::adapter::Adapters;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::kv::{KvCache, PrefixSalt, save};
use crate::pictures::is_of_picture;

impl Engine {
    /// Returns a new, empty session.
    pub fn session(&self) -> Session {
        Session::empty(self)
    }

    /// Returns the session that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// If the file is not a saved session, is damaged, or is of another model, format, context or version, or has
    /// adapters; if there is no memory for its keys and values.
    pub fn restore(&self, path: &Path) -> Result<Session> {
        self.restore_with(path, &Adapters::default())
    }

    /// Returns the session with `adapters` that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// As [`Engine::restore`]; if the session had other adapters or scales, or one was opened for another model.
    pub fn restore_with(&self, path: &Path, adapters: &Adapters) -> Result<Session> {
        self.restore_salted(path, adapters, PrefixSalt::default())
    }

    /// As [`Engine::restore_with`], for a session with `salt`: only sessions with the same salt find the prefixes that
    /// it [shares](Session::share).
    ///
    /// # Errors
    /// As [`Engine::restore_with`].
    pub fn restore_salted(
        &self,
        path: &Path,
        adapters: &Adapters,
        salt: PrefixSalt,
    ) -> Result<Session> {
        let model = self.model();
        adapters.check(model.description())?;
        let (header, tokens, cache) = save::restore(
            path,
            &model.fingerprint(),
            self.context(),
            &self.shared().memory,
            adapters,
        )?;
        let vocab = model.description().vocab;
        // Without states, only the first prompt matters.
        let ends = match header.phases {
            ends if ends.is_empty() && header.prefilled < tokens.len() => {
                vec![header.prefilled, tokens.len()]
            }
            ends if ends.is_empty() && !tokens.is_empty() => vec![tokens.len()],
            ends => ends,
        };
        let Some(phases) = Phases::new(ends, tokens.len()) else {
            return Err(Error::SavedSession {
                path: path.to_owned(),
                field: "the ends of prompts and answers",
                found: "other numbers".to_owned(),
                expected: format!("ascending ones up to {}", tokens.len()),
            });
        };
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(Error::TokenOutOfVocabulary {
                token: *token,
                vocab,
            }),
            None => Ok(Session::restored(
                self,
                &tokens,
                phases,
                cache.with_salt(salt),
            )),
        }
    }
}

impl Session {
    /// Writes the session's tokens, keys and values to `path`, for [`Engine::restore`].
    ///
    /// # Errors
    /// If the file cannot be written, or the model's file has changed; an existing file is then kept.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_to(path, OutputFile::create_private)
    }

    /// Does the same as [`Session::save`] for a name that the program chose: whatever has this name is replaced, and a link
    /// is not followed.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn save_own(&self, path: &Path) -> Result<()> {
        self.save_to(path, OutputFile::own_private)
    }

    fn save_to(&self, path: &Path, open: fn(&Path) -> io::Result<OutputFile>) -> Result<()> {
        self.model().check_unchanged()?;
        if self.tokens.iter().any(|token| is_of_picture(*token)) {
            let message = "a conversation with pictures cannot be saved";
            return Err(Error::Picture(message.into()));
        }
        let description = self.model().description();
        let model_has_states = description.states().next().is_some();
        let header = save::Header {
            model: self.model().fingerprint(),
            format: self.engine.kv_format(),
            context: self.context(),
            is_little_endian: cfg!(target_endian = "little"),
            tokens: self.tokens.len(),
            prefilled: self.phases.prefilled(),
            phases: if model_has_states {
                self.phases.ends().to_vec()
            } else {
                Vec::new()
            },
            adapters: self.adapters().key().text(),
        };
        save::save((path, open), &header, &self.tokens, &self.cache)
    }

    /// Returns a session with the contents of a file.
    fn restored(engine: &Engine, tokens: &[u32], phases: Phases, cache: KvCache) -> Self {
        let mut session = Self::empty(engine);
        session.cache = Arc::new(cache);
        session.tokens.extend_from_slice(tokens);
        session.phases = phases;
        session
    }
}

//! An open model: an engine, its name and its constraint compiler.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use triad_engine::{Adapters, Cancel, Engine, ScaledAdapter};
use triad_frontend::chat;
use triad_frontend::picture_reader::PictureReader;
use triad_grammar::Grammars;
use triad_model::tokenizer::EncodeOptions;

use crate::error::Result;

/// An open model.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) pictures: PictureReader,
    grammars: OnceLock<Grammars>,
    /// Locked while `grammars` is filled.
    compiling: Mutex<()>,
}

impl Opened {
    pub(crate) fn new(name: &str, engine: Engine) -> Self {
        Self {
            name: name.to_owned(),
            engine,
            pictures: PictureReader::default(),
            grammars: OnceLock::new(),
            compiling: Mutex::new(()),
        }
    }

    /// Returns the tokens of a text to continue. Fails if they do not fit into the context.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let within = (self.engine.context(), &Cancel::new());
        let model = self.engine.model();
        Ok(chat::encode_text(model, text, EncodeOptions::TEXT, within)?)
    }

    /// Returns the constraint compiler. It is made when it is first needed, since it goes through all tokens.
    pub(crate) fn grammars(&self) -> Result<&Grammars> {
        let _compiling = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(grammars) = self.grammars.get() {
            return Ok(grammars);
        }
        let made = Grammars::new(Arc::<triad_engine::Model>::clone(self.engine.model()))?;
        Ok(self.grammars.get_or_init(|| made))
    }

    /// Opens LoRA adapters by their paths, with their scales.
    pub(crate) fn adapters(&self, adapters: &[(std::path::PathBuf, f32)]) -> Result<Adapters> {
        let opened = adapters.iter().map(|(path, scale)| {
            Ok(ScaledAdapter {
                adapter: self.engine.model().open_adapter(path)?,
                scale: *scale,
            })
        });
        Ok(Adapters::new(opened.collect::<Result<Vec<_>>>()?)?)
    }
}

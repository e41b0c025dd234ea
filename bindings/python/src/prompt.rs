//! The names of models, and their prompts.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use triad_engine::{Cancel, Model};
use triad_frontend::chat::{self, Conversation};
use triad_frontend::picture_reader::{PictureReader, ShownPrompt};
use triad_frontend::tool_calls::Tool;
use triad_model::fetch;
use triad_model::tokenizer::EncodeOptions;

use crate::error;
use crate::messages::Messages;

/// The user's name for a model.
pub type Name = Arc<str>;

/// The input of a model.
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Messages),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Prompt {
    type Error = PyErr;

    /// Reads a text or tokens; conversations are for other methods.
    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.extract() {
            return Ok(Self::Text(text));
        }
        let tokens = value
            .extract()
            .map_err(|_| PyTypeError::new_err("expected a text or a list of tokens"))?;
        Ok(Self::Tokens(tokens))
    }
}

impl Prompt {
    /// Returns the functions that the answer may call.
    pub fn tools(&self) -> &[Tool] {
        match self {
            Self::Chat(Messages { tools, .. }) => tools,
            Self::Text(_) | Self::Tokens(_) => &[],
        }
    }

    /// Returns the tokens of a text, at most `context` of them, or the tokens themselves.
    pub fn text_tokens(self, model: &Model, context: usize) -> PyResult<Vec<u32>> {
        match self {
            Self::Text(text) => {
                let within = (context, &Cancel::new());
                let tokens = chat::encode_text(model, &text, EncodeOptions::TEXT, within);
                tokens.map_err(error::frontend)
            }
            Self::Tokens(tokens) => Ok(tokens),
            Self::Chat(_) => Err(PyTypeError::new_err("expected a text or a list of tokens")),
        }
    }

    /// Returns the tokens, at most `context` of them, and the pictures, which `reader` prepares.
    pub fn encode(
        self,
        named: (&Model, &str),
        reader: &PictureReader,
        context: usize,
    ) -> PyResult<ShownPrompt> {
        let encode = || self.encode_alone(named, reader, context);
        Python::attach(|py| py.detach(encode)).map_err(error::frontend)
    }

    fn encode_alone(
        self,
        (model, name): (&Model, &str),
        reader: &PictureReader,
        context: usize,
    ) -> triad_frontend::Result<ShownPrompt> {
        let within = (context, &Cancel::new());
        match self {
            Self::Text(text) => {
                let tokens = chat::encode_text(model, &text, EncodeOptions::TEXT, within);
                tokens.map(ShownPrompt::from)
            }
            Self::Tokens(tokens) => Ok(tokens.into()),
            Self::Chat(Messages {
                messages,
                images,
                tools,
            }) => {
                let prepared = images.iter().map(|image| reader.prepare(model, image));
                let conversation = Conversation {
                    messages: &messages,
                    tools: &tools,
                    ..Conversation::default()
                };
                prepared.collect::<Result<_, _>>().and_then(|prepared| {
                    reader.prompt((model, name), &conversation, prepared, within)
                })
            }
        }
    }
}

/// Returns the name of a model from a text or a path; that of the default model if there is none.
pub fn model_name(name: Option<PathBuf>) -> PyResult<String> {
    let Some(name) = name else {
        return Ok(fetch::DEFAULT_MODEL.to_owned());
    };
    let text = name.into_os_string().into_string();
    text.map_err(|name| {
        PyValueError::new_err(format!("{}: expected a path in UTF-8", name.display()))
    })
}

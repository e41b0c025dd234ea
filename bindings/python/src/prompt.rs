//! The names of models, and their prompts.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use triad_engine::{Cancel, Model};
use triad_frontend::chat;
use triad_model::fetch;
use triad_model::tokenizer::Special;

use crate::error;
use crate::options::json_value;

/// The user's name for a model.
pub type Name = Arc<str>;

/// The input of a model.
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
    /// A conversation, in OpenAI's form.
    Chat(Vec<Value>),
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
    /// Returns the tokens, at most `context` of them.
    pub fn encode(self, model: &Model, name: &str, context: usize) -> PyResult<Vec<u32>> {
        match self {
            Self::Text(text) => {
                chat::encode_text(model, &text, Special::AsText, (context, &Cancel::new()))
            }
            Self::Tokens(tokens) => Ok(tokens),
            Self::Chat(messages) => {
                chat::encode_with_tools(model, name, &messages, &[], (context, &Cancel::new()))
            }
        }
        .map_err(error::frontend)
    }
}

/// Reads the messages of a conversation, each an object with `role` and `content`.
pub fn conversation(messages: &Bound<'_, PyAny>) -> PyResult<Vec<Value>> {
    match json_value(messages)? {
        Value::Array(messages) => Ok(messages),
        _ => Err(PyTypeError::new_err(
            "messages: expected a list of objects with role and content",
        )),
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

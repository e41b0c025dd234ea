//! Texts of users whose names of control tokens stay letters.

use serde_json::Value;
use triad_model::tokenizer::{Letters, Tokenizer};

use crate::error::Result;

/// Returns marks for the contents of `messages`.
///
/// # Errors
/// As [`Letters::new`].
pub(crate) fn marks<'a>(tokenizer: &'a Tokenizer, messages: &[Value]) -> Result<Letters<'a>> {
    Ok(Letters::new(
        tokenizer,
        &messages.iter().flat_map(texts).collect::<Vec<_>>(),
    )?)
}

/// Returns `message` with marks in its content. Messages of the model are left as they are: templates look for the words in
/// them that the model writes.
pub(crate) fn marked(letters: &Letters<'_>, message: &Value) -> Value {
    let mut message = message.clone();
    if message["role"] == "assistant" {
        return message;
    }
    match message.get_mut("content") {
        Some(Value::String(text)) => *text = letters.mark(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                if let Some(Value::String(text)) = part.get_mut("text") {
                    *text = letters.mark(text);
                }
            }
        }
        _ => {}
    }
    message
}

fn texts(message: &Value) -> impl Iterator<Item = &str> {
    let content = &message["content"];
    let parts = content.as_array().into_iter().flatten();
    content
        .as_str()
        .into_iter()
        .chain(parts.filter_map(|part| part["text"].as_str()))
}

//! The API of Ollama: `/api/chat`, `/api/generate`, `/api/embed` and what lists models.
//!
//! Requests become the same [conversations](crate::conversation) and [continuations](crate::continuation) as those of
//! the other APIs. Streams are lines of JSON instead of server-sent events, and an error is `{"error": "…"}`.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod context;
pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod generate;
pub(crate) mod keep_alive;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod pull;
pub(crate) mod time;
pub(crate) mod turns;

use serde::{Deserialize, Deserializer};

/// Reads the name of a model. An empty one counts as not given, because Ollama's client in Go sends both `model` and
/// `name`.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.filter(|name| !name.is_empty()))
}

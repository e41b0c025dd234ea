//! The API of Ollama: `/api/chat`, `/api/generate`, `/api/embed` and what lists models.
//!
//! Requests become the same [conversations](crate::conversation) and [continuations](crate::continuation) as those of
//! the other APIs. Streams are lines of JSON instead of server-sent events, and an error is `{"error": "…"}`.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod generate;
pub(crate) mod keep_alive;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod time;
pub(crate) mod turns;

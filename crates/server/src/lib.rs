//! Serves models over HTTP with the APIs of OpenAI, Anthropic and Ollama.
//!
//! [`serve`] listens and passes requests to the [`routes`](routes()); a [`Shutdown`] stops it. The [`registry`] loads
//! models. Each model is [`served`] by one engine, and its [`queue`] admits as many completions as the engine computes
//! concurrently. An endpoint reads its [`body`] and turns it into an [`order`](jobs::GenerationJob). The parts of the
//! completions come back through a channel. The endpoint sends them as one response or as a stream ([`sse`]). An
//! invalid request returns an [`error`] that names the field.
//!
//! | modules | contents |
//! | --- | --- |
//! | [`listener`], [`connections`] | connections, their limits and their timeouts |
//! | [`guard`], [`owner`] | access by key, host and origin; isolation of cached prompts; shares of the server per
//! tenant |
//! | [`chat`], [`completions`], [`responses`], [`anthropic`] | endpoints that generate text |
//! | [`library`] | models that clients fetch and delete |
//! | [`ollama`], [`llama`] | the API of Ollama, and llama.cpp's own endpoints |
//! | [`models`], [`props`], [`metrics_routes`], [`openapi`] | endpoints that describe the server |
//! | [`text`], [`embeddings`], [`vectors`] | tokenization, templates and embeddings |
//! | [`sessions`] | prompts with their KV cache, saved in files |
//! | [`housekeeping`] | memory that is given back to the system |
//! | [`fields`] | every field of every request: used, ignored, or refused |
//! | [`sampling`], [`forms`], [`prompt_fields`] | fields of sampling, of structured output, and of the prompt |
//! | [`values`], [`json_errors`] | numbers and texts in several forms, and the errors of others |
//! | [`messages`], [`tools`] | conversations and tools in requests |
//! | [`stored`], [`response_input`] | responses and conversations in memory, and requests that continue them |
//! | [`pieces`] | completions split into text and tool calls |
//! | [`prepare`] | threads that prepare requests: templates, tokenization, schemas |
//! | [`request_id`], [`anthropic_error`] | request ids, and errors in Anthropic's format |
//! | [`jobs`] | execution of an order |
//! | [`page`], [`timelines`], [`tool_routes`] | the web page at `/`, the prompt timelines that it shows, the tools that it calls |
#![forbid(unsafe_code)]

mod adapters;
mod anthropic;
mod anthropic_answer;
mod anthropic_error;
mod anthropic_turns;
mod app;
mod blocking;
mod bodies;
mod body;
mod chat;
mod chat_answer;
mod completions;
mod connections;
mod continuation;
mod conversation;
mod decoded_pictures;
mod embeddings;
mod encoding;
mod engines;
mod error;
pub mod fields;
mod form_shares;
mod forms;
mod gathered_pictures;
mod guard;
mod held_body;
mod host_tools;
mod hosted;
mod housekeeping;
mod image_host;
mod image_urls;
mod infill;
mod jobs;
mod json_errors;
mod known_pictures;
mod left_out;
mod library;
mod listener;
mod llama;
mod log_probabilities;
mod messages;
mod metadata;
mod metrics;
mod metrics_routes;
mod models;
mod names;
mod ollama;
mod openapi;
mod options;
mod owner;
mod page;
mod pictures;
mod pieces;
mod predict;
mod prepare;
mod prompt_fields;
mod prompt_timelines;
mod prompts;
mod props;
mod query;
mod queue;
mod read_pictures;
mod reasoning;
mod registry;
mod reply;
mod request_id;
mod rerank;
mod response_answer;
mod response_input;
mod response_memory;
mod responses;
mod route;
mod routes;
mod sampling;
mod served;
mod sessions;
mod slots;
mod sse;
mod stored;
mod stored_routes;
mod stream_usage;
mod text;
mod timelines;
mod tool_fields;
mod tool_routes;
mod tools;
mod turns;
mod unread;
mod url_path;
mod usage;
mod values;
mod vectors;

pub use host_tools::{HostTool, ToolHost, ToolResult};
pub use hosted::{HostedModel, LoadError, LoadedModel, ModelFacts};
pub use image_host::ImageHost;
pub use library::{Deletion, LibraryError, ModelLibrary, repository};
pub use listener::{Shutdown, serve};
pub use options::{ServerOptions, StartError};
pub use route::{Access, Route};
pub use routes::routes;
pub use triad_grammar::Checker;

//! Serves models over HTTP, in the forms that OpenAI's and Anthropic's clients speak.
//!
//! [`serve`] listens and passes requests to the [`routes`](routes()); a [`Shutdown`] ends it. The [`catalog`] loads models; each is [`hosted`] by one
//! engine, and a [`queue`] admits as many answers to it as it computes at once. An endpoint reads its [`body`], turns it into an
//! [`order`](answers::Order) of answers, whose parts come back through a channel, and writes them whole or as a stream
//! ([`sse`]). Whatever is wrong with a request is an [`error`] that names the field.
//!
//! | module | what |
//! | --- | --- |
//! | [`listener`], [`connections`] | connections, their number and their time-outs |
//! | [`guard`], [`owner`] | who may ask: key, host, origin; whose prompts an answer may find; shares of the server |
//! | [`chat`], [`completions`], [`responses`], [`anthropic`] | answers |
//! | [`models`], [`props`], [`metrics`], [`openapi`] | what the server is and does |
//! | [`text`], [`embeddings`] | tokens, templates and vectors of texts |
//! | [`sessions`] | prompts whose keys and values are kept in files |
//! | [`fields`] | every field of every request: followed, without effect, or refused |
//! | [`sampling`], [`forms`], [`prompt_fields`] | the choice of tokens, the form of answers, and the prompt, as requests state them |
//! | [`messages`], [`tools`] | conversations and functions as requests have them |
//! | [`pieces`] | answers as text and calls of functions |
//! | [`prepare`] | threads that prepare requests: templates, tokens, forms |
//! | [`request_id`], [`anthropic_error`] | names of requests, and errors in Anthropic's form |
//! | [`answers`] | from an order to the parts of its answers |
//! | [`page`], [`timelines`] | the page at `/`, and how prompts were computed, which it shows |
#![forbid(unsafe_code)]

mod adapters;
mod answers;
mod anthropic;
mod anthropic_error;
mod anthropic_turns;
mod app;
mod blocking;
mod bodies;
mod body;
mod catalog;
mod chat;
mod completions;
mod connections;
mod conversation;
mod counters;
mod embeddings;
mod engines;
mod error;
pub mod fields;
mod form_shares;
mod forms;
mod guard;
mod hosted;
mod listener;
mod log_probabilities;
mod messages;
mod metrics;
mod models;
mod names;
mod openapi;
mod options;
mod owner;
mod page;
mod pieces;
mod prepare;
mod prompt_fields;
mod prompt_timelines;
mod prompts;
mod props;
mod queue;
mod reply;
mod request_id;
mod response_answer;
mod responses;
mod route;
mod routes;
mod sampling;
mod sessions;
mod sse;
mod text;
mod timelines;
mod tools;
mod usage;

pub use catalog::{HostedModel, LoadError};
pub use hosted::LoadedModel;
pub use listener::{Shutdown, serve};
pub use options::{ServerOptions, StartError};
pub use route::{Access, Route};
pub use routes::routes;
pub use triad_grammar::Checker;

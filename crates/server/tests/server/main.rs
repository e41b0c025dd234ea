//! Tests of the server over HTTP, with a tiny random model.

mod adapters;
mod agents;
mod bounds;
mod chat;
mod completions;
mod embeddings;
mod fields;
mod forms;
mod guard;
mod little_memory;
mod llama;
mod many;
mod models;
mod ollama;
mod others;
mod owners;
mod pictures;
mod reasoning;
mod rerank;
mod sampling;
mod scripted;
mod sessions;
mod shares;
mod stored;
mod support;
mod tools;

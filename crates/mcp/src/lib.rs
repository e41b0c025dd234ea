//! A client of MCP servers (Model Context Protocol), which give a model tools.
//!
//! [`ServerConfig`] says how to reach a server: by a command whose standard input and output it speaks on, or by an
//! address with streamable HTTP. [`Servers`] connects to servers, lists their tools and calls them. Protocol and messages
//! are those of the official crate `rmcp`.
//!
//! Servers are programs of others. What they send is bounded ([`Limits`]), and a server that dies, hangs or floods is an
//! [`Error`] of one sentence. One that ended is started again. Sampling, roots and elicitation are not offered to them.
#![forbid(unsafe_code)]

mod config;
mod connection;
mod error;
mod http;
mod lines;
mod meter;
mod restarts;
mod result;
mod servers;
mod stdio;
mod tools;

pub use config::{Config, ServerConfig, Transport};
pub use error::{Error, Result};
pub use servers::Servers;
pub use tools::{Limits, RemoteTool, ToolOutput};

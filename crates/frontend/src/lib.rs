//! What every front end needs between a user and the engine: the command line, the server, and the bindings to Python and C.
//!
//! [`models`] opens what a user names, [`packages`] prepares it once and finds it again in the cache, [`hashes`] checks
//! packages whose files changed, [`machine`] looks at the hardware and refuses what does not fit into its memory, [`huge_pages`] decides where weights
//! are, [`kernels`] uses the fastest of its kernels, [`chat`] turns messages into tokens, [`tool_calls`] finds the functions that an answer calls, [`answer`] starts engines and streams
//! what a model generates, and [`open`] does all that is needed to have an engine for a name. Nothing here prints or reads a terminal: progress goes to closures, and
//! an [`Error`] keeps what caused it.
#![forbid(unsafe_code)]

pub mod answer;
mod cache_file;
pub mod chat;
pub mod energy;
mod error;
pub mod hashes;
pub mod huge_pages;
pub mod kernels;
mod letters;
pub mod machine;
pub mod models;
pub mod open;
pub mod packages;
pub mod sensors;
pub mod tool_calls;

pub use error::{Error, Result};

//! The layer between a user and the engine that the command line, the server, and the bindings to Python and C share.
//!
//! [`models`] opens a model by its name. [`packages`] prepares it once and finds it in the cache. [`first_run`]
//! finds what a model without a package runs from. [`hashes`] checks
//! packages whose files changed. [`machine`] reads the hardware and checks memory. [`pressure`]
//! notices when memory runs out. [`huge_pages`] decides where weights
//! are. [`kernels`] selects the fastest kernels. [`chat`] turns messages into tokens. [`tool_calls`] finds the function
//! calls in an answer. [`pictures`] puts pictures into a prompt, [`picture_reader`] reads those of a library's caller. [`answer`] starts engines and streams answers. [`open`] combines all of these: it returns an
//! engine for a name.
//!
//! Nothing here prints or reads from a terminal: progress is passed to closures, and an [`Error`] keeps its source.
#![forbid(unsafe_code)]

pub mod answer;
mod cache_file;
pub mod chat;
pub mod embedding;
pub mod energy;
mod error;
pub mod first_run;
pub mod hashes;
pub mod huge_pages;
pub mod infill;
pub mod kernels;
mod letters;
pub mod machine;
pub mod models;
pub mod open;
pub mod packages;
pub mod picture_reader;
pub mod pictures;
mod plain_messages;
pub mod pressure;
pub mod reasoning;
pub mod reranking;
pub mod sensors;
pub mod tool_calls;

pub use error::{Error, Result};

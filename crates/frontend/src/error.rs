//! What can go wrong between a user and the engine.

use std::io;
use std::path::PathBuf;

/// Why a user's request could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, its files or its run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// The preparation of a model.
    #[error(transparent)]
    Prepare(#[from] triad_prepare::Error),
    /// Something that would not fit into memory.
    #[error("{what} needs {} of memory, but {} are available on this machine", bytes(*.needed), bytes(*.available))]
    Memory {
        /// What does not fit.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are available.
        available: u64,
    },
    /// Something that would exceed the memory that this process may take.
    #[error(
        "{what} needs {} of memory, but the limit of this process leaves {}: raise it (ulimit -v), or ask for less",
        bytes(*.needed), bytes(*.available)
    )]
    MemoryLimit {
        /// What does not fit.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the limit leaves.
        available: u64,
    },
    /// A variable of the environment with a value that means nothing.
    #[error("{name} is {value:?}: expected {expected}")]
    Variable {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A prompt with more tokens than the context.
    #[error("the prompt has {}{tokens} tokens, but the context is {context}", if *.more { "more than " } else { "" })]
    PromptTooLong {
        /// Tokens of the prompt, or of the part of it that was read.
        tokens: usize,
        /// Whether the prompt was not read to its end.
        more: bool,
        /// Tokens of the context.
        context: usize,
    },
    /// A file or folder.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// What cannot be done with it: `read`, `create`.
        what: &'static str,
        /// Which one.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A message that is none.
    #[error("a message has no {expected}")]
    Message {
        /// What it lacks.
        expected: &'static str,
    },
    /// A function that a model may call and that is described wrongly.
    #[error("a tool's {field}: expected {expected}")]
    Tool {
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A function that has to be called and is not there.
    #[error("the tool {name} has to be called, but it is not among the tools")]
    NoSuchTool {
        /// Its name.
        name: String,
    },
    /// A form of answers that cannot be had.
    #[error(transparent)]
    Grammar(#[from] triad_grammar::Error),
    /// The answer could not be passed on.
    #[error("cannot write the answer")]
    Output {
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// The engine's error, where that is what is wrong.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Prepare(error) => error.engine(),
            _ => None,
        }
    }
}

impl From<triad_model::Error> for Error {
    fn from(error: triad_model::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// Bytes for people: `1.5 GiB`.
fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, "bytes");
    for next in units {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "bytes" {
        format!("{bytes} bytes")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! Errors between a user and the engine.

use std::io;
use std::path::PathBuf;

/// The reason why a user's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model, its files or its run.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// An error in the preparation of a model.
    #[error(transparent)]
    Prepare(#[from] triad_prepare::Error),
    /// A request that does not fit into memory.
    #[error("{what} needs {} of memory, but {} are available on this machine", bytes(*.needed), bytes(*.available))]
    Memory {
        /// The request, such as a context of so many tokens.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are available.
        available: u64,
    },
    /// A request that exceeds the memory limit of this process.
    #[error(
        "{what} needs {} of memory, but the limit of this process leaves {}: raise it (ulimit -v), or ask for less",
        bytes(*.needed), bytes(*.available)
    )]
    MemoryLimit {
        /// The request, such as a context of so many tokens.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the limit leaves.
        available: u64,
    },
    /// An environment variable with an invalid value.
    #[error("{name} is {value:?}: expected {expected}")]
    Variable {
        /// The variable's name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
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
    /// An error of a file or folder.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// The action that failed: `read`, `create`.
        what: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An invalid message.
    #[error("a message has no {expected}")]
    Message {
        /// The field that is missing.
        expected: &'static str,
    },
    /// A picture that can't be decoded or prepared, or a model's settings for pictures.
    #[error(transparent)]
    Picture(#[from] triad_pictures::Error),
    /// A file that is not a picture.
    #[error("{}", .path.display())]
    PictureFile {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: triad_pictures::Error,
    },
    /// A prompt whose places for pictures are not as many as its pictures.
    #[error("the prompt names {token} {places} times, expected {pictures}: once for each picture{}", hint(*places < *pictures))]
    PicturePlaces {
        /// The token that stands for a picture or one of its tiles.
        token: &'static str,
        /// Places in the rendered text.
        places: usize,
        /// Pictures or tiles of the conversation.
        pictures: usize,
    },
    /// Parts of messages that are pictures, where only text is read.
    #[error("the conversation has {0} pictures, expected only text here")]
    OnlyText(usize),
    /// An encoder that does not fit to the model's processor of pictures.
    #[error("the encoder makes {rows} rows of a view, and the processor expects {expected}")]
    PictureRows {
        /// Rows of the encoder.
        rows: usize,
        /// Rows in the prompt.
        expected: usize,
    },
    /// A tokenizer without a token that stands for pictures, and without a control token that cuts texts like it.
    #[error(
        "the tokenizer has no token {0}, which stands for pictures, and no other control token"
    )]
    NoPictureToken(&'static str),
    /// An invalid description of a function that a model may call.
    #[error("a tool's {field}: expected {expected}")]
    Tool {
        /// The field.
        field: &'static str,
        /// The valid values of the field.
        expected: &'static str,
    },
    /// A call is required of a function that is not among the tools.
    #[error("the tool {name} has to be called, but it is not among the tools")]
    NoSuchTool {
        /// The function's name.
        name: String,
    },
    /// An invalid or unsupported constraint of answers.
    #[error(transparent)]
    Grammar(#[from] triad_grammar::Error),
    /// An error while the answer is passed to the caller.
    #[error("cannot write the answer")]
    Output {
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the engine's error, if it is the cause.
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

/// Formats bytes with a unit: `1.5 GiB`.
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

/// Returns the end of the message about places for pictures.
fn hint(is_too_few: bool) -> &'static str {
    match is_too_few {
        true => "; the model's template may write pictures in messages of the user alone",
        false => "",
    }
}

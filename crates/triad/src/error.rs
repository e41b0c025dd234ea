//! Errors: a kind for programs, a message for people.

use std::fmt;
use std::io;

use triad_engine::Error as EngineError;
use triad_frontend::Error as FrontendError;
use triad_model::{Error as ModelError, ErrorKind as ModelErrorKind};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a model or an answer. It prints as one line, with its causes.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    source: Box<FrontendError>,
}

/// The kind of an error, by what a program can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model does not exist, or can't be fetched: check the name, the file or the network.
    NotFound,
    /// The model's files are damaged, changed or inconsistent: fetch or convert them again.
    Damaged,
    /// Triad does not support this model, or the model does not support this request.
    Unsupported,
    /// An argument has an invalid value; the message names it.
    InvalidArgument,
    /// The constraint of an answer has a mistake or exceeds a limit, or the answer can't match it.
    Constraint,
    /// The prompt is longer than the context.
    ContextFull,
    /// There is not enough memory.
    Memory,
    /// A processor failed, or refuses the model.
    Device,
    /// A file can't be read or written, or a thread can't be started.
    Io,
    /// The caller cancelled the operation.
    Cancelled,
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        let mut cause = std::error::Error::source(&*self.source);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<FrontendError> for Error {
    fn from(error: FrontendError) -> Self {
        Self {
            kind: kind(&error),
            source: Box::new(error),
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        FrontendError::from(error).into()
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        FrontendError::from(error).into()
    }
}

impl From<triad_grammar::Error> for Error {
    fn from(error: triad_grammar::Error) -> Self {
        FrontendError::from(error).into()
    }
}

/// Returns whether the cause is a file that does not exist.
fn is_missing(error: &ModelError) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::NotFound;
        }
        cause = error.source();
    }
    false
}

fn model_kind(error: &ModelError) -> ErrorKind {
    match error.kind() {
        ModelErrorKind::Io if is_missing(error) => ErrorKind::NotFound,
        ModelErrorKind::Io | ModelErrorKind::Full => ErrorKind::Io,
        ModelErrorKind::Malformed | ModelErrorKind::Missing => ErrorKind::Damaged,
        ModelErrorKind::Unsupported => ErrorKind::Unsupported,
        ModelErrorKind::Fetch | ModelErrorKind::Hub => ErrorKind::NotFound,
        ModelErrorKind::Exhausted => ErrorKind::Memory,
        _ => ErrorKind::InvalidArgument,
    }
}

fn kind(error: &FrontendError) -> ErrorKind {
    match error {
        FrontendError::Engine(error) => engine_kind(error),
        FrontendError::Prepare(error) => error.engine().map_or(ErrorKind::Io, engine_kind),
        FrontendError::Memory { .. } | FrontendError::MemoryLimit { .. } => ErrorKind::Memory,
        FrontendError::PromptTooLong { .. } => ErrorKind::ContextFull,
        FrontendError::Grammar(_) => ErrorKind::Constraint,
        FrontendError::File { .. } | FrontendError::Output { .. } => ErrorKind::Io,
        _ => ErrorKind::InvalidArgument,
    }
}

fn engine_kind(error: &EngineError) -> ErrorKind {
    match error {
        EngineError::Model(error) => model_kind(error),
        EngineError::Cancelled => ErrorKind::Cancelled,
        EngineError::PromptTooLong { .. } | EngineError::ContextTooLong { .. } => {
            ErrorKind::ContextFull
        }
        EngineError::KvMemoryFull { .. } => ErrorKind::Memory,
        EngineError::Constraint(_) => ErrorKind::Constraint,
        EngineError::NotFinite | EngineError::Changed(_) | EngineError::SavedSession { .. } => {
            ErrorKind::Damaged
        }
        EngineError::NoTokenizer { .. } | EngineError::NoPictures { .. } => ErrorKind::Unsupported,
        EngineError::Io { .. } | EngineError::File { .. } | EngineError::Threads { .. } => {
            ErrorKind::Io
        }
        EngineError::Executor(_) | EngineError::Panic(_) => ErrorKind::Device,
        _ => ErrorKind::InvalidArgument,
    }
}

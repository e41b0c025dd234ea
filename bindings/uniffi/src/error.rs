//! Errors: a case for each kind, with a sentence for people.

use std::fmt;

use triad_bindings::{Code, Failure};

/// The error of a model or an answer, by what a program can do about it.
#[derive(Clone, Debug, uniffi::Error)]
#[uniffi(flat_error)]
pub enum TriadError {
    /// The model does not exist, or can't be fetched.
    NotFound(String),
    /// The model's files are damaged, changed or inconsistent.
    Damaged(String),
    /// Triad does not support this model, or the model does not support this request.
    Unsupported(String),
    /// An argument has an invalid value; the message names it.
    InvalidArgument(String),
    /// The constraint of an answer has a mistake or exceeds a limit, or the answer can't match it.
    Constraint(String),
    /// The prompt is longer than the context.
    ContextFull(String),
    /// There is not enough memory.
    Memory(String),
    /// A processor failed, or refuses the model.
    Device(String),
    /// A file can't be read or written, or a thread can't be started.
    Io(String),
    /// The caller cancelled the operation.
    Cancelled(String),
    /// The chat or session is generating an answer.
    Busy(String),
    /// A bug in Triad.
    Internal(String),
}

impl fmt::Display for TriadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotFound(message)
        | Self::Damaged(message)
        | Self::Unsupported(message)
        | Self::InvalidArgument(message)
        | Self::Constraint(message)
        | Self::ContextFull(message)
        | Self::Memory(message)
        | Self::Device(message)
        | Self::Io(message)
        | Self::Cancelled(message)
        | Self::Busy(message)
        | Self::Internal(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for TriadError {}

impl From<Failure> for TriadError {
    fn from(failure: Failure) -> Self {
        let case = match failure.code() {
            Code::NotFound => Self::NotFound,
            Code::Damaged => Self::Damaged,
            Code::Unsupported => Self::Unsupported,
            Code::InvalidArgument => Self::InvalidArgument,
            Code::Constraint => Self::Constraint,
            Code::ContextFull => Self::ContextFull,
            Code::Memory => Self::Memory,
            Code::Device => Self::Device,
            Code::Io => Self::Io,
            Code::Cancelled => Self::Cancelled,
            Code::Busy => Self::Busy,
            Code::Internal => Self::Internal,
        };
        case(failure.to_string())
    }
}

impl From<triad::Error> for TriadError {
    fn from(error: triad::Error) -> Self {
        Failure::from(error).into()
    }
}

//! Errors as a code for programs and a sentence for people.

use std::fmt;

use triad::ErrorKind;

/// The kind of a failure: those of [`ErrorKind`], and two that only a binding has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The model does not exist, or can't be fetched.
    NotFound,
    /// The model's files are damaged, changed or inconsistent.
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
    /// The chat or session is generating an answer.
    Busy,
    /// A bug in Triad.
    Internal,
}

impl Code {
    /// Returns the name of the code, as programs compare it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::Damaged => "Damaged",
            Self::Unsupported => "Unsupported",
            Self::InvalidArgument => "InvalidArgument",
            Self::Constraint => "Constraint",
            Self::ContextFull => "ContextFull",
            Self::Memory => "Memory",
            Self::Device => "Device",
            Self::Io => "Io",
            Self::Cancelled => "Cancelled",
            Self::Busy => "Busy",
            Self::Internal => "Internal",
        }
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// Creates a failure with its own sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Returns the kind of the failure.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<triad::Error> for Failure {
    fn from(error: triad::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Damaged => Code::Damaged,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::Constraint => Code::Constraint,
            ErrorKind::ContextFull => Code::ContextFull,
            ErrorKind::Memory => Code::Memory,
            ErrorKind::Device => Code::Device,
            ErrorKind::Io => Code::Io,
            ErrorKind::Cancelled => Code::Cancelled,
            _ => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

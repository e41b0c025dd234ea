//! Conversion of errors to codes and texts. No panic unwinds into the caller.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use triad_engine::Error as EngineError;
use triad_frontend::Error as FrontendError;

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriadStatus {
    /// Success.
    Ok = 0,
    /// An argument is NULL, not UTF-8, or out of range.
    InvalidArgument = 1,
    /// The model or a file is invalid, or a run failed.
    Model = 2,
    /// There is not enough memory for the request.
    Memory = 3,
    /// A prompt has more tokens than the context.
    PromptTooLong = 4,
    /// The call was cancelled.
    Cancelled = 5,
    /// Another thread uses the session.
    Busy = 6,
    /// A bug in Triad: a panic, with its message on standard error.
    Internal = 7,
}

/// The reason why a call failed.
pub struct Failure {
    status: TriadStatus,
    text: String,
}

impl Failure {
    /// Creates a failure with its own sentence.
    pub fn new(status: TriadStatus, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// Creates a failure for an invalid argument, from its name and the expected value.
    pub fn argument(name: &str, expected: &str) -> Self {
        Self::new(
            TriadStatus::InvalidArgument,
            format!("{name}: expected {expected}"),
        )
    }
}

impl From<FrontendError> for Failure {
    fn from(error: FrontendError) -> Self {
        let status = match (&error, error.engine()) {
            (FrontendError::Memory { .. } | FrontendError::MemoryLimit { .. }, _) => {
                TriadStatus::Memory
            }
            (FrontendError::PromptTooLong { .. }, _)
            | (_, Some(EngineError::PromptTooLong { .. })) => TriadStatus::PromptTooLong,
            (_, Some(EngineError::Option { .. })) => TriadStatus::InvalidArgument,
            (_, Some(EngineError::Cancelled)) => TriadStatus::Cancelled,
            _ => TriadStatus::Model,
        };
        Self::new(status, with_causes(&error))
    }
}

impl From<triad_grammar::Error> for Failure {
    fn from(error: triad_grammar::Error) -> Self {
        Self::new(TriadStatus::InvalidArgument, with_causes(&error))
    }
}

/// Returns the sentence of an error, with those of its causes.
fn with_causes(error: &dyn Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors already print their cause.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        FrontendError::from(error).into()
    }
}

impl From<triad_model::Error> for Failure {
    fn from(error: triad_model::Error) -> Self {
        FrontendError::from(error).into()
    }
}

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// Converts a text for C, where NUL ends it: tokens may contain NUL.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("there is no NUL left")
}

/// Runs a call, and stores the reason if it fails.
pub fn call(work: impl FnOnce() -> Result<(), Failure>) -> TriadStatus {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return TriadStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            TriadStatus::Internal,
            "triad panicked; the message is on standard error",
        ),
    };
    LATEST.with_borrow_mut(|latest| *latest = c_text(&failure.text));
    failure.status
}

/// Returns a sentence about the calling thread's latest failed call, with the expected value; empty if none failed.
/// Valid until the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn triad_last_error() -> *const c_char {
    LATEST.with_borrow(|latest| latest.as_ptr())
}

/// Returns the version of Triad.
#[unsafe(no_mangle)]
pub extern "C" fn triad_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

//! Errors as codes and texts. Nothing unwinds into the caller.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use triad_engine::Error as EngineError;
use triad_frontend::Error as FrontendError;

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriadStatus {
    /// Done.
    Ok = 0,
    /// An argument is NULL, no UTF-8, or out of its range.
    InvalidArgument = 1,
    /// The model, a file or a run is not as it has to be.
    Model = 2,
    /// What was asked for does not fit into memory.
    Memory = 3,
    /// A prompt has more tokens than the context.
    PromptTooLong = 4,
    /// The call was cancelled.
    Cancelled = 5,
    /// Another thread uses the session.
    Busy = 6,
    /// A mistake in Triad: a panic, whose message is on standard error.
    Internal = 7,
}

/// Why a call failed.
pub struct Failure {
    status: TriadStatus,
    text: String,
}

impl Failure {
    /// A failure with a sentence of its own.
    pub fn new(status: TriadStatus, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// An argument that cannot be used: its name, and what was expected.
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
        let (mut text, mut source) = (error.to_string(), error.source());
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Some errors print their cause themselves.
            if !text.ends_with(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self { status, text }
    }
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

/// A text for C, where NUL ends one: tokens may be of it, too.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("there is no NUL left")
}

/// Runs a call, and keeps why it failed.
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

/// A sentence about the calling thread's latest call that failed, with what was expected; empty if none did. Valid until the
/// next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn triad_last_error() -> *const c_char {
    LATEST.with_borrow(|latest| latest.as_ptr())
}

/// The version of Triad.
#[unsafe(no_mangle)]
pub extern "C" fn triad_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

//! Conversion of errors to exceptions: `ValueError` for an option out of range, `MemoryError` if memory does not
//! suffice, else `triad.Error` or one of its subclasses, with all causes in the message.

use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyMemoryError, PyValueError};
use pyo3::{PyErr, create_exception};
use triad_engine::Error as EngineError;
use triad_frontend::Error as FrontendError;

create_exception!(
    triad,
    TriadError,
    PyException,
    "A model or a file is invalid, or a run failed."
);
create_exception!(
    triad,
    PromptTooLong,
    TriadError,
    "A prompt has more tokens than the context."
);
create_exception!(
    triad,
    Busy,
    TriadError,
    "A session is computing something else."
);

/// Returns the exception for an error of the engine.
pub fn engine(error: EngineError) -> PyErr {
    frontend(error.into())
}

/// Returns the exception for any error that a user may cause.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is called with the error of a failed call"
)]
pub fn frontend(error: FrontendError) -> PyErr {
    let text = chain(&error);
    match (&error, error.engine()) {
        (FrontendError::Memory { .. } | FrontendError::MemoryLimit { .. }, _) => {
            PyMemoryError::new_err(text)
        }
        (FrontendError::PromptTooLong { .. }, _) | (_, Some(EngineError::PromptTooLong { .. })) => {
            PromptTooLong::new_err(text)
        }
        (_, Some(EngineError::Option { .. })) => PyValueError::new_err(text),
        (_, Some(EngineError::Cancelled)) => PyKeyboardInterrupt::new_err("interrupted"),
        _ => TriadError::new_err(text),
    }
}

/// Returns an error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
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

//! Conversion of library errors for the command line.

use triad_engine::Error;

use crate::interrupt::Interrupted;

/// Converts an error of a run: to [`Interrupted`] if it was cancelled, and with the name of the model if the model is
/// the cause.
pub fn run_error(error: impl Into<anyhow::Error>, model: &str) -> anyhow::Error {
    let error = error.into();
    match engine_error(&error) {
        Some(Error::Cancelled) => Interrupted.into(),
        Some(Error::NotFinite) => error.context(model.to_owned()),
        _ => error,
    }
}

/// Returns the engine's error, even if another crate wraps it.
fn engine_error(error: &anyhow::Error) -> Option<&Error> {
    let prepare = || error.downcast_ref().and_then(triad_prepare::Error::engine);
    let evaluate = || error.downcast_ref().and_then(triad_evaluate::Error::engine);
    let frontend = || error.downcast_ref().and_then(triad_frontend::Error::engine);
    let hetero = || error.downcast_ref().and_then(triad_hetero::Error::engine);
    error
        .downcast_ref()
        .or_else(hetero)
        .or_else(prepare)
        .or_else(evaluate)
        .or_else(frontend)
}

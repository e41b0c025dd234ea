//! Sessions that fit into memory, and answers as they come.

use std::io;
use std::sync::Arc;

use triad_engine::{
    Cancel, Error as EngineError, Event, GenerateOptions, Generation, Model, Session, SessionOptions, generate, memory,
};

use crate::error::{Error, Result};
use crate::machine;

/// Opens a session after a check that its memory is there. `chunks_in_flight` is what an executor that it will be given
/// keeps on the way at once, if it will be given one.
///
/// # Errors
/// If the context is longer than the model was made for, or does not fit into memory; as [`Session::new`].
pub fn session(model: &Arc<Model>, options: &SessionOptions, chunks_in_flight: Option<usize>) -> Result<Session> {
    let SessionOptions { context, chunk, kv_format } = *options;
    let description = model.description();
    if context > description.context {
        return Err(EngineError::ContextTooLong { asked: context, longest: description.context }.into());
    }
    let memory = memory::of_session(description, 0, context, chunk, kv_format).total();
    let more = chunks_in_flight.filter(|_| chunk.min(context) > 0);
    let more = more.map_or(0, |chunks| memory::of_executor(description, context, chunk, chunks));
    machine::check_memory(&format!("a context of {context} tokens"), memory + more)?;
    Ok(Session::new(model, options)?)
}

/// Runs `prompt` behind what `session` has seen and generates the answer, of which `on_event` is given each part as it
/// comes. An error of `on_event` ends the answer.
///
/// # Errors
/// As [`generate`], and the error of `on_event`.
pub fn stream(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event) -> io::Result<()>,
) -> Result<Generation> {
    let mut passed_on = Ok(());
    let answer = generate(session, prompt, options, cancel, &mut |event| {
        if passed_on.is_ok() {
            passed_on = on_event(event);
        }
        if passed_on.is_err() {
            cancel.cancel();
        }
    });
    passed_on.map_err(|source| Error::Output { source })?;
    Ok(answer?)
}

//! Engines that fit into memory, and streamed answers.

use std::io;
use std::sync::Arc;

use triad_engine::{
    Cancel, Engine, EngineOptions, Error as EngineError, Event, GenerateOptions, Generation, Model,
    Session, SessionOptions, generate, memory,
};

use crate::error::{Error, Result};
use crate::machine;

/// Starts an engine. First checks that there is memory for a session of the whole context, and for `kv_memory` of keys
/// and values if that is given.
///
/// # Errors
/// If the context is longer than the model was made for, or does not fit into memory; as [`Engine::new`].
pub fn engine(model: &Arc<Model>, options: &EngineOptions) -> Result<Engine> {
    check_memory(model, options, 0)?;
    Ok(Engine::new(model, options)?)
}

/// Checks that there is memory for a session of the whole context, for `kv_memory` of keys and values if that is given,
/// and for `more` bytes.
///
/// # Errors
/// If the context is longer than the model was made for, or does not fit into memory.
pub fn check_memory(model: &Model, options: &EngineOptions, more: usize) -> Result<()> {
    let SessionOptions {
        context,
        chunk,
        kv_format,
    } = options.session;
    let description = model.description();
    if context > description.context {
        return Err(EngineError::ContextTooLong {
            asked: context,
            longest: description.context,
        }
        .into());
    }
    let needed = memory::of_session(description, 0, context, chunk, kv_format);
    // If the engine may hold more keys and values than one session has, these must fit.
    let memory =
        needed.total() - needed.kv_cache + needed.kv_cache.max(options.kv_memory.unwrap_or(0));
    machine::check_memory(&format!("a context of {context} tokens"), memory + more)
}

/// Appends `prompt` to the tokens of `session` and generates the answer. `on_event` is called with each part of the
/// answer as it is generated. An error of `on_event` ends the answer.
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

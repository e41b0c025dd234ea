//! Sessions: conversations, and their logits.

use std::ffi::c_char;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use triad_engine::Session;
use triad_frontend::picture_reader::PictureReader;

use crate::constraint::Compiler;
use crate::model::{TriadCancel, TriadModel, cancel_of};
use crate::pointers::{give, give_values, optional, reference, slice, take_back, text, write};
use crate::status::{Failure, TriadStatus, call};

/// A conversation: the tokens that a model has processed, with their keys and values.
pub struct TriadSession {
    pub(crate) name: Arc<str>,
    pub(crate) pictures: Arc<PictureReader>,
    pub(crate) compiler: Arc<Compiler>,
    session: Mutex<Session>,
}

impl TriadSession {
    fn new(model: &TriadModel, session: Session) -> Self {
        Self {
            name: Arc::clone(&model.name),
            pictures: Arc::clone(&model.pictures),
            compiler: Arc::clone(&model.compiler),
            session: Mutex::new(session),
        }
    }

    /// Locks the session for one call.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        match self.session.try_lock() {
            Ok(session) => Ok(session),
            // After a panic, the session is in a valid state between two steps.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text =
                    "another thread uses this session: expected one at a time, or a fork for each";
                Err(Failure::new(TriadStatus::Busy, text))
            }
        }
    }
}

/// Creates an empty conversation. Free it with triad_session_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_new(
    model: *const TriadModel,
    session: *mut *mut TriadSession,
) -> TriadStatus {
    call(|| {
        let model = reference("model", model)?;
        give(
            "session",
            session,
            TriadSession::new(model, model.engine.session()),
        )
    })
}

/// Frees a conversation.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_free(session: *mut TriadSession) {
    take_back(session);
}

/// Creates a copy of a conversation; memory is shared until one of the two continues. Free it with triad_session_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_fork(
    session: *const TriadSession,
    fork: *mut *mut TriadSession,
) -> TriadStatus {
    call(|| {
        let session = reference("session", session)?;
        let copy = session.lock()?.fork();
        let copy = TriadSession {
            name: Arc::clone(&session.name),
            pictures: Arc::clone(&session.pictures),
            compiler: Arc::clone(&session.compiler),
            session: Mutex::new(copy),
        };
        give("fork", fork, copy)
    })
}

/// Removes all tokens after the first `length` ones.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_truncate(
    session: *const TriadSession,
    length: usize,
) -> TriadStatus {
    call(|| {
        reference("session", session)?.lock()?.truncate(length);
        Ok(())
    })
}

/// Returns the tokens of the conversation. Free them with triad_tokens_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_tokens(
    session: *const TriadSession,
    tokens: *mut *mut u32,
    count: *mut usize,
) -> TriadStatus {
    call(|| {
        let seen = reference("session", session)?.lock()?.tokens().to_vec();
        give_values("tokens", tokens, count, seen)
    })
}

/// Appends tokens and runs them. `cancel` may be NULL. triad_session_logits returns the result.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_prefill(
    session: *const TriadSession,
    tokens: *const u32,
    count: usize,
    cancel: *const TriadCancel,
) -> TriadStatus {
    call(|| {
        let (session, tokens) = (
            reference("session", session)?,
            slice("tokens", tokens, count)?,
        );
        session
            .lock()?
            .prefill(tokens, &cancel_of(cancel), |_| {})?;
        Ok(())
    })
}

/// Appends one token and runs it. `cancel` may be NULL. triad_session_logits returns the result.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_decode(
    session: *const TriadSession,
    token: u32,
    cancel: *const TriadCancel,
) -> TriadStatus {
    call(|| {
        reference("session", session)?
            .lock()?
            .decode(token, &cancel_of(cancel))?;
        Ok(())
    })
}

/// Returns the logits after the last computed token: triad_model_vocab_size floats in the session's own memory, valid
/// until the next call with this session. They are 0 if nothing was computed.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_logits(
    session: *const TriadSession,
    logits: *mut *const f32,
    count: *mut usize,
) -> TriadStatus {
    call(|| {
        let session = reference("session", session)?.lock()?;
        write("count", count, session.logits().len())?;
        write("logits", logits, session.logits().as_ptr())
    })
}

/// Writes a conversation to a file, for triad_session_restore.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_save(
    session: *const TriadSession,
    path: *const c_char,
) -> TriadStatus {
    call(|| {
        Ok(reference("session", session)?
            .lock()?
            .save(Path::new(text("path", path)?))?)
    })
}

/// Reads the conversation from a file that triad_session_save wrote with the same model. Free it with
/// triad_session_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_restore(
    model: *const TriadModel,
    path: *const c_char,
    session: *mut *mut TriadSession,
) -> TriadStatus {
    call(|| {
        let model = reference("model", model)?;
        let restored = model.engine.restore(Path::new(text("path", path)?))?;
        let restored = TriadSession::new(model, restored);
        give("session", session, restored)
    })
}

/// Returns the maximum number of tokens of a conversation. 0 if `session` is NULL or in use.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_context(session: *const TriadSession) -> usize {
    optional(session)
        .and_then(|session| session.lock().ok())
        .map_or(0, |session| session.context())
}

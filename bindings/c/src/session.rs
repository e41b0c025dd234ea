//! Sessions: conversations, and their logits.

use std::ffi::c_char;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use triad_engine::Session;

use crate::model::{TriadCancel, TriadModel, cancel_of};
use crate::pointers::{give, give_values, optional, reference, slice, take_back, text, write};
use crate::status::{Failure, TriadStatus, call};

/// One conversation: the tokens that a model has seen, with their keys and values.
pub struct TriadSession {
    pub(crate) name: Arc<str>,
    session: Mutex<Session>,
}

impl TriadSession {
    fn new(name: &Arc<str>, session: Session) -> Self {
        Self {
            name: Arc::clone(name),
            session: Mutex::new(session),
        }
    }

    /// The session for one call.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        match self.session.try_lock() {
            Ok(session) => Ok(session),
            // A call that panicked left it as it was between two steps.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text =
                    "another thread uses this session: expected one at a time, or a fork for each";
                Err(Failure::new(TriadStatus::Busy, text))
            }
        }
    }
}

/// An empty conversation. Free it with triad_session_free.
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
            TriadSession::new(&model.name, model.engine.session()),
        )
    })
}

/// Frees a conversation.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_free(session: *mut TriadSession) {
    take_back(session);
}

/// Another conversation that has seen the same; memory is shared until one of the two goes on. Free it with
/// triad_session_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_fork(
    session: *const TriadSession,
    fork: *mut *mut TriadSession,
) -> TriadStatus {
    call(|| {
        let session = reference("session", session)?;
        let copy = session.lock()?.fork();
        give("fork", fork, TriadSession::new(&session.name, copy))
    })
}

/// Forgets everything behind the first `length` tokens.
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

/// The tokens that were seen. Free them with triad_tokens_free.
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

/// Runs tokens behind those that were seen. `cancel` may be NULL. triad_session_logits has the result.
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

/// Runs one token behind those that were seen. `cancel` may be NULL. triad_session_logits has the result.
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

/// Logits that follow the last token that was computed: triad_model_vocab_size floats in the session's own memory, valid
/// until the next call with this session. Where nothing was computed they are 0.
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

/// Writes what a conversation has seen to a file, for triad_session_restore.
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

/// The conversation in a file that triad_session_save wrote with the same model. Free it with triad_session_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_restore(
    model: *const TriadModel,
    path: *const c_char,
    session: *mut *mut TriadSession,
) -> TriadStatus {
    call(|| {
        let model = reference("model", model)?;
        let restored = model.engine.restore(Path::new(text("path", path)?))?;
        give("session", session, TriadSession::new(&model.name, restored))
    })
}

/// Tokens that a conversation holds, at most. 0 if `session` is NULL or in use.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_context(session: *const TriadSession) -> usize {
    optional(session)
        .and_then(|session| session.lock().ok())
        .map_or(0, |session| session.context())
}

//! Exclusive use of a session: it computes one thing at a time, possibly on another thread.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::PyResult;
use triad_engine::Session;

use crate::error::Busy;

/// The place of a session while it is idle; empty otherwise.
#[derive(Clone)]
pub struct Home(Arc<Mutex<Option<Session>>>);

/// A session in use; returned to its place when dropped.
pub struct Lent {
    home: Home,
    session: Option<Session>,
}

impl Home {
    /// Creates a place with a session in it.
    pub fn new(session: Session) -> Self {
        Self(Arc::new(Mutex::new(Some(session))))
    }

    /// Takes the session for a computation.
    ///
    /// # Errors
    /// [`Busy`] if the session is in use.
    pub fn lend(&self) -> PyResult<Lent> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = session.ok_or_else(|| {
            Busy::new_err("this session is computing: wait for its answer, cancel its stream, or use a fork of it")
        })?;
        Ok(Lent {
            home: self.clone(),
            session: Some(session),
        })
    }
}

impl Lent {
    /// Returns the session.
    pub fn get(&mut self) -> &mut Session {
        self.session
            .as_mut()
            .expect("the session is present until this is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.home.0.lock().unwrap_or_else(PoisonError::into_inner) = self.session.take();
    }
}

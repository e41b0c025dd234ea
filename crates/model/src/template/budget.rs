//! The memory that a rendering may still use.
//!
//! Data that values share is paid for once; its text every time it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python;
use super::steps::{Clock, Place};
use super::values;

/// Bytes of a list element, in addition to its text, and of a map entry.
pub(super) const ELEMENT: usize = 32;
pub(super) const ENTRY: usize = 96;
/// The reason for which a rendering is refused.
const TOO_MUCH: &str = "it builds more text than any conversation needs";

/// The bytes that may still be built, shared by all users of the budget, and the clock.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
    pub(super) clock: Clock,
}

impl Budget {
    /// Creates a budget of `bytes`, with the time limit of `clock`.
    pub(super) fn new(bytes: usize, clock: Clock) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(bytes)),
            clock,
        }
    }

    /// Pays for `bytes`.
    pub(super) fn spend(&self, bytes: usize) -> Result<(), Error> {
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            });
        spent.map(drop).map_err(|_| too_much())
    }

    /// Refuses bytes that exceed the budget.
    pub(super) fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.left.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(too_much())
        }
    }

    /// Refuses lists of about `count` elements that exceed the budget.
    pub(super) fn check_list(&self, count: usize) -> Result<(), Error> {
        self.clock.check()?;
        self.check(ELEMENT.saturating_mul(count.saturating_add(1)))
    }

    /// Refuses a text that exceeds the budget, before all of it is written.
    pub(super) fn check_text(&self, text: &str) -> Result<(), Error> {
        self.clock.check()?;
        self.check(text.len())
    }

    /// Returns `list(value)`; the letters of a text have to be within the budget.
    pub(super) fn items(&self, value: &Value) -> Result<Vec<Value>, Error> {
        if let Some(text) = value.as_str() {
            self.check_list(text.len())?;
        }
        values::items(value)
    }

    /// Pays for the text of `value`, and returns it. The text of a list that contains another one many times is far
    /// longer than its memory: no more is written than the budget allows.
    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        self.clock.check()?;
        python::text(value, &|bytes| self.spend(bytes))
    }

    /// Pays for the text of `value` as Python's `repr` writes it, and returns it.
    pub(super) fn literal(&self, value: &Value) -> Result<String, Error> {
        self.clock.check()?;
        python::literal(value, &|bytes| self.spend(bytes))
    }

    /// Pays for a value that was built.
    pub(super) fn pay(&self, value: Value) -> Result<Value, Error> {
        let value = self.hold(value)?;
        let length = |value: Value| ELEMENT + value.as_str().map_or(0, str::len);
        let bytes = match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.map(length).sum(),
            ValueKind::Map => ENTRY * value.len().unwrap_or(0),
            _ => 0,
        };
        self.spend(bytes)?;
        Ok(value)
    }

    /// Returns a value that was built and is paid for, if it may be held.
    pub(super) fn hold(&self, value: Value) -> Result<Value, Error> {
        self.clock.hold(&value, Place::Any)?;
        Ok(value)
    }
}

fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, TOO_MUCH)
}

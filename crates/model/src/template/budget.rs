//! The memory that a rendering may still use.
//!
//! Data that values share is paid for once; its text every time it is written.

use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python;
use super::steps::{Clock, Place};

/// Bytes of a list element, in addition to its text, and of a map entry.
pub(super) const ELEMENT: usize = 32;
pub(super) const ENTRY: usize = 96;
/// The reason for which a rendering, or a template's constants, are refused.
pub(super) const TOO_MUCH: &str = "it builds more text than any conversation needs";

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

    /// Pays for the text of `value`, and returns it. The text of a list that contains another one many times is far
    /// longer than its memory: no more is written than the budget allows.
    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        self.clock.check()?;
        let mut text = Text {
            text: String::new(),
            budget: self,
        };
        python::write(value, &mut text).map_err(|_| too_much())?;
        Ok(text.text)
    }

    /// Pays for a value that was built. Lazy values are computed now: chains of them would be as deep as they are long.
    pub(super) fn pay(&self, mut value: Value) -> Result<Value, Error> {
        self.clock.check()?;
        if value.kind() == ValueKind::Iterable {
            value = self.list(value.try_iter()?)?;
        }
        self.clock.hold(&value, Place::Any)?;
        let bytes = match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::Seq => {
                let length = |value: Value| ELEMENT + value.as_str().map_or(0, str::len);
                value.try_iter()?.map(length).sum()
            }
            ValueKind::Map => ENTRY * value.len().unwrap_or(0),
            _ => 0,
        };
        self.spend(bytes)?;
        Ok(value)
    }

    /// Returns the result of an operator, which has already paid for it, as a list if it is iterable.
    pub(super) fn pay_list(&self, value: Value) -> Result<Value, Error> {
        self.clock.check()?;
        let value = if value.kind() == ValueKind::Iterable {
            self.list(value.try_iter()?)?
        } else {
            value
        };
        self.clock.hold(&value, Place::Any)?;
        Ok(value)
    }

    /// Returns a list of `values`, as far as the budget allows.
    fn list(&self, values: impl Iterator<Item = Value>) -> Result<Value, Error> {
        let mut list = Vec::new();
        for value in values {
            self.check(ELEMENT.saturating_mul(list.len()))?;
            list.push(value);
        }
        Ok(Value::from(list))
    }
}

fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, TOO_MUCH)
}

/// Returns the number of elements of a list or map; 0 for anything else.
pub(super) fn elements(value: &Value) -> usize {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => value.len().unwrap_or(0),
        _ => 0,
    }
}

/// Returns the bytes of a text or list that is multiplied by a number, in any order.
pub(super) fn repeated(a: &Value, b: &Value) -> usize {
    let times = |value: &Value, count: &Value| match (value.as_str(), count.as_usize()) {
        (Some(text), Some(count)) => text.len().saturating_mul(count),
        (None, Some(count)) => ELEMENT
            .saturating_mul(elements(value))
            .saturating_mul(count),
        _ => 0,
    };
    times(a, b).max(times(b, a))
}

/// Text that is paid for as it is written.
struct Text<'a> {
    text: String,
    budget: &'a Budget,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.budget.spend(text.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}

/// Does the same as [`Text`] for serializers.
pub(super) struct Bytes {
    pub(super) bytes: Vec<u8>,
    pub(super) budget: Budget,
}

impl io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.budget.spend(bytes.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

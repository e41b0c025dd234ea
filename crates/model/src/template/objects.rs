//! Python's objects that the engine has not: ranges, views of dictionaries, iterators, methods, and what `cycler`,
//! `joiner` and `groupby` return.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

/// `range(start, stop, step)`, of at most `u32::MAX` numbers.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
}

impl Range {
    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        let (start, stop, step) = (
            i128::from(self.start),
            i128::from(self.stop),
            i128::from(self.step),
        );
        let distance = if step > 0 { stop - start } else { start - stop };
        let length = (distance + step.abs() - 1).div_euclid(step.abs().max(1));
        usize::try_from(length.max(0)).unwrap_or(usize::MAX)
    }

    /// Returns the number at `place`, which is below the length.
    pub(super) fn at(&self, place: usize) -> i64 {
        // The result fits, the product may not.
        let distance = self.step.wrapping_mul(place as i64);
        self.start.wrapping_add(distance)
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = key.as_usize().filter(|place| *place < self.len())?;
        Some(self.at(place).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }
}

/// `dict.keys()`, `dict.values()` or `dict.items()`. Dictionaries do not change, so that a copy is the same.
#[derive(Debug)]
pub(super) struct View {
    /// The name of the type: `dict_keys`, `dict_values` or `dict_items`.
    pub(super) name: &'static str,
    pub(super) items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|view| Box::new(view.items.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// A generator or another iterator, which can be read once.
#[derive(Debug)]
pub(super) struct Once(Mutex<Option<Vec<Value>>>);

impl Once {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(Some(items))))
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// If they were read before: Python would go on after the last element that was read.
    pub(super) fn take(&self) -> Result<Vec<Value>, Error> {
        let taken = self.0.lock().ok().and_then(|mut items| items.take());
        taken.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                "an iterator that is read twice is not supported",
            )
        })
    }
}

impl Object for Once {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// Lists the elements without reading them, so that they are weighed.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let items = self.0.lock().ok().and_then(|items| items.clone());
        Enumerator::Values(items.unwrap_or_default())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// A method that is not called: true and defined, and nothing else.
#[derive(Debug)]
pub(super) struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// A tuple of `groupby`, with names for its two elements.
#[derive(Debug)]
pub(super) struct Group(pub(super) [Value; 2]);

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// `cycler(…)`, of values that are no lists.
#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    place: AtomicUsize,
}

impl Cycler {
    pub(super) fn value(items: Vec<Value>) -> Value {
        let place = AtomicUsize::new(0);
        Value::from_object(Self { items, place })
    }

    pub(super) fn current(&self) -> Value {
        let place = self.place.load(Ordering::Relaxed);
        self.items.get(place).cloned().unwrap_or_default()
    }

    /// Returns the current value, and goes on to the next one.
    pub(super) fn next(&self) -> Value {
        let current = self.current();
        let place = self.place.load(Ordering::Relaxed) + 1;
        self.place
            .store(place % self.items.len().max(1), Ordering::Relaxed);
        current
    }

    pub(super) fn reset(&self) {
        self.place.store(0, Ordering::Relaxed);
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// `joiner(…)`: returns nothing at the first call, then the separator.
#[derive(Debug)]
pub(super) struct Joiner {
    separator: Value,
    is_used: AtomicBool,
}

impl Joiner {
    pub(super) fn value(separator: Value) -> Value {
        let is_used = AtomicBool::new(false);
        Value::from_object(Self { separator, is_used })
    }
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        if !arguments.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "joiner: expected no argument",
            ));
        }
        Ok(match self.is_used.swap(true, Ordering::Relaxed) {
            true => self.separator.clone(),
            false => "".into(),
        })
    }
}

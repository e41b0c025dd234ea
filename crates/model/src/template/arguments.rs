//! Arguments of filters, methods and functions, by their places or names.

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use super::values::{integer, refused};

/// The arguments of a call.
pub(super) struct Arguments<'a> {
    of: &'a str,
    names: &'a [&'a str],
    values: Vec<Option<Value>>,
}

/// Returns the arguments by their places, and those by their names.
pub(super) fn split(given: &[Value]) -> (&[Value], Option<Kwargs>) {
    match given.split_last() {
        Some((last, places)) if last.is_kwargs() => (places, Kwargs::try_from(last.clone()).ok()),
        _ => (given, None),
    }
}

impl<'a> Arguments<'a> {
    /// Reads the arguments `given` to `of`, which has parameters with these names.
    ///
    /// # Errors
    /// For too many arguments, unknown names, and names that are given twice.
    pub(super) fn new(of: &'a str, given: &[Value], names: &'a [&'a str]) -> Result<Self, Error> {
        let (places, named) = split(given);
        if places.len() > names.len() {
            let most = names.len();
            return Err(refused(format!("{of}: expected at most {most} arguments")));
        }
        let mut values: Vec<Option<Value>> = places.iter().cloned().map(Some).collect();
        values.resize(names.len(), None);
        for name in named.iter().flat_map(Kwargs::args) {
            let place = names.iter().position(|other| *other == name);
            let place = place.filter(|place| values[*place].is_none());
            let Some(place) = place else {
                return Err(refused(format!(
                    "{of}: the argument {name} is unknown, or given twice"
                )));
            };
            values[place] = named
                .as_ref()
                .and_then(|named| named.peek::<Value>(name).ok());
        }
        Ok(Self { of, names, values })
    }

    /// Returns an argument, if it is given.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let place = self.names.iter().position(|other| *other == name)?;
        self.values[place].as_ref()
    }

    /// Returns an argument.
    ///
    /// # Errors
    /// If it is not given.
    pub(super) fn need(&self, name: &str) -> Result<&Value, Error> {
        self.get(name)
            .ok_or_else(|| refused(format!("{}: the argument {name} is missing", self.of)))
    }

    /// Returns whether an argument is given and true.
    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(Value::is_true)
    }

    /// Returns an argument that is an integer, or `default` if it is not given.
    pub(super) fn integer(&self, name: &str, default: i64) -> Result<i64, Error> {
        self.get(name)
            .map_or(Ok(default), |value| integer(value, self.of))
    }
}

//! Typed access to the fields of an untrusted `config.json`.

use serde_json::{Map, Value};

use super::{malformed, missing, unsupported};
use crate::error::Result;

/// One JSON object of a configuration. `null` always counts as absent, since `transformers` writes absent values so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config<'a> {
    fields: &'a Map<String, Value>,
    /// Path of this object in the file, with a dot at its end unless it is the file's own object.
    place: &'a str,
}

impl<'a> Config<'a> {
    /// Wraps the file's outermost value.
    pub fn new(value: &'a Value) -> Result<Self> {
        let fields = value
            .as_object()
            .ok_or_else(|| malformed("config.json is not a JSON object"))?;
        Ok(Self { fields, place: "" })
    }

    /// Returns the object under `key`, for whose fields errors use `place` + name.
    pub fn object(&self, key: &str, place: &'a str) -> Result<Option<Self>> {
        self.get(key, "an object", Value::as_object)
            .map(|fields| fields.map(|fields| Self { fields, place }))
    }

    /// Returns the path of this object in the file, with a dot at its end unless it is the file's own object.
    pub fn place(&self) -> &'a str {
        self.place
    }

    /// Returns whether this object has no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns the names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.fields.keys().map(String::as_str)
    }

    /// Returns whether the file has `key`, even if it is null.
    pub fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    /// Returns the value under `key`, without conversion.
    pub fn raw(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.raw(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| {
            malformed(format!(
                "config.json: `{}{key}` is {}, expected {expected}",
                self.place,
                brief(value)
            ))
        })
    }

    /// Returns an integer from 1 to `most`.
    pub fn size(&self, key: &str, most: usize) -> Result<Option<usize>> {
        self.get(key, &format!("an integer from 1 to {most}"), |value| {
            value
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .filter(|size| (1..=most).contains(size))
        })
    }

    /// Returns a non-negative integer.
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a non-negative integer", |value| {
            value.as_u64().and_then(|count| usize::try_from(count).ok())
        })
    }

    /// Returns a finite number above 0.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number above 0", |value| {
            value
                .as_f64()
                .filter(|number| number.is_finite() && *number > 0.0)
        })
    }

    /// Returns a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    /// Returns a string.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.get(key, "a string", Value::as_str)
    }

    /// Returns an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.get(key, "an array of strings", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// Returns an array of non-negative integers.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.get(key, "an array of non-negative integers", |value| {
            let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
            value.as_array()?.iter().map(count).collect()
        })
    }

    /// Returns an array of zeros and ones, as `transformers` writes flags of blocks.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.get(key, "an array of 0 and 1", |value| {
            let flag = |value: &Value| match value.as_u64() {
                Some(0) => Some(false),
                Some(1) => Some(true),
                _ => value.as_bool(),
            };
            value.as_array()?.iter().map(flag).collect()
        })
    }

    /// Returns an array of exactly `count` finite numbers above 0.
    pub fn factors(&self, key: &str, count: usize) -> Result<Vec<f32>> {
        let expected = format!("an array of {count} numbers above 0");
        let factors = self.get(key, &expected, |value| {
            let values = value.as_array().filter(|values| values.len() == count)?;
            let factor = |value: &Value| {
                value
                    .as_f64()
                    .map(|factor| factor as f32)
                    .filter(|&f| f.is_finite() && f > 0.0)
            };
            values.iter().map(factor).collect::<Option<Vec<f32>>>()
        })?;
        self.required(key, factors)
    }

    /// Refuses fields that would change the computation, unless null, false, 0 or empty.
    pub fn refuse(&self, fields: &[&str]) -> Result<()> {
        for field in fields {
            let neutral = |value: &Value| match value {
                Value::Object(fields) => fields.is_empty(),
                Value::Array(values) => values.is_empty(),
                value => value.as_bool() == Some(false) || value.as_f64() == Some(0.0),
            };
            if self.raw(field).is_some_and(|value| !neutral(value)) {
                return Err(unsupported(format!(
                    "config.json sets `{field}`, which Triad does not support"
                )));
            }
        }
        Ok(())
    }

    /// Returns `value`, or the error that `key` is missing.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| missing(format!("config.json has no field `{}{key}`", self.place)))
    }
}

/// Formats a value in a few words, however large it is.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("an array of {} values", values.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().count() > 40 => {
            format!("\"{}…\"", text.chars().take(40).collect::<String>())
        }
        short => short.to_string(),
    }
}

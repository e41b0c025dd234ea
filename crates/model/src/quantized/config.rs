//! The fields of `config.json` about quantization.

use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Format;

/// The fields, first that of `transformers`, then that of MLX.
pub(super) const FIELDS: [&str; 2] = ["quantization_config", "quantization"];
/// Largest size of a group or block: more than any matrix has columns.
const MAX_GROUP: i64 = 1 << 24;

/// The fields of one JSON object.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: String,
}

impl<'a> Fields<'a> {
    /// Wraps an object; returns `None` if `value` is null.
    pub(super) fn new(value: &'a Value, place: String) -> Result<Option<Self>> {
        match value {
            Value::Null => Ok(None),
            Value::Object(map) => Ok(Some(Self { map, place })),
            _ => Err(malformed(format!(
                "config.json: `{place}` is {}, expected an object",
                brief(value)
            ))),
        }
    }

    /// Wraps the object in the field `key` of a file; returns `None` if it is absent or empty.
    pub(super) fn of_file(config: &'a Value, key: &str) -> Result<Option<Self>> {
        match config.get(key) {
            Some(value) => Ok(Self::new(value, key.to_owned())?.filter(|it| !it.map.is_empty())),
            None => Ok(None),
        }
    }

    /// Returns whether both have the same fields.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.map == other.map
    }

    /// Returns the path of the field `key`, for errors.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.place)
    }

    /// Returns the names of all fields that are not null.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        let fields = self.map.iter().filter(|(_, value)| !value.is_null());
        fields.map(|(key, _)| key.as_str())
    }

    /// Returns whether there is a field `key`, even if it is null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Returns the value of the field `key`; `None` if it is null.
    pub(super) fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
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
        convert(value)
            .map(Some)
            .ok_or_else(|| self.wrong(key, expected))
    }

    /// Creates the error that the field has another value than `expected`.
    pub(super) fn wrong(&self, key: &str, expected: &str) -> Error {
        malformed(format!(
            "config.json: `{}` is {}, expected {expected}",
            self.path(key),
            self.raw(key).map_or("absent".to_owned(), brief)
        ))
    }

    /// Creates the error that Triad does not follow the field's value.
    pub(super) fn unsupported(&self, key: &str, expected: &str) -> Error {
        let message = format!(
            "config.json: `{}` is {}, which Triad does not run; expected {expected}",
            self.path(key),
            self.raw(key).map_or("absent".to_owned(), brief)
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>> {
        match self.raw(key) {
            Some(value) => Self::new(value, self.path(key)),
            None => Ok(None),
        }
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.get(key, "a string", Value::as_str)
    }

    /// Returns an array of strings, or of arrays of strings, as one list.
    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.get(key, "an array of strings", |value| {
            let mut strings = Vec::new();
            for value in value.as_array()? {
                match value {
                    Value::Array(values) => {
                        for value in values {
                            strings.push(value.as_str()?);
                        }
                    }
                    value => strings.push(value.as_str()?),
                }
            }
            Some(strings)
        })
    }

    /// Returns one of some integers.
    pub(super) fn one_of(&self, key: &str, known: &[i64]) -> Result<Option<i64>> {
        let Some(number) = self.get(key, "an integer", Value::as_i64)? else {
            return Ok(None);
        };
        if known.contains(&number) {
            return Ok(Some(number));
        }
        let known: Vec<_> = known.iter().map(i64::to_string).collect();
        Err(self.unsupported(key, &known.join(" or ")))
    }

    /// Checks that a string, if it is there, is one of some, in any case.
    pub(super) fn word(&self, key: &str, known: &[&str]) -> Result<Option<String>> {
        let Some(word) = self.string(key)?.map(str::to_lowercase) else {
            return Ok(None);
        };
        if known.contains(&word.as_str()) {
            return Ok(Some(word));
        }
        Err(self.unsupported(key, &known.join(" or ")))
    }

    /// Returns the columns of a group; `None` if one group has all columns of a row (−1).
    pub(super) fn group_size(&self, key: &str) -> Result<Option<Option<usize>>> {
        self.get(key, "a number of columns, or -1", |value| {
            match value.as_i64()? {
                -1 => Some(None),
                size @ 1..=MAX_GROUP => Some(Some(size as usize)),
                _ => None,
            }
        })
    }

    /// Returns the rows and columns of a block.
    pub(super) fn block(&self, key: &str) -> Result<Option<[usize; 2]>> {
        self.get(key, "two numbers of rows and columns", |value| {
            let size = |value: &Value| {
                let size = value
                    .as_i64()
                    .filter(|size| (1..=MAX_GROUP).contains(size))?;
                Some(size as usize)
            };
            match &value.as_array()?[..] {
                [rows, columns] => Some([size(rows)?, size(columns)?]),
                _ => None,
            }
        })
    }

    /// Refuses fields that are neither in `followed` nor in `neutral`, unless they are null, false, 0 or empty.
    pub(super) fn refuse_others(&self, followed: &[&str], neutral: &[&str]) -> Result<()> {
        for key in self.keys() {
            let is_known = followed.contains(&key) || neutral.contains(&key);
            if !is_known && !self.raw(key).is_none_or(is_neutral) {
                return Err(self.unsupported(key, "no such field"));
            }
        }
        Ok(())
    }

    /// Refuses a field unless it is null, false, 0 or empty.
    pub(super) fn refuse(&self, key: &str) -> Result<()> {
        match self.raw(key) {
            Some(value) if !is_neutral(value) => Err(self.unsupported(key, "none")),
            _ => Ok(()),
        }
    }
}

fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(is_set) => !is_set,
        Value::Number(number) => number.as_f64() == Some(0.0),
    }
}

pub(super) fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
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

/// Returns the type of floats in which the model computes; F32 if the file does not state it.
pub(super) fn dtype(config: &Value) -> Result<Format> {
    for part in [Some(config), config.get("text_config")] {
        for key in ["dtype", "torch_dtype"] {
            match part.and_then(|part| part.get(key)) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    return to_format(value.as_str()).ok_or_else(|| unknown_dtype(key, value));
                }
            }
        }
    }
    Ok(Format::F32)
}

fn unknown_dtype(key: &str, value: &Value) -> Error {
    let message = format!(
        "config.json: `{key}` is {}, expected float32, float16 or bfloat16",
        brief(value)
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns the format that `torch` calls `name`.
pub(super) fn to_format(name: Option<&str>) -> Option<Format> {
    match name?.trim_start_matches("torch.") {
        "float32" => Some(Format::F32),
        "float16" => Some(Format::F16),
        "bfloat16" => Some(Format::Bf16),
        _ => None,
    }
}

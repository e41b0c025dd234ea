//! The key-value pairs at the head of a GGUF file.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};

/// One metadata value. Integers of every width are widened, floats to f64.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Signed or unsigned, 8 to 64 bits wide (`u64` beyond `i64::MAX` included).
    Integer(i128),
    /// 32 or 64 bits wide.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Integers, all of one width.
    Integers(Vec<i64>),
    /// Floats, all of one width.
    Floats(Vec<f32>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Strings.
    Strings(Vec<String>),
}

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of booleans",
            Self::Strings(_) => "an array of strings",
        }
    }
}

/// All metadata of a GGUF file, by key. A getter returns `None` for an absent key and an error that
/// names the key for one of another type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Adds or replaces one pair; returns the previous value, if there was one.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.values.insert(key.into(), value)
    }

    /// Returns the value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Returns every key and value, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Refuses the names of fields of a model that have capital letters. GGUF's names have none, so that such a field would be
    /// taken as absent. Fields that other programs add may have any name.
    ///
    /// # Errors
    /// If there is such a field. The error names it, and its name in small letters.
    pub fn check_names(&self) -> Result<()> {
        let architecture = self.string("general.architecture")?.unwrap_or_default();
        let architecture = format!("{}.", architecture.to_ascii_lowercase());
        let read = [
            "general.alignment",
            "general.architecture",
            "general.sampling.",
            "general.type",
            "tokenizer.ggml.",
            "clip.",
            &architecture,
        ];
        let is_wrong = |key: &&String| {
            let small = key.to_ascii_lowercase();
            small != **key
                && (small == "tokenizer.chat_template"
                    || read.iter().any(|start| small.starts_with(start)))
        };
        self.values.keys().find(is_wrong).map_or(Ok(()), |key| {
            let small = key.to_ascii_lowercase();
            let message = format!("metadata field `{key}` has capital letters, expected `{small}`");
            Err(Error::new(ErrorKind::Malformed, message))
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| {
            let message = format!(
                "metadata field `{key}` is {}, expected {expected}",
                value.type_name()
            );
            Error::new(ErrorKind::Malformed, message)
        })
    }

    /// Returns a non-negative integer.
    pub fn integer(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |value| match value {
            Value::Integer(integer) => usize::try_from(*integer).ok(),
            _ => None,
        })
    }

    /// Returns a finite float (also from an integer).
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        let float = self.typed(key, "a float", |value| match value {
            Value::Float(float) => Some(*float as f32),
            Value::Integer(integer) => Some(*integer as f32),
            _ => None,
        })?;
        match float {
            Some(float) if !float.is_finite() => {
                let message = format!(
                    "metadata field `{key}` is {float} as a 32-bit float, expected a finite number"
                );
                Err(Error::new(ErrorKind::Malformed, message))
            }
            float => Ok(float),
        }
    }

    /// Returns a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(bool) => Some(*bool),
            _ => None,
        })
    }

    /// Returns a string.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(string) => Some(string.as_str()),
            _ => None,
        })
    }

    /// Returns an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Strings(strings) => Some(strings.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Floats(floats) => Some(floats.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of integers.
    pub fn integers(&self, key: &str) -> Result<Option<&[i64]>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Integers(integers) => Some(integers.as_slice()),
            _ => None,
        })
    }
}

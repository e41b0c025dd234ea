//! Fields of a JSON object, each of which is used or refused.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The fields of an object that have not been read yet. `null` stands for an absent field, as in `transformers`.
pub(super) struct Fields {
    file: PathBuf,
    /// The path of the object in the file, with a dot at its end.
    prefix: String,
    fields: Map<String, Value>,
}

impl Fields {
    pub(super) fn new(file: &Path, fields: Map<String, Value>) -> Self {
        Self {
            file: file.to_owned(),
            prefix: String::new(),
            fields,
        }
    }

    /// Returns an error about the field `name`.
    pub(super) fn error(&self, name: &str, problem: impl Into<String>) -> Error {
        Error::Field {
            file: self.file.clone(),
            field: format!("{}{name}", self.prefix),
            problem: problem.into(),
        }
    }

    /// Returns an error about the whole file.
    pub(super) fn unsupported(&self, problem: impl Into<String>) -> Error {
        Error::Unsupported {
            file: self.file.clone(),
            problem: problem.into(),
        }
    }

    /// Takes the field `name`, converted by `convert`; `expected` describes what it accepts.
    pub(super) fn take<T>(
        &mut self,
        name: &str,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match convert(&value) {
                Some(value) => Ok(Some(value)),
                None => Err(self.error(name, format!("is {}, expected {expected}", shown(&value)))),
            },
        }
    }

    pub(super) fn bool(&mut self, name: &str, default: bool) -> Result<bool> {
        let value = self.take(name, "true or false", Value::as_bool)?;
        Ok(value.unwrap_or(default))
    }

    /// Takes a field whose only supported value is `only`.
    pub(super) fn only_bool(&mut self, name: &str, only: bool) -> Result<()> {
        if self.bool(name, only)? == only {
            return Ok(());
        }
        Err(self.error(name, format!("is {}, expected {only}", !only)))
    }

    /// Takes a number of pixels, rows or tiles: an integer from 1 to `most`.
    pub(super) fn count(&mut self, name: &str, most: u32) -> Result<Option<u32>> {
        self.take(name, &format!("an integer from 1 to {most}"), |value| {
            let count = u32::try_from(value.as_u64()?).ok()?;
            (1..=most).contains(&count).then_some(count)
        })
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.take(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a finite number above 0.
    pub(super) fn positive(&mut self, name: &str) -> Result<Option<f64>> {
        self.take(name, "a number above 0", |value| {
            value
                .as_f64()
                .filter(|number| *number > 0.0 && number.is_finite())
        })
    }

    /// Takes a number for each channel; one number stands for all of them.
    pub(super) fn channels(&mut self, name: &str) -> Result<Option<[f32; 3]>> {
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        self.take(name, "a number or a list of 3", |value| match value {
            Value::Array(values) => match &values[..] {
                [red, green, blue] => Some([number(red)?, number(green)?, number(blue)?]),
                _ => None,
            },
            value => number(value).map(|number| [number; 3]),
        })
    }

    /// Takes an object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Self>> {
        let fields = self.take(name, "an object", |value| value.as_object().cloned())?;
        Ok(fields.map(|fields| Self {
            file: self.file.clone(),
            prefix: format!("{}{name}.", self.prefix),
            fields,
        }))
    }

    /// Drops fields that say nothing about the content of pictures.
    pub(super) fn drop(&mut self, names: &[&str]) {
        for name in names {
            self.fields.remove(*name);
        }
    }

    /// Refuses fields that have not been read.
    pub(super) fn finish(&self) -> Result<()> {
        let left = self.fields.iter().find(|(_, value)| !value.is_null());
        match left {
            None => Ok(()),
            Some((name, value)) => {
                Err(self.error(name, format!("is {}, which is not supported", shown(value))))
            }
        }
    }
}

/// Returns the start of a value as JSON.
fn shown(value: &Value) -> String {
    const MAX_CHARACTERS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The files of one model, as far as they say something about pictures.
pub(super) struct Files {
    pub(super) config: Fields,
    /// The image processor's fields.
    pub(super) image: Fields,
    /// Fields of the processor that puts pictures and text together.
    pub(super) processor: Fields,
}

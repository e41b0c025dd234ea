//! Reads data files: one JSON object per line, or plain text. Every error names the file, the line and the field.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Maximum bytes of a file; longer files are refused unread: no evaluation would end, and a device file never does.
const MAX_BYTES: u64 = 256 << 20;

/// An error in a data file.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {message}", file.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
pub struct DataError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: Option<usize>,
    /// The problem and the expected content.
    pub message: String,
    /// The system's error, if it is the reason.
    pub source: Option<std::io::Error>,
}

impl DataError {
    pub(super) fn new(file: &Path, line: Option<usize>, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line,
            message: message.into(),
            source: None,
        }
    }

    pub(super) fn caused_by(self, source: std::io::Error) -> Self {
        Self {
            source: Some(source),
            ..self
        }
    }
}

/// Returns the text of a file.
pub(super) fn text(path: &Path) -> Result<String, DataError> {
    let error = |message: String| DataError::new(path, None, message);
    let cannot_read = |reason| error("cannot read the data file".into()).caused_by(reason);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot_read)?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot_read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(error(format!(
            "the data file is longer than {} MiB",
            MAX_BYTES >> 20
        )));
    }
    let text = String::from_utf8(bytes).map_err(|wrong| {
        error(format!(
            "not UTF-8 text: byte {} is wrong",
            wrong.utf8_error().valid_up_to()
        ))
    })?;
    // It would become a token of the text, and no JSON line may start with it.
    if text.starts_with('\u{feff}') {
        return Err(error(
            "begins with a byte order mark: expected UTF-8 without one".into(),
        ));
    }
    if text.trim().is_empty() {
        Err(error("the data file is empty".into()))
    } else {
        Ok(text)
    }
}

/// Returns the rows of a file with one JSON object per line; empty lines are skipped.
pub(super) fn rows(path: &Path) -> Result<Vec<Row>, DataError> {
    let text = text(path)?;
    let lines = (1..)
        .zip(text.lines())
        .filter(|(_, content)| !content.trim().is_empty());
    lines
        .map(|(line, content)| match serde_json::from_str(content) {
            Ok(Value::Object(fields)) => Ok(Row {
                file: path.into(),
                line,
                fields,
            }),
            Ok(_) => Err(DataError::new(path, Some(line), "expected a JSON object")),
            Err(error) => {
                let message = format!(
                    "not JSON (column {}): expected one object a line",
                    error.column()
                );
                Err(DataError::new(path, Some(line), message))
            }
        })
        .collect()
}

/// One line of a file.
pub(super) struct Row {
    file: PathBuf,
    pub(super) line: usize,
    fields: Map<String, Value>,
}

impl Row {
    /// Returns the error that `field` has a wrong value.
    pub(super) fn wrong(&self, field: &str, is: impl Display, expected: impl Display) -> DataError {
        DataError::new(
            &self.file,
            Some(self.line),
            format!("field {field:?} {is}: expected {expected}"),
        )
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    fn field(&self, field: &str, expected: &str) -> Result<&Value, DataError> {
        self.fields
            .get(field)
            .ok_or_else(|| self.wrong(field, "is missing", expected))
    }

    /// Returns a string that is not blank.
    pub(super) fn text(&self, field: &str) -> Result<&str, DataError> {
        match self.field(field, "a text")? {
            Value::String(text) if text.trim().is_empty() => {
                Err(self.wrong(field, "is empty", "a text"))
            }
            Value::String(text) => Ok(text),
            other => Err(self.wrong(field, format!("is {}", kind(other)), "a text")),
        }
    }

    /// Returns a list of `count` strings.
    pub(super) fn texts(&self, field: &str, count: usize) -> Result<Vec<&str>, DataError> {
        let expected = format!("a list of {count} texts");
        let Value::Array(values) = self.field(field, &expected)? else {
            return Err(self.wrong(field, "is no list", expected));
        };
        let texts: Vec<_> = values
            .iter()
            .filter_map(Value::as_str)
            .filter(|text| !text.trim().is_empty())
            .collect();
        if values.len() != count {
            return Err(self.wrong(field, format!("has {} entries", values.len()), expected));
        }
        if texts.len() == count {
            Ok(texts)
        } else {
            Err(self.wrong(field, "has an entry that is no text", expected))
        }
    }

    /// Returns which of `names` the field contains, as a string or a number.
    pub(super) fn one_of(&self, field: &str, names: &[&str]) -> Result<usize, DataError> {
        let expected = format!("one of {}", names.join(", "));
        let value = match self.field(field, &expected)? {
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            other => return Err(self.wrong(field, format!("is {}", kind(other)), expected)),
        };
        let found = names.iter().position(|name| *name == value);
        found.ok_or_else(|| self.wrong(field, format!("is {value:?}"), expected))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the first row of a file with this content.
    pub fn row(content: &str) -> Row {
        let Value::Object(fields) = serde_json::from_str(content).unwrap() else {
            panic!("{content}")
        };
        Row {
            file: "data.jsonl".into(),
            line: 7,
            fields,
        }
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let row = row(r#"{"text": " ", "number": 3, "texts": ["a", 1], "answer": "E"}"#);
        let message =
            |result: Result<_, DataError>| result.map(|_: ()| ()).unwrap_err().to_string();
        assert_eq!(
            message(row.text("text").map(drop)),
            "data.jsonl, line 7: field \"text\" is empty: expected a text"
        );
        assert_eq!(
            message(row.text("none").map(drop)),
            "data.jsonl, line 7: field \"none\" is missing: expected a text"
        );
        assert_eq!(
            message(row.text("number").map(drop)),
            "data.jsonl, line 7: field \"number\" is a number: expected a text"
        );
        assert!(
            message(row.texts("texts", 2).map(drop))
                .ends_with("has an entry that is no text: expected a list of 2 texts")
        );
        assert!(
            message(row.texts("texts", 3).map(drop))
                .ends_with("has 2 entries: expected a list of 3 texts")
        );
        assert!(
            message(row.one_of("answer", &["A", "B"]).map(drop))
                .ends_with("is \"E\": expected one of A, B")
        );
    }

    #[test]
    fn an_answer_may_be_a_number_or_a_text() {
        let row = row(r#"{"number": 3, "text": "3"}"#);
        assert_eq!(row.one_of("number", &["2", "3"]).unwrap(), 1);
        assert_eq!(row.one_of("text", &["2", "3"]).unwrap(), 1);
    }
}

//! The JSON files next to a model's weights.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// Maximum size of a JSON file, which is read whole into memory. The largest real ones are tokenizers of about 35 MB.
const MAX_BYTES: u64 = 64 << 20;

/// Parses the file at `path`, which holds a JSON object; returns `None` if there is no such file. A syntax error names
/// line and column.
pub(crate) fn read(path: &Path) -> Result<Option<Value>> {
    let Some(value) = read_any(path)? else {
        return Ok(None);
    };
    let kind = match &value {
        Value::Object(_) => return Ok(Some(value)),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    let message = format!("the file holds {kind}, expected a JSON object");
    Err(Error::new(ErrorKind::Malformed, message).at(path))
}

/// Parses the file at `path`, which holds any JSON value; returns `None` if there is no such file.
pub(crate) fn read_any(path: &Path) -> Result<Option<Value>> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            let message = format!(
                "the file is larger than {} MiB, expected a configuration",
                MAX_BYTES >> 20
            );
            Error::new(ErrorKind::Malformed, message).at(path)
        }
        _ => Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path),
    };
    if !files::is_there(path).map_err(failed)? {
        return Ok(None);
    }
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message).at(path);
    let bytes = files::read(path, MAX_BYTES).map_err(failed)?;
    let bytes = files::without_mark(&bytes);
    serde_json::from_slice(bytes)
        .or_else(|error| serde_json::from_slice(&without_infinity(bytes)).map_err(|_| error))
        .map(Some)
        .map_err(|error| malformed(format!("not valid JSON: {error}")))
}

/// Replaces each `Infinity` outside strings, which Python writes and JSON lacks, with the object that version 5 of
/// `transformers` writes in its place.
fn without_infinity(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut rest, mut is_text) = (json, false);
    while let [first, more @ ..] = rest {
        if !is_text && let Some(after) = rest.strip_prefix(b"Infinity") {
            out.extend_from_slice(br#"{"__float__":"Infinity"}"#);
            rest = after;
            continue;
        }
        out.push(*first);
        rest = more;
        is_text ^= *first == b'"';
        // An escaped quote ends no string.
        if is_text
            && *first == b'\\'
            && let [escaped, more @ ..] = rest
        {
            out.push(*escaped);
            rest = more;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinity_outside_strings_is_what_transformers_5_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(
            &path,
            r#"{"a": [0.0, Infinity], "b": "\"Infinity\\", "c": Infinity}"#,
        )
        .unwrap();
        let infinity = serde_json::json!({"__float__": "Infinity"});
        let expected =
            serde_json::json!({"a": [0.0, infinity], "b": "\"Infinity\\", "c": infinity});
        assert_eq!(read(&path).unwrap().unwrap(), expected);
        for text in [r#"{"a": -Infinity}"#, r#"{"a": NaN}"#, "{Infinity: 1}"] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("not valid JSON"), "{error}");
        }
    }
}

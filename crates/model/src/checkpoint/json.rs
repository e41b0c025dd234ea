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
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| malformed(format!("not valid JSON: {error}")))
}

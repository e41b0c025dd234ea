//! The JSON files next to a model's weights.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// Maximum size of a JSON file, which is read whole into memory. The largest real ones are tokenizers of about 35 MB.
const MAX_BYTES: u64 = 64 << 20;

/// Parses the file at `path`; returns `None` if there is no such file. A syntax error names line and column.
pub(crate) fn read(path: &Path) -> Result<Option<serde_json::Value>> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = files::read(path, MAX_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            let message = format!(
                "the file is larger than {} MiB, expected a configuration",
                MAX_BYTES >> 20
            );
            Error::new(ErrorKind::Malformed, message).at(path)
        }
        _ => Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path),
    })?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::new(ErrorKind::Malformed, format!("not valid JSON: {error}")).at(path)
    })
}

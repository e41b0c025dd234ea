//! The JSON files beside a model's weights.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// Largest JSON file read whole into memory. The largest real ones are tokenizers of about 35 MB.
const MAX_BYTES: u64 = 64 << 20;

/// The parsed content of the file at `path`, `None` if there is no such file. A syntax error names line
/// and column.
pub(crate) fn read(path: &Path) -> Result<Option<serde_json::Value>> {
    if !path.exists() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path);
    // Asked before opening: opening a named pipe waits for its other end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::new(ErrorKind::Io, "expected a regular file").at(path));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        let message = format!("the file is larger than {} MiB, expected a configuration", MAX_BYTES >> 20);
        return Err(Error::new(ErrorKind::Malformed, message).at(path));
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Error::new(ErrorKind::Malformed, format!("not valid JSON: {error}")).at(path))
}

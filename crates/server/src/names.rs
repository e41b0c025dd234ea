//! Ids and creation times of responses.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Returns a new random id that begins with `prefix`.
pub(crate) fn new_id(prefix: &str) -> String {
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32 | now());
    format!("{prefix}{random:016x}")
}

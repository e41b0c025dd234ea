//! Names and times of answers.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// A new name that begins with `prefix`.
pub(crate) fn new_id(prefix: &str) -> String {
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32 | now());
    format!("{prefix}{random:016x}")
}

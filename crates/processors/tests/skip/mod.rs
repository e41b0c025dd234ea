//! Skips tests that need something that a machine may lack, such as a device. They fail instead where it was promised.

use std::fmt::Display;
use std::io::Write;

/// The environment variable that promises everything that tests need. If it is set, as in CI, no test is skipped.
const PROMISED: &str = "TRIAD_NO_SKIPPED_TESTS";

/// Reports that the calling test is skipped, and the reason.
///
/// # Panics
/// If the missing thing was promised.
pub fn skip(reason: impl Display) {
    assert!(
        std::env::var_os(PROMISED).is_none(),
        "{PROMISED} is set, but {reason}"
    );
    // Not `eprintln`: the test harness hides its output for tests that pass.
    writeln!(std::io::stderr(), "skipped: {reason}").expect("standard error can be written");
}

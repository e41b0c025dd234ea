//! Tests that need what a machine may lack, such as a device, are skipped there, and fail where it was promised.

use std::fmt::Display;
use std::io::Write;

/// The environment variable that promises everything that a test may need: no test is skipped where it is set, as in CI.
const PROMISED: &str = "TRIAD_NO_SKIPPED_TESTS";

/// Reports that the calling test is skipped, and why.
///
/// # Panics
/// If what is missing was promised.
pub fn skip(reason: impl Display) {
    assert!(
        std::env::var_os(PROMISED).is_none(),
        "{PROMISED} is set, but {reason}"
    );
    // Not by `eprintln`, of which the test harness shows nothing where a test passes.
    writeln!(std::io::stderr(), "skipped: {reason}").expect("standard error can be written");
}

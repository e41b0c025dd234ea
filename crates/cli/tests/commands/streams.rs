//! Standard streams that cannot be written or are read ahead.

#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::process::Output;

#[cfg(target_os = "linux")]
use crate::place;
#[cfg(target_os = "linux")]
use crate::support::{Place, stdout};

/// Runs `triad` with a standard error to which nothing can be written.
#[cfg(target_os = "linux")]
fn untold(place: &Place, arguments: &[&str]) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    place.command(arguments).stdin(std::process::Stdio::null()).stderr(full).output().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_standard_error_that_cannot_be_written_changes_neither_output_nor_exit_code() {
    let place = place();
    for run in [&["run", "-m", "model.gguf", "-p", "Hello", "-n", "4"][..], &["-v", "run", "-m", "model.gguf", "-p", "Hello"]]
    {
        let output = untold(&place, run);
        assert!(output.status.success() && !stdout(&output).is_empty(), "{run:?}: {}", output.status);
    }
    for (wrong, code) in [(&["run", "-m", "no.gguf", "-p", "Hello"][..], 1), (&["run", "--fly"], 2)] {
        assert_eq!(untold(&place, wrong).status.code(), Some(code), "{wrong:?}");
    }
}

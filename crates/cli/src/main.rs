//! The `triad` command.
#![forbid(unsafe_code)]

fn main() {}

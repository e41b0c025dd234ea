//! Has no code: its dependencies are what it is for, see `Cargo.toml`.
#![forbid(unsafe_code)]

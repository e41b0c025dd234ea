//! Runs a model.
#![forbid(unsafe_code)]

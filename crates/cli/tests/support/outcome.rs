//! Reads the output of a command that should succeed.

use std::process::Output;

use serde_json::Value as Json;

use crate::support::{stderr, stdout};

pub fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

pub fn json(output: &Output) -> Json {
    serde_json::from_str(&succeed(output)).unwrap()
}

pub fn keys(object: &Json) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

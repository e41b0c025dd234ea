//! Broken model files: each must give an error of the right kind whose message names the problem.
//!
//! `cargo test -p triad-model --test malformed -- --nocapture --test-threads 1` prints the messages.

mod adapter;
mod checkpoint;
mod gguf;
mod mutations;
mod numbers;
mod quantized;
mod safetensors;
mod tokenizer;

use triad_model::{ErrorKind, Result};

/// Fails unless `result` is an error of `kind` whose message has all of `mentions`.
#[track_caller]
fn assert_refused<T>(case: &str, result: Result<T>, kind: ErrorKind, mentions: &[&str]) {
    let Err(error) = result else {
        panic!("{case}: accepted")
    };
    let message = error.to_string();
    println!("{case}: {message}");
    assert_eq!(error.kind(), kind, "{case}: {message}");
    for mention in mentions {
        assert!(
            message.contains(mention),
            "{case}: expected {mention:?} in: {message}"
        );
    }
    assert!(
        !message.contains('\n'),
        "{case}: one sentence expected: {message}"
    );
}

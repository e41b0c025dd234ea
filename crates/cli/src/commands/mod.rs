//! One file a command: its arguments, and what it does with them.

pub mod bench;
pub mod completions;
pub mod devices;
pub mod eval;
pub mod fit;
#[cfg(feature = "server")]
pub mod grammar_check;
pub mod info;
pub mod logits;
pub mod man;
pub mod plan;
pub mod prepare;
pub mod profile;
pub mod pull;
pub mod run;
#[cfg(feature = "server")]
pub mod serve;
pub mod tokenize;
pub mod verify;

//! One module for each command: its arguments and its code.

pub mod bench;
pub mod completions;
pub mod devices;
pub mod eval;
pub mod fit;
#[cfg(feature = "server")]
pub mod grammar_check;
pub mod info;
pub mod list;
pub mod logits;
pub mod man;
pub mod plan;
pub mod prepare;
pub mod profile;
pub mod ps;
pub mod pull;
pub mod remove;
pub mod run;
#[cfg(feature = "server")]
pub mod serve;
pub mod tokenize;
pub mod verify;

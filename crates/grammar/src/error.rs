//! What can be wrong with a grammar.

use std::time::Duration;

use crate::kind::Kind;

/// Why there is no grammar.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is longer than any in use.
    #[error("the {kind} has {bytes} bytes, expected at most {most}")]
    TooLong {
        /// What it is.
        kind: Kind,
        /// Its length.
        bytes: usize,
        /// The most that is read.
        most: usize,
    },
    /// A text of more parts than any in use.
    #[error("the {kind} has {count} {what}, expected at most {most}")]
    TooMany {
        /// What it is.
        kind: Kind,
        /// Which parts.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most that are compiled.
        most: usize,
    },
    /// A text with brackets within brackets, deeper than any in use.
    #[error("line {line} of the {kind}: brackets are {depth} deep, expected at most {most}")]
    TooDeep {
        /// What it is.
        kind: Kind,
        /// Line of the bracket, from 1.
        line: usize,
        /// How deep it is.
        depth: usize,
        /// The deepest that is read.
        most: usize,
    },
    /// A schema that is not JSON.
    #[error("line {line}, column {column} of the JSON schema: {problem}")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A grammar that has a mistake, or holds what is not supported.
    #[error("the {kind} can't be used: {problem}")]
    Unsupported {
        /// What it is.
        kind: Kind,
        /// What is not supported, or wrong.
        problem: String,
    },
    /// A grammar that takes too long to be compiled.
    #[error("the {kind} takes longer than {limit:?} to compile: make it simpler")]
    TooSlow {
        /// What it is.
        kind: Kind,
        /// The longest time.
        limit: Duration,
    },
    /// A grammar that took more time or memory in a [process of its own](crate::Checker) than it may.
    #[error("the {kind} takes too much time or memory to compile: make it simpler")]
    TooCostly {
        /// What it is.
        kind: Kind,
    },
    /// The compile was cancelled.
    #[error("the compile of a grammar was cancelled")]
    Cancelled,
    /// The program that compiles grammars on its own does not work.
    #[error("the program that checks grammars does not work: {problem}")]
    Checker {
        /// What is wrong with it.
        problem: String,
    },
    /// So many grammars are being compiled, in all or for one owner, that one more was not begun in time.
    #[error("{count} grammars are being compiled: try again later")]
    Busy {
        /// How many.
        count: usize,
    },
    /// The system has no thread to compile with.
    #[error("no thread can be started to compile with: {problem}")]
    NoThread {
        /// Why not.
        problem: String,
    },
    /// A tokenizer that no grammar can be applied to.
    #[error("answers of this model can't have a form: {problem}")]
    Tokenizer {
        /// What is wrong.
        problem: String,
    },
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! Errors of grammars.

use std::time::Duration;

use crate::kind::Kind;

/// The reason why a grammar can't be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source that is too long.
    #[error("the {kind} has {bytes} bytes, expected at most {most}")]
    TooLong {
        /// The kind of source.
        kind: Kind,
        /// Its size in bytes.
        bytes: usize,
        /// The maximum size.
        most: usize,
    },
    /// A source with too many parts.
    #[error("the {kind} has {count} {what}, expected at most {most}")]
    TooMany {
        /// The kind of source.
        kind: Kind,
        /// The kind of parts.
        what: &'static str,
        /// The number of parts.
        count: usize,
        /// The maximum number.
        most: usize,
    },
    /// A source whose brackets are nested too deeply.
    #[error("line {line} of the {kind}: brackets are {depth} deep, expected at most {most}")]
    TooDeep {
        /// The kind of source.
        kind: Kind,
        /// The line of the bracket, from 1.
        line: usize,
        /// The depth of the bracket.
        depth: usize,
        /// The maximum depth.
        most: usize,
    },
    /// A schema that is not valid JSON.
    #[error("line {line}, column {column} of the JSON schema: {problem}")]
    Json {
        /// The line of the error, from 1.
        line: usize,
        /// The column of the error, from 1.
        column: usize,
        /// The description of the error.
        problem: String,
    },
    /// A grammar that is invalid or uses an unsupported feature.
    #[error("the {kind} can't be used: {problem}")]
    Unsupported {
        /// The kind of source.
        kind: Kind,
        /// The invalid or unsupported feature.
        problem: String,
    },
    /// A grammar that takes too long to compile.
    #[error("the {kind} takes longer than {limit:?} to compile: make it simpler")]
    TooSlow {
        /// The kind of source.
        kind: Kind,
        /// The time limit.
        limit: Duration,
    },
    /// A grammar that exceeded the time or memory limit of a [separate process](crate::Checker).
    #[error("the {kind} takes too much time or memory to compile: make it simpler")]
    TooCostly {
        /// The kind of source.
        kind: Kind,
    },
    /// The [separate process](crate::Checker) had no time to compile the grammar.
    #[error("the machine is too busy to compile a grammar: try again later")]
    Starved,
    /// The compilation was cancelled.
    #[error("the compilation of a grammar was cancelled")]
    Cancelled,
    /// The program that checks grammars does not work.
    #[error("the program that checks grammars does not work: {problem}")]
    Checker {
        /// The description of the failure.
        problem: String,
    },
    /// Too many compilations are running, in total or for one owner, and none ended within the time limit.
    #[error("{count} grammars are being compiled: try again later")]
    Busy {
        /// The number of running compilations.
        count: usize,
    },
    /// The system can't start a thread for the compilation.
    #[error("cannot start a thread to compile a grammar: {problem}")]
    NoThread {
        /// The cause.
        problem: String,
    },
    /// A tokenizer that does not support grammars.
    #[error("this model does not support structured output: {problem}")]
    Tokenizer {
        /// The description of the problem.
        problem: String,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

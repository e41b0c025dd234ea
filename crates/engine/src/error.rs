//! Errors of preparing and running a model.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// An error of loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model's file, tokenizer or template.
    #[error(transparent)]
    Model(#[from] triad_model::Error),
    /// The prompt has no tokens.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt does not fit after the tokens that the session already holds.
    #[error("the prompt has {prompt} tokens, but only {free} of the context of {context} are free")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Free tokens of the context.
        free: usize,
        /// Context of the session.
        context: usize,
    },
    /// The requested context is longer than the model supports.
    #[error(
        "a context of {asked} tokens was asked for, but the model was made for at most {longest}"
    )]
    ContextTooLong {
        /// The requested context.
        asked: usize,
        /// Context of the model.
        longest: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    TokenOutOfVocabulary {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A picture or its place in a prompt is invalid.
    #[error("{0}")]
    Picture(String),
    /// The model reads no pictures, or its encoder is not supported.
    #[error("the model reads no pictures")]
    NoPictures {
        /// The reason.
        source: Arc<triad_model::Error>,
    },
    /// The second text of a pair cannot be told apart.
    #[error(
        "the second text starts at token {second} of {tokens}, expected at most {tokens}, and a model with two types of \
         tokens, which this one {}", if *has_types { "is" } else { "is not" }
    )]
    SecondText {
        /// The place at which the second text starts.
        second: usize,
        /// The number of tokens.
        tokens: usize,
        /// Whether the model has two types of tokens.
        has_types: bool,
    },
    /// The model is an encoder, and text was asked for.
    #[error(
        "the model is {kind} ({family}): it computes vectors or scores of texts, and writes no text"
    )]
    Encoder {
        /// An encoder, or a classifier.
        kind: &'static str,
        /// The family of the model.
        family: String,
    },
    /// A continuation cannot be scored from the given position.
    #[error(
        "a continuation of {tokens} tokens cannot be scored from its token {scored_from} on: expected 1 to its last"
    )]
    Unscorable {
        /// Tokens of the continuation.
        tokens: usize,
        /// The position where scoring should begin.
        scored_from: usize,
    },
    /// An option has an invalid value.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// The given value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A file next to a package is invalid.
    #[error("{}: {problem}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The problem, and what to do about it.
        problem: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has no tokenizer, so text cannot be encoded or decoded.
    #[error("the model has no tokenizer, so text cannot be run")]
    NoTokenizer {
        /// The reason why it has none.
        source: Arc<triad_model::Error>,
    },
    /// The logits are infinite or not a number: the weights are damaged, or of another type than the file states.
    #[error(
        "the model computed logits that are not finite: its weights are damaged or not what the file states"
    )]
    NotFinite,
    /// Another program changed a file of the model while it was in use. The model cannot run until it is loaded again.
    #[error("{0}: what was computed with it is discarded; load the model again")]
    Changed(triad_model::Error),
    /// Another thread cancelled the run.
    #[error("cancelled")]
    Cancelled,
    /// The other sequences leave no room for more keys and values.
    #[error(
        "the memory for keys and values is full: {needed} bytes are needed, {free} of {budget} are free: end other \
         conversations, or give the engine more memory for keys and values"
    )]
    KvMemoryFull {
        /// Size of the requested pages in bytes.
        needed: usize,
        /// Free bytes.
        free: usize,
        /// Total bytes.
        budget: usize,
    },
    /// The state of a mixer is not known at a position where a request begins: an error of this program.
    #[error("the state of the sequence at position {position} is not known")]
    UnknownState {
        /// The position.
        position: usize,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// An adapter was opened for another model.
    #[error("{}: the adapter was opened for another model: open it for this one", .path.display())]
    AdapterOfAnotherModel {
        /// Path of the adapter.
        path: PathBuf,
    },
    /// A file with a saved session cannot be restored.
    #[error("{}: {field}: {found}, expected {expected}", path.display())]
    SavedSession {
        /// Path of the file.
        path: PathBuf,
        /// The field that is wrong.
        field: &'static str,
        /// The value of the field.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The tokens of a draft model are not those of the model that it proposes for.
    #[error(
        "the draft model has {found}, the model has {expected}: take a draft model with the same tokenizer"
    )]
    Draft {
        /// The property of the draft model.
        found: String,
        /// The property of the model.
        expected: String,
    },
    /// The head of the model was asked for proposals, and there is none.
    #[error("{0}")]
    NoHead(NoHead),
    /// The model is the head of another one, and was asked for text by itself.
    #[error(
        "the model is a head that predicts more tokens (MTP): it reads the states of its model, and has no session of \
         its own"
    )]
    IsHead,
    /// An answer cannot satisfy its constraint.
    #[error("the answer cannot be kept in its form: {0}")]
    Constraint(Box<dyn std::error::Error + Send + Sync>),
    /// The executor failed, for example a device.
    #[error(transparent)]
    Executor(Box<dyn std::error::Error + Send + Sync>),
    /// A thread panicked while it computed. The engine goes on.
    #[error("a computation panicked: {0}")]
    Panic(String),
    /// The threads could not be started.
    #[error("could not start {threads} threads")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// The cause.
        source: io::Error,
    },
}

/// The result type of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why no head that predicts more tokens can follow a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHead {
    /// The model has none that Triad runs.
    OfModel,
    /// The processors do not give the states that it reads.
    OfProcessors,
}

impl std::fmt::Display for NoHead {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::OfModel => {
                "the model has no head that predicts more tokens (MTP) and that Triad runs: expected a model for which \
                 `triad info` states one"
            }
            Self::OfProcessors => {
                "the processors that run the model do not give a head that predicts more tokens (MTP) the states that \
                 it reads: run the model on the CPU"
            }
        })
    }
}

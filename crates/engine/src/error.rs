//! Errors of preparing and running a model.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

mod failure;

pub use failure::{FailureReason, ProcessorFailure, ProcessorFailures};

/// The reason why a processor cannot run a subgraph.
#[derive(Debug, thiserror::Error)]
pub enum SubgraphError {
    /// The linear layers read float activations.
    #[error(
        "it computes in float: expected a package, whose layers read INT8 with a scale that is known before"
    )]
    Float,
    /// The scales of the activations depend on the activations.
    #[error(
        "its scales are computed at run time: expected a package, whose layers read INT8 with a scale that is known before"
    )]
    DynamicScales,
    /// The processor refused the subgraph, or failed.
    #[error(transparent)]
    Processor(#[from] triad_processors::Error),
}

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
    /// A file of measurements is damaged, or has another version.
    #[error("{}: not what `triad profile` writes: run it again, which replaces the file", .path.display())]
    Measurements {
        /// Path of the file.
        path: PathBuf,
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
    /// A list of processors is invalid.
    #[error(transparent)]
    ProcessorList(#[from] triad_plan::processors::ProcessorsError),
    /// A processor failed in a run that must not continue on the other processors, such as a measurement.
    #[error("{0}")]
    Processor(Box<ProcessorFailure>),
    /// A processor cannot run a part of the model.
    #[error("{processor} does not run {role} of block {block}: {source}")]
    Subgraph {
        /// Name of the processor.
        processor: String,
        /// Index of the block.
        block: usize,
        /// The name of the [`Role`](triad_plan::graph::Role).
        role: &'static str,
        /// The reason.
        source: Box<SubgraphError>,
    },
    /// A device cannot run the model, or failed while running it.
    #[error(transparent)]
    Device(triad_processors::Error),
    /// No processor of a list can run a subgraph.
    #[error(transparent)]
    Placement(#[from] triad_plan::placement::PlacementError),
    /// A cut is not possible.
    #[error(transparent)]
    Cut(#[from] triad_plan::schedule::parts::CutError),
    /// The gemms cannot be planned.
    #[error(transparent)]
    Partition(#[from] triad_plan::partition::PartitionError),
    /// The gemms of prompts cannot be planned across the processors.
    #[error(transparent)]
    PromptPlanner(#[from] triad_plan::joint::JointError),
    /// A chunk is longer than those that gemms were measured for.
    #[error(
        "chunks have {chunk} tokens, but linear layers were measured for at most {measured}: run `triad profile --chunk {chunk}`"
    )]
    UnmeasuredChunk {
        /// Tokens of the chunk.
        chunk: usize,
        /// Tokens of the longest chunk that was measured.
        measured: usize,
    },
    /// The costs of gemms are invalid.
    #[error(
        "the measured costs of linear layers are damaged: {problem}: run `triad profile` again"
    )]
    ProductCosts {
        /// The problem.
        problem: String,
    },
    /// The time of gemms cannot be predicted.
    #[error("the time of linear layers can't be predicted: {0}")]
    Prediction(Box<triad_plan::partition::judge::JudgeError>),
    /// There is no plan for a gemm of the model.
    #[error(
        "there is no plan for {role} with {columns} output and {depth} input features: expected plans of this model"
    )]
    Unplanned {
        /// The name of the [`Role`](triad_plan::graph::Role).
        role: &'static str,
        /// Output features.
        columns: usize,
        /// Input features.
        depth: usize,
    },
    /// A part of an INT8 gemm begins within a block of packed weights.
    #[error(
        "a part of {role} begins at output feature {start} of {linear:?}: expected a multiple of {multiple}, as INT8 weights are packed"
    )]
    PartStart {
        /// The name of the [`Role`](triad_plan::graph::Role).
        role: &'static str,
        /// The layer.
        linear: triad_model::description::Linear,
        /// The output feature at which the part begins.
        start: usize,
        /// Output features of a block of packed weights.
        multiple: usize,
    },
    /// Every processor failed, one after the other.
    #[error("no processor is left to run the prompt: {failures}")]
    Processors {
        /// The failure of each processor.
        failures: ProcessorFailures,
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
    /// An answer cannot satisfy its constraint.
    #[error("the answer cannot be kept in its form: {0}")]
    Constraint(Box<dyn std::error::Error + Send + Sync>),
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

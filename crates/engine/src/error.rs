//! What can go wrong while a model is prepared or runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

mod failure;

pub use failure::{FailureReason, ProcessorFailure, ProcessorFailures};

/// Why a processor does not run a subgraph.
#[derive(Debug, thiserror::Error)]
pub enum SubgraphError {
    /// Its layers read float activations.
    #[error(
        "it computes in float: expected a package, whose layers read INT8 with a scale that is known before"
    )]
    Float,
    /// The scales of what they read depend on it.
    #[error(
        "its scales are found while it runs: expected a package, whose layers read INT8 with a scale that is known before"
    )]
    DynamicScales,
    /// The processor refuses it, or failed.
    #[error(transparent)]
    Processor(#[from] triad_processors::Error),
}

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's file, tokenizer or template.
    #[error(transparent)]
    Model(#[from] triad_model::Error),
    /// Nothing to run.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt does not fit behind what the session already holds.
    #[error("the prompt has {prompt} tokens, but only {free} of the context of {context} are free")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that would have fitted.
        free: usize,
        /// Context of the session.
        context: usize,
    },
    /// A session was requested with a context that the model was not made for.
    #[error(
        "a context of {asked} tokens was asked for, but the model was made for at most {longest}"
    )]
    ContextTooLong {
        /// The requested context.
        asked: usize,
        /// Context of the model.
        longest: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    TokenOutOfVocabulary {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A continuation that cannot be scored from where it should be.
    #[error(
        "a continuation of {tokens} tokens cannot be scored from its token {scored_from} on: expected 1 to its last"
    )]
    Unscorable {
        /// Tokens of the continuation.
        tokens: usize,
        /// Where scoring should begin.
        scored_from: usize,
    },
    /// An option whose value makes no sense.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// Which option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A file beside a package.
    #[error("{}: {problem}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: &'static str,
        /// What found it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file of measurements that is damaged, or of another version.
    #[error("{}: not what `triad profile` writes: run it again, which replaces the file", .path.display())]
    Measurements {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has no tokenizer, so text cannot be read or written.
    #[error("the model has no tokenizer, so text cannot be run")]
    NoTokenizer {
        /// Why not.
        source: Arc<triad_model::Error>,
    },
    /// Logits that are infinite or not a number: the weights are damaged, or of another kind than the file states.
    #[error(
        "the model computed logits that are not finite: its weights are damaged or not what the file states"
    )]
    NotFinite,
    /// Another program changed a file of the model while it was in use: the model can't be run any more, until it is loaded again.
    #[error("{0}: what was computed with it is discarded; load the model again")]
    Changed(triad_model::Error),
    /// Another thread cancelled the run.
    #[error("cancelled")]
    Cancelled,
    /// What sequences hold leaves no room for more keys and values.
    #[error(
        "the memory for keys and values is full: {needed} bytes are needed, {free} of {budget} are free: end other \
         conversations, or give the engine more memory for keys and values"
    )]
    KvMemoryFull {
        /// Bytes of the requested pages.
        needed: usize,
        /// Bytes that are left.
        free: usize,
        /// Bytes in all.
        budget: usize,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system reports.
        source: io::Error,
    },
    /// An adapter that was opened for another model.
    #[error("{}: the adapter was opened for another model: open it for this one", .path.display())]
    AdapterOfAnotherModel {
        /// Which one.
        path: PathBuf,
    },
    /// A file with a saved session that cannot be restored.
    #[error("{}: {field}: {found}, expected {expected}", path.display())]
    SavedSession {
        /// Which file.
        path: PathBuf,
        /// The part of it that is wrong.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Processors that cannot be a list.
    #[error(transparent)]
    ProcessorList(#[from] triad_plan::processors::ProcessorsError),
    /// A processor failed that others would have taken over from.
    #[error("{0}")]
    Processor(Box<ProcessorFailure>),
    /// A processor does not run a part of the model.
    #[error("{processor} does not run {role} of block {block}: {source}")]
    Subgraph {
        /// Which one.
        processor: String,
        /// Number of the block.
        block: usize,
        /// The name of the [`Role`](triad_plan::graph::Role).
        role: &'static str,
        /// Why.
        source: Box<SubgraphError>,
    },
    /// A device does not run the model, or failed while it did.
    #[error(transparent)]
    Device(triad_processors::Error),
    /// A subgraph that no processor of a list can run.
    #[error(transparent)]
    Placement(#[from] triad_plan::placement::PlacementError),
    /// A cut that can't be made.
    #[error(transparent)]
    Cut(#[from] triad_plan::schedule::parts::CutError),
    /// Products that can't be planned.
    #[error(transparent)]
    Partition(#[from] triad_plan::partition::PartitionError),
    /// Ways to compute products that no prompt can be planned with.
    #[error(transparent)]
    Joint(#[from] triad_plan::joint::JointError),
    /// A chunk that is longer than those that products were measured for.
    #[error(
        "chunks of {chunk} tokens, but products were measured for at most {measured}: run `triad profile --chunk {chunk}`"
    )]
    UnmeasuredChunk {
        /// Tokens.
        chunk: usize,
        /// Tokens of the longest chunk that was measured.
        measured: usize,
    },
    /// Costs of products that are none.
    #[error("what products take is damaged: {problem}: run `triad profile` again")]
    ProductCosts {
        /// What is wrong.
        problem: String,
    },
    /// Products that can't be predicted.
    #[error("what products take can't be predicted: {0}")]
    Prediction(Box<triad_plan::partition::judge::JudgeError>),
    /// A product of the model that is not in the plans for its products.
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
    /// A part of INT8 products that begins within a block of packed weights.
    #[error(
        "a part of {role} begins at output feature {start} of {linear:?}: expected a multiple of {multiple}, as INT8 weights are packed"
    )]
    PartStart {
        /// The name of the [`Role`](triad_plan::graph::Role).
        role: &'static str,
        /// The layer.
        linear: triad_model::description::Linear,
        /// Where the part begins.
        start: usize,
        /// Output features of a block of weights.
        multiple: usize,
    },
    /// Every processor failed, one after the other.
    #[error("no processor is left to run the prompt: {failures}")]
    Processors {
        /// What happened to each.
        failures: ProcessorFailures,
    },
    /// A draft model whose tokens are not those of the model that it proposes for.
    #[error(
        "the draft model has {found}, the model has {expected}: take a draft model with the same tokenizer"
    )]
    Draft {
        /// Of the draft model.
        found: String,
        /// Of the model.
        expected: String,
    },
    /// An answer that cannot be kept in its form.
    #[error("the answer cannot be kept in its form: {0}")]
    Constraint(Box<dyn std::error::Error + Send + Sync>),
    /// The threads could not be started.
    #[error("could not start {threads} threads")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        source: io::Error,
    },
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

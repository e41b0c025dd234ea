//! Errors of engines on several processors.

use std::path::PathBuf;

pub use crate::failure::{FailureReason, ProcessorFailure, ProcessorFailures};

/// The reason why a processor cannot run a subgraph.
#[derive(Debug, thiserror::Error)]
pub enum SubgraphError {
    /// The scales of the activations depend on the activations.
    #[error(
        "its scales are computed at run time: expected a package, whose layers read INT8 with a scale that is known before"
    )]
    DynamicScales,
    /// The processor refused the subgraph, or failed.
    #[error(transparent)]
    Processor(#[from] triad_processors::Error),
}

/// An error of making or running an engine on several processors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] triad_engine::Error),
    /// A file of measurements is damaged, or has another version.
    #[error("{}: not what `triad profile` writes: run it again, which replaces the file", .path.display())]
    Measurements {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Plans by energy need the powers of processors.
    #[error(
        "the powers of the processors were not measured: run `triad profile` where the system reports energy (RAPL, or a battery that is discharged)"
    )]
    UnmeasuredPower,
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
        /// The name of the [`Role`](triad_model::role::Role).
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
        "chunks have {chunk} tokens, but linear layers were measured for at most {measured}: run `triad profile --prefill-chunk {chunk}`"
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
        /// The name of the [`Role`](triad_model::role::Role).
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
        /// The name of the [`Role`](triad_model::role::Role).
        role: &'static str,
        /// The layer.
        linear: triad_model::description::Linear,
        /// The output feature at which the part begins.
        start: usize,
        /// Output features of a block of packed weights.
        multiple: usize,
    },
    /// A device refused a product of the encoder of pictures.
    #[error("the encoder of pictures does not run on this processor")]
    Encoder(#[source] Box<Error>),
    /// Every processor failed, one after the other.
    #[error("no processor is left to run the prompt: {failures}")]
    Processors {
        /// The failure of each processor.
        failures: ProcessorFailures,
    },
}

/// The result type of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the error of an option with another value than expected.
    pub(crate) fn option(name: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Engine(triad_engine::Error::Option {
            name,
            value: value.into(),
            expected,
        })
    }

    /// Returns the error of the engine, if it is one.
    pub fn engine(&self) -> Option<&triad_engine::Error> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the error of this crate that ended a request, if it was one.
    pub fn from_engine(error: &triad_engine::Error) -> Option<&Self> {
        match error {
            triad_engine::Error::Executor(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

impl From<Error> for triad_engine::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(error) => error,
            other => Self::Executor(Box::new(other)),
        }
    }
}

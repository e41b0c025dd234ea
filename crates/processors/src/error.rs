//! Why a processor refuses.

/// What a processor answers, or why it refuses.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a processor can't be had, does not prepare a subgraph, or did not run a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parts of a subgraph contradict each other.
    #[error("{part} of the subgraph: {found}, expected {expected}")]
    Subgraph {
        /// Which part.
        part: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// More rows than the program was prepared for, or none.
    #[error("{rows} rows were given to a program that was prepared for 1 to {prepared}")]
    Rows {
        /// Rows of the input.
        rows: usize,
        /// Rows that the program was prepared for.
        prepared: usize,
    },
    /// The input is not what the program was prepared for.
    #[error("the input has {found}, but the program was prepared for {expected}")]
    Input {
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// The buffers for outputs don't fit what the program computes.
    #[error("the outputs have {found:?} numbers, but the program writes {expected:?}")]
    Outputs {
        /// Length of each buffer that was given.
        found: Vec<usize>,
        /// Length of each output.
        expected: Vec<usize>,
    },
}

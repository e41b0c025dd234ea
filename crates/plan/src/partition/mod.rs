//! Partition of one product across processors: the tensor partition of HeteroLLM (§4.1 of the paper) and its solver
//! (§4.3).
//!
//! A product is the matrix product of a linear layer, or of several that read the same input. It has rows (tokens),
//! columns (output features) and a depth (input features). A [`Partition`] assigns rectangles of its output to
//! processors, each as one or more [`Piece`]s. Columns of the output are rows of the weights: the paper's row-cutting
//! cuts columns here, and its sequence-length cutting cuts rows.
//!
//! - [`candidates`] lists the partitions of a product.
//! - [`costs`] contains measured costs of a product on a processor. [`interpolate`] computes them between measurements,
//!   [`predict`] predicts them by a decision tree or by fixed rates, and [`profile`] simulates them from the profile of a
//!   device that is not present.
//! - [`solve`] chooses the partition that completes first, or that needs the least [`energy`], and [`plans`] stores the choices for all products of a model
//!   and all lengths of a chunk.
//! - [`judge`] compares the choices by predictions with those by measurements. [`exhaust`] finds the least time over all
//!   cuts without the solver.

pub mod candidates;
pub mod costs;
pub mod energy;
pub mod exhaust;
pub mod interpolate;
pub mod judge;
pub mod plans;
pub mod predict;
pub mod profile;
pub mod solve;
mod tree;

#[cfg(test)]
mod tests;

use serde::Serialize;
use triad_model::description::BlockDescription;

use crate::graph::Role;
use crate::processors::{Processor, ProcessorId, ProcessorKind, Processors};
use crate::schedule::parts::CutError;
pub use crate::schedule::parts::{Part, Piece};

/// Columns are cut at multiples of this number: "row partitions aligned to 256" (§4.3).
pub const COLUMN_MULTIPLE: usize = 256;
/// Rows are cut at multiples of this number: "sequence length partitions to 32" (§4.3).
pub const ROW_MULTIPLE: usize = 32;
/// The shortest and the longest standard length (§5.2.2).
const SHORTEST: usize = 32;
const LONGEST: usize = 1024;
/// Maximum number of rows of a product in decode: several tokens per step, or several sequences.
pub const MAX_DECODE_ROWS: usize = 16;
/// Maximum number of rows, columns or input features of a product.
const LARGEST: usize = 1 << 24;

/// The shape of a product: inputs `[rows, depth]` times weights `[columns, depth]` are outputs `[rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ProductShape {
    rows: usize,
    columns: usize,
    depth: usize,
}

impl ProductShape {
    /// Creates the shape of a product of `rows` tokens, `columns` output features and `depth` input features.
    ///
    /// # Errors
    /// If one of them is zero or above 2²⁴.
    pub fn new(rows: usize, columns: usize, depth: usize) -> Result<Self, PartitionError> {
        let is_size = |size: &usize| (1..=LARGEST).contains(size);
        if [rows, columns, depth].iter().all(is_size) {
            Ok(Self {
                rows,
                columns,
                depth,
            })
        } else {
            Err(PartitionError::Size {
                rows,
                columns,
                depth,
            })
        }
    }

    /// Returns the number of tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of output features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of input features.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of multiplications and additions.
    pub fn operations(&self) -> f64 {
        2.0 * self.rows as f64 * self.weights()
    }

    /// Returns the number of weights.
    pub fn weights(&self) -> f64 {
        self.columns as f64 * self.depth as f64
    }

    /// Returns the shape of the same weights with `rows` tokens.
    ///
    /// # Errors
    /// If `rows` is zero or above 2²⁴.
    pub fn with_rows(self, rows: usize) -> Result<Self, PartitionError> {
        Self::new(rows, self.columns, self.depth)
    }
}

impl std::fmt::Display for ProductShape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "{} rows × {} columns × depth {}",
            self.rows, self.columns, self.depth
        )
    }
}

/// Returns the products of a block that can be cut, for `rows` tokens, each with its role.
///
/// # Errors
/// If `rows` or a size of the block is zero or above 2²⁴.
pub fn products(
    block: &BlockDescription,
    hidden: usize,
    rows: usize,
) -> Result<Vec<(Role, ProductShape)>, PartitionError> {
    let linears = block.linears(hidden);
    let roles = Role::ALL.into_iter().filter(|role| role.is_product());
    let of_role = |role: Role| {
        let here = || linears.iter().filter(move |shape| role.has(shape.linear));
        // The linear layers of a role read the same input.
        let depth = here().map(|shape| shape.in_features).max().unwrap_or(0);
        let columns = here().map(|shape| shape.out_features).sum();
        Ok((role, ProductShape::new(rows, columns, depth)?))
    };
    roles.map(of_role).collect()
}

/// Positions at which a product can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Alignment {
    /// Columns are cut at multiples of this number.
    pub columns: usize,
    /// Rows are cut at multiples of this number.
    pub rows: usize,
    /// Whether one of two processors may compute the rows after the last multiple in addition to some columns of the
    /// rows before it. Only a processor that computes any shape may do so, if the other one does not. The paper has no
    /// such cut.
    pub margins: bool,
}

impl Default for Alignment {
    /// Returns the paper's alignment (§4.3).
    fn default() -> Self {
        Self {
            columns: COLUMN_MULTIPLE,
            rows: ROW_MULTIPLE,
            margins: false,
        }
    }
}

/// The phase of inference that a product belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Prefill of a prompt or a chunk. Processors with static shapes compute standard lengths (§4.1.1).
    Prefill,
    /// Decode, with at most 16 rows. There is a graph for each number of rows, and only columns are cut (§4.1.2).
    Decode,
}

/// The numbers of rows that a processor can compute in prefill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Any number, as with kernels of a GPU or CPU.
    Dynamic,
    /// The numbers for which graphs were built.
    Static(StandardLengths),
}

/// The numbers of rows for which a processor with static shapes has graphs in prefill: powers of two from 32 to 1,024,
/// so that each is a multiple of all shorter ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardLengths(Vec<usize>);

impl Default for StandardLengths {
    /// Returns all standard lengths, as in §5.2.2 of the paper.
    fn default() -> Self {
        Self(
            (SHORTEST.trailing_zeros()..=LONGEST.trailing_zeros())
                .map(|power| 1 << power)
                .collect(),
        )
    }
}

impl StandardLengths {
    /// Creates a set of these lengths, given in any order.
    ///
    /// # Errors
    /// If there is none, or one is not a power of two from 32 to 1,024.
    pub fn new(mut lengths: Vec<usize>) -> Result<Self, PartitionError> {
        let is_standard =
            |length: &usize| length.is_power_of_two() && (SHORTEST..=LONGEST).contains(length);
        if let Some(length) = lengths.iter().copied().find(|length| !is_standard(length)) {
            return Err(PartitionError::StandardLength { length });
        }
        lengths.sort_unstable();
        lengths.dedup();
        if lengths.is_empty() {
            Err(PartitionError::NoStandardLength)
        } else {
            Ok(Self(lengths))
        }
    }

    /// Returns the lengths, the shortest first.
    pub fn lengths(&self) -> &[usize] {
        &self.0
    }

    /// Returns the fewest lengths whose sum is `rows`, the longest first; `None` if there are none.
    fn exactly(&self, rows: usize) -> Option<Vec<usize>> {
        let (lengths, left) = self.greedy(rows);
        (left == 0).then_some(lengths)
    }

    /// Returns lists of lengths whose sum is `rows` or more, ordered by the number of full lengths before the last one.
    /// The last one is padded if it is longer than the remaining rows. The first list is the paper's padding, the
    /// others are its pipes (§5.2.2). For 600 rows: 1,024, or 512 and 128, or 512, 64 and 32.
    fn covers(&self, rows: usize) -> Vec<Vec<usize>> {
        let (greedy, _) = self.greedy(rows);
        let mut left = rows;
        let mut covers = Vec::new();
        for filled in 0..=greedy.len() {
            let last = self.0.iter().find(|length| **length >= left);
            covers.extend(last.map(|last| [&greedy[..filled], &[*last]].concat()));
            if last == Some(&left) {
                break;
            }
            left -= greedy.get(filled).copied().unwrap_or(0);
        }
        covers
    }

    /// Returns lengths that fit into `rows`, each as long as possible, and the number of rows left.
    fn greedy(&self, rows: usize) -> (Vec<usize>, usize) {
        let (mut lengths, mut left) = (Vec::new(), rows);
        for length in self.0.iter().rev() {
            lengths.extend(std::iter::repeat_n(*length, left / length));
            left %= length;
        }
        (lengths, left)
    }
}

/// A processor to which pieces can be assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// The processor.
    pub processor: ProcessorId,
    /// The numbers of rows that it can compute.
    pub shapes: Shapes,
}

impl Participant {
    /// Creates the participants of a list: NPUs with static shapes of all standard lengths, the others with any shape.
    pub fn from_processors(processors: &Processors) -> Vec<Self> {
        let shapes = |processor: &Processor| match processor.kind {
            ProcessorKind::Npu => Shapes::Static(StandardLengths::default()),
            ProcessorKind::Cpu | ProcessorKind::Gpu => Shapes::Dynamic,
        };
        processors
            .iter()
            .map(|(id, processor)| Self {
                processor: id,
                shapes: shapes(processor),
            })
            .collect()
    }

    /// Returns the ways to compute `rows`, each as a list of lengths that are computed one after another. The last
    /// length is padded if it is longer than the remaining rows.
    fn covers(&self, rows: usize, phase: Phase) -> Vec<Vec<usize>> {
        match (&self.shapes, phase) {
            (Shapes::Static(lengths), Phase::Prefill) => lengths.covers(rows),
            (Shapes::Dynamic, _) | (_, Phase::Decode) => vec![vec![rows]],
        }
    }

    /// Returns lengths that compute `rows` without padding in prefill, if possible.
    fn exactly(&self, rows: usize) -> Option<Vec<usize>> {
        match &self.shapes {
            Shapes::Dynamic => Some(vec![rows]),
            Shapes::Static(lengths) => lengths.exactly(rows),
        }
    }

    fn is_static(&self) -> bool {
        matches!(self.shapes, Shapes::Static(_))
    }
}

impl Piece {
    /// Returns whether it computes padding rows.
    pub fn is_padded(&self) -> bool {
        self.rows > self.part.rows.len()
    }

    /// Returns the shape that its processor computes, of a product with this depth.
    pub fn shape(&self, depth: usize) -> ProductShape {
        ProductShape {
            rows: self.rows,
            columns: self.part.columns.len(),
            depth,
        }
    }
}

/// The kind of a partition, by the paper's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One processor in one run, without padding.
    Alone,
    /// One processor, with the rows padded to a standard length (§5.2.2).
    Padding,
    /// One processor, in several standard lengths one after another (§5.2.2).
    Pipe,
    /// Columns are cut. Each processor computes all rows in one run (§4.1.1, §4.1.2).
    RowCutting,
    /// Rows are cut: one standard length on one processor, the rest on the other (§4.1.1).
    SequenceLengthCutting,
    /// Rows are cut: several standard lengths on one processor, the rest on the other (§4.1.1).
    MultiSequenceLengthCutting,
    /// Columns are cut. Processors with static shapes compute padded rows or a pipe (§4.1.1).
    HybridCutting,
    /// Rows are cut, and the columns of all rows except the margin. A third processor computes the margin, or one of
    /// the two.
    MarginAndRowCutting,
}

impl Strategy {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Padding => "padding",
            Self::Pipe => "pipe",
            Self::RowCutting => "row-cutting",
            Self::SequenceLengthCutting => "sequence-length-cutting",
            Self::MultiSequenceLengthCutting => "multi-sequence-length-cutting",
            Self::HybridCutting => "hybrid-cutting",
            Self::MarginAndRowCutting => "margin-and-row-cutting",
        }
    }

    /// Returns whether one processor computes the whole product.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Alone | Self::Padding | Self::Pipe)
    }
}

/// A division of a product among processors. Its pieces cover the output without overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// The kind of partition.
    pub strategy: Strategy,
    /// The pieces. Those of one processor are computed one after another.
    pub pieces: Vec<Piece>,
}

/// An unknown cost: it was not measured, or is outside of the range of the predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time of {shape} on processor {} is unknown: expected a measurement, or a prediction whose range includes it", processor.index())]
pub struct UnknownCost {
    /// The processor.
    pub processor: ProcessorId,
    /// The shape of the product.
    pub shape: ProductShape,
}

/// An error in a product or a list of processors to plan for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// Powers of processors are missing, or are no powers.
    #[error(
        "powers of {powers:?} for {processors} processors: expected a finite number of watts, 0 or above, for each"
    )]
    Powers {
        /// The powers.
        powers: energy::Powers,
        /// Number of processors.
        processors: usize,
    },
    /// A size is zero or too large.
    #[error(
        "a product of {rows} rows × {columns} columns × depth {depth}: expected sizes from 1 to {LARGEST}"
    )]
    Size {
        /// Tokens.
        rows: usize,
        /// Output features.
        columns: usize,
        /// Input features.
        depth: usize,
    },
    /// A length is not a standard length.
    #[error(
        "a standard length of {length} rows: expected powers of two from {SHORTEST} to {LONGEST}"
    )]
    StandardLength {
        /// The length.
        length: usize,
    },
    /// A list of standard lengths is empty.
    #[error("there is no standard length: expected powers of two from {SHORTEST} to {LONGEST}")]
    NoStandardLength,
    /// There is no processor.
    #[error("there is no processor for products: expected at least one")]
    NoProcessor,
    /// A processor is in a list twice.
    #[error("processor {} is listed twice: expected each processor once", processor.index())]
    Duplicate {
        /// The processor.
        processor: ProcessorId,
    },
    /// The time of a join is negative or not finite.
    #[error("a join takes {seconds} seconds: expected a finite number of 0 or above")]
    Join {
        /// The time in seconds.
        seconds: f64,
    },
    /// A product has too many rows for one plan.
    #[error("{shape} in {}: expected at most {most} rows", if *most == MAX_DECODE_ROWS { "decode" } else { "one plan of prefill" })]
    Rows {
        /// The product.
        shape: ProductShape,
        /// The maximum number of rows.
        most: usize,
    },
    /// A product must be cut, but no cut is possible.
    #[error(
        "{shape} can't be cut: expected two processors, and a multiple of columns or rows within it"
    )]
    NoCut {
        /// The product.
        shape: ProductShape,
    },
    /// The pieces are not a valid cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A cost that the choice depends on is unknown.
    #[error(transparent)]
    Unknown(#[from] UnknownCost),
}

//! How one product is cut across processors: the tensor partition of HeteroLLM (§4.1 of the paper) and its solver
//! (§4.3).
//!
//! A product has rows, the tokens; columns, the output features; and a depth, the input features. A [`Partition`] gives
//! rectangles of its output to processors, each as one or more [`Piece`]s. Columns of the output are rows of the
//! weights: what the paper calls row-cutting cuts columns here, and its sequence-length cutting cuts rows.
//!
//! [`candidates`] lists the partitions of a product, [`costs`] has the seconds of a product on a processor as measured,
//! [`interpolate`] has them between measured ones, [`predict`] predicts them from measurements by a decision tree or by
//! fixed rates, [`profile`] has them from the profile of a device that is not here. [`solve`] chooses the partition that
//! is complete first; [`plans`] has the choices for all products of a model and all lengths of a chunk, and [`judge`]
//! compares those that predictions lead to with those of measurements; [`exhaust`] finds the least time over all cuts
//! without the solver.

pub mod candidates;
pub mod costs;
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

/// Columns are cut at multiples of this: "row partitions aligned to 256" (§4.3).
pub const COLUMN_MULTIPLE: usize = 256;
/// Rows are cut at multiples of this: "sequence length partitions to 32" (§4.3).
pub const ROW_MULTIPLE: usize = 32;
/// The shortest and the longest standard length (§5.2.2).
const SHORTEST: usize = 32;
const LONGEST: usize = 1024;
/// Rows of a product in decode: of several tokens a step, or of several sequences.
pub const MOST_DECODE_ROWS: usize = 16;
/// No row, column or input feature of a product is beyond this.
const LARGEST: usize = 1 << 24;

/// The shape of a product: inputs `[rows, depth]` times weights `[columns, depth]` are outputs `[rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ProductShape {
    rows: usize,
    columns: usize,
    depth: usize,
}

impl ProductShape {
    /// A product of `rows` tokens, `columns` output features and `depth` input features.
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

    /// Tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Output features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Input features.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Multiplications and additions.
    pub fn operations(&self) -> f64 {
        2.0 * self.rows as f64 * self.weights()
    }

    /// Weights that are read.
    pub fn weights(&self) -> f64 {
        self.columns as f64 * self.depth as f64
    }

    /// The same weights with `rows` tokens.
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

/// The products of a block for `rows` tokens, each with its role: those that can be cut.
///
/// # Errors
/// If `rows` is zero or above 2²⁴, or a size of the block is.
pub fn products(
    block: &BlockDescription,
    hidden: usize,
    rows: usize,
) -> Result<Vec<(Role, ProductShape)>, PartitionError> {
    let linears = block.linears(hidden);
    let roles = Role::ALL.into_iter().filter(|role| role.is_product());
    let of_role = |role: Role| {
        let here = || linears.iter().filter(move |shape| role.has(shape.linear));
        // The linear layers of a product read one input.
        let depth = here().map(|shape| shape.in_features).max().unwrap_or(0);
        let columns = here().map(|shape| shape.out_features).sum();
        Ok((role, ProductShape::new(rows, columns, depth)?))
    };
    roles.map(of_role).collect()
}

/// Where a product can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Alignment {
    /// Columns are cut at multiples of this.
    pub columns: usize,
    /// Rows are cut at multiples of this.
    pub rows: usize,
    /// Whether one of two processors, where it computes any shape and the other one does not, may have the rows behind the
    /// last multiple beside some columns of those before. The paper has no such cut.
    pub margins: bool,
}

impl Default for Alignment {
    /// That of the paper (§4.3).
    fn default() -> Self {
        Self {
            columns: COLUMN_MULTIPLE,
            rows: ROW_MULTIPLE,
            margins: false,
        }
    }
}

/// Which of the two phases a product is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A prompt, or a chunk of one. Processors with static shapes compute standard lengths (§4.1.1).
    Prefill,
    /// At most 16 rows. There is a graph for each number of them, and columns alone are cut (§4.1.2).
    Decode,
}

/// Which numbers of rows a processor computes in prefill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Any: a GPU's kernels, a CPU's.
    Dynamic,
    /// Those that graphs were built for.
    Static(StandardLengths),
}

/// The numbers of rows that a processor with static shapes has graphs for in prefill: powers of two from 32 to 1,024,
/// so that each is a multiple of all shorter ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardLengths(Vec<usize>);

impl Default for StandardLengths {
    /// All of them, as in §5.2.2 of the paper.
    fn default() -> Self {
        Self(
            (SHORTEST.trailing_zeros()..=LONGEST.trailing_zeros())
                .map(|power| 1 << power)
                .collect(),
        )
    }
}

impl StandardLengths {
    /// These lengths, in any order.
    ///
    /// # Errors
    /// If there is none, or one is no power of two from 32 to 1,024.
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

    /// The lengths, the shortest first.
    pub fn lengths(&self) -> &[usize] {
        &self.0
    }

    /// The fewest lengths that are together `rows`, the longest first; `None` if no lengths are.
    fn exactly(&self, rows: usize) -> Option<Vec<usize>> {
        let (lengths, left) = self.greedy(rows);
        (left == 0).then_some(lengths)
    }

    /// Lengths that are together `rows` or more, by how many are filled before the last one, which is padded if it is
    /// longer than what is left: first the paper's padding, then its pipes (§5.2.2). 600 rows are 1,024, or 512 and
    /// 128, or 512, 64 and 32.
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

    /// Lengths that fit into `rows`, each as long as possible, and the rows that are left.
    fn greedy(&self, rows: usize) -> (Vec<usize>, usize) {
        let (mut lengths, mut left) = (Vec::new(), rows);
        for length in self.0.iter().rev() {
            lengths.extend(std::iter::repeat_n(*length, left / length));
            left %= length;
        }
        (lengths, left)
    }
}

/// A processor that pieces can be given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Which one.
    pub processor: ProcessorId,
    /// The numbers of rows that it computes.
    pub shapes: Shapes,
}

impl Participant {
    /// The processors of a list: NPUs have static shapes and all standard lengths, others any shape.
    pub fn of(processors: &Processors) -> Vec<Self> {
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

    /// Ways to compute `rows`, each as the lengths that are computed one after the other, the last one padded where it
    /// is longer than what is left.
    fn covers(&self, rows: usize, phase: Phase) -> Vec<Vec<usize>> {
        match (&self.shapes, phase) {
            (Shapes::Static(lengths), Phase::Prefill) => lengths.covers(rows),
            (Shapes::Dynamic, _) | (_, Phase::Decode) => vec![vec![rows]],
        }
    }

    /// How to compute `rows` without padding in prefill, if it can be done.
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
    /// Whether rows are computed that nobody needs.
    pub fn is_padded(&self) -> bool {
        self.rows > self.part.rows.len()
    }

    /// The shape that its processor computes, of a product of this depth.
    pub fn shape(&self, depth: usize) -> ProductShape {
        ProductShape {
            rows: self.rows,
            columns: self.part.columns.len(),
            depth,
        }
    }
}

/// How a partition is made, by the paper's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One processor, in one go, without padding.
    Alone,
    /// One processor, its rows padded to a standard length (§5.2.2).
    Padding,
    /// One processor, in several standard lengths one after the other (§5.2.2).
    Pipe,
    /// Columns are cut; each processor computes all rows in one go (§4.1.1, §4.1.2).
    RowCutting,
    /// Rows are cut: a standard length on one processor, the rest on the other (§4.1.1).
    SequenceLengthCutting,
    /// Rows are cut: several standard lengths on one processor, the rest on the other (§4.1.1).
    MultiSequenceLengthCutting,
    /// Columns are cut, and processors with static shapes compute padded rows or a pipe (§4.1.1).
    HybridCutting,
    /// Rows are cut, and the columns of all but the margin, which a third processor has or one of the two.
    MarginAndRowCutting,
}

impl Strategy {
    /// Name for people and files.
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

    /// Whether one processor computes all of the product.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Alone | Self::Padding | Self::Pipe)
    }
}

/// A product given to processors: its pieces cover the output without overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// How it is made.
    pub strategy: Strategy,
    /// What is computed where. Those of one processor are computed one after the other.
    pub pieces: Vec<Piece>,
}

/// A cost that nobody measured, or that is outside of what predictions were fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what {shape} take on processor {} is not known: expected a measurement, or a prediction whose range has it", processor.index())]
pub struct UnknownCost {
    /// On which processor.
    pub processor: ProcessorId,
    /// Of which product.
    pub shape: ProductShape,
}

/// A product or a list of processors that can't be planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
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
    /// A standard length that is none.
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
    /// Nobody computes anything.
    #[error("there is no processor to give a product to: expected at least one")]
    NoProcessor,
    /// A processor is in a list twice.
    #[error("processor {} is given products twice: expected each processor once", processor.index())]
    Duplicate {
        /// Which one.
        processor: ProcessorId,
    },
    /// Synchronizing or copying takes a time that is none.
    #[error("a join takes {seconds} seconds: expected a finite number of 0 or above")]
    Join {
        /// The time.
        seconds: f64,
    },
    /// Too many rows for one plan.
    #[error("{shape} in {}: expected at most {most} rows", if *most == MOST_DECODE_ROWS { "decode" } else { "one plan of prefill" })]
    Rows {
        /// The product.
        shape: ProductShape,
        /// How many rows it may have.
        most: usize,
    },
    /// A product has to be cut and can't be.
    #[error(
        "{shape} can't be cut: expected two processors, and a multiple of columns or rows within it"
    )]
    NoCut {
        /// The product.
        shape: ProductShape,
    },
    /// Pieces that are no cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A cost that the choice depends on is not known.
    #[error(transparent)]
    Unknown(#[from] UnknownCost),
}

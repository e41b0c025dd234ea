//! Cuts of a subgraph's output on one chunk into parts for several processors.
//!
//! A [`Cut`] assigns parts of an output to processors, by fixed [`Shares`] of its rows or columns, or as [`Planned`]
//! for each number of rows. [`Cut::parts`] returns rectangles that cover the output without overlap. The tasks that
//! read the output wait for all of its parts: see [`PrefillTasks`](crate::tasks::PrefillTasks).

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::graph::Role;
use crate::processors::ProcessorId;

/// A rectangle of the output of a subgraph on a chunk, `[rows, columns]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Rows of the chunk, counted from its first token.
    pub rows: Range<usize>,
    /// Output features: [`Subgraph::output_columns`](crate::graph::Subgraph::output_columns).
    pub columns: Range<usize>,
}

/// The dimension that is cut into shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// The tokens of a chunk. Each processor reads all weights.
    Rows,
    /// The output features. Each processor reads the whole input and its share of the weights.
    Columns,
}

/// The share of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The processor.
    pub processor: ProcessorId,
    /// The share, relative to the sum of all shares.
    pub share: f64,
}

/// The output of one processor in one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// The processor.
    pub processor: ProcessorId,
    /// The part of the output.
    pub part: Part,
    /// Number of rows computed: those of the part, or a standard length with padding at the end.
    pub rows: usize,
}

/// A division of an output among processors.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// The same proportion for every number of rows.
    Shares(Shares),
    /// A plan for each number of rows.
    Planned(Planned),
}

/// Rows or columns in a fixed proportion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shares {
    axis: Axis,
    shares: Vec<Share>,
    multiple: usize,
}

/// Pieces for some numbers of rows. For another number of rows, the pieces of the next larger one are used without the
/// rows that the output does not have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    columns: usize,
    by_rows: BTreeMap<usize, Vec<Piece>>,
}

/// An error in a cut.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// No processor has a share.
    #[error("the shares of a cut are all zero: expected at least one above 0")]
    Empty,
    /// A share is negative or not finite.
    #[error("the share of processor {} is {share}: expected a finite number of 0 or above", processor.index())]
    Share {
        /// The processor.
        processor: ProcessorId,
        /// The share.
        share: f64,
    },
    /// A processor has two shares.
    #[error("processor {} has two shares of a cut: expected one", processor.index())]
    Duplicate {
        /// Which processor.
        processor: ProcessorId,
    },
    /// Parts would have to start at multiples of 0.
    #[error("the multiple of a cut is 0: expected at least 1")]
    Multiple,
    /// The pieces do not cover each element of an output once.
    #[error(
        "the parts of a cut of {rows} rows by {columns} columns do not cover each element once"
    )]
    Cover {
        /// Rows of the output.
        rows: usize,
        /// Columns of the output.
        columns: usize,
    },
    /// There is no plan for the output.
    #[error(
        "there is no plan for {rows} rows by {columns} columns: expected at most {most_rows} by {planned_columns}"
    )]
    Unplanned {
        /// Rows of the output.
        rows: usize,
        /// Columns of the output.
        columns: usize,
        /// The largest number of rows of a plan.
        most_rows: usize,
        /// Number of columns of the plans.
        planned_columns: usize,
    },
    /// The subgraph is not a linear layer alone. Its parts would need more than their share of the input.
    #[error("{} can't be cut: expected {}", role.name(), PRODUCTS)]
    Role {
        /// The role of the subgraph.
        role: Role,
    },
    /// A linear subgraph has two cuts.
    #[error("{} is cut twice: expected one cut for each product", role.name())]
    Twice {
        /// The role of the subgraph.
        role: Role,
    },
    /// A processor of a cut can't compute the subgraph.
    #[error("processor {} has a share of {} but does not compute it: expected {}", processor.index(), role.name(), role.format().name())]
    Format {
        /// The processor.
        processor: ProcessorId,
        /// The role of the subgraph.
        role: Role,
    },
}

/// Names of the roles that can be cut: [`Role::is_product`].
pub const PRODUCTS: &str = "query-key-value, attention-output, gate-up or down";

impl Cut {
    /// Creates a cut of `axis` in the proportion of `shares`, in their order. All parts except the last start and end
    /// at a multiple of `multiple`, for example the columns of a kernel's tile.
    ///
    /// # Errors
    /// If a share is negative or not finite, all shares are zero, a processor has two shares, or `multiple` is zero.
    pub fn new(axis: Axis, shares: Vec<Share>, multiple: usize) -> Result<Self, CutError> {
        Ok(Self::Shares(Shares::new(axis, shares, multiple)?))
    }

    /// Creates a cut of outputs of `columns` columns from the pieces planned for some numbers of rows.
    ///
    /// # Errors
    /// If there are no pieces, or those of a number of rows do not cover each element of the output once.
    pub fn planned(columns: usize, by_rows: BTreeMap<usize, Vec<Piece>>) -> Result<Self, CutError> {
        if by_rows.is_empty() {
            return Err(CutError::Empty);
        }
        match by_rows
            .iter()
            .find(|(rows, pieces)| !covers(pieces, **rows, columns))
        {
            Some((rows, _)) => Err(CutError::Cover {
                rows: *rows,
                columns,
            }),
            None => Ok(Self::Planned(Planned { columns, by_rows })),
        }
    }

    /// Returns the same cut, with shares of rows that begin and end at multiples of `rows`, too. Planned pieces stay as
    /// they are.
    #[must_use]
    pub fn with_row_multiple(&self, rows: usize) -> Self {
        match self {
            Self::Shares(shares) if shares.axis == Axis::Rows => Self::Shares(Shares {
                multiple: shares.multiple.next_multiple_of(rows.max(1)),
                ..shares.clone()
            }),
            other => other.clone(),
        }
    }

    /// Returns the parts of an output of `rows` by `columns`, which cover it without overlap. A share that rounds to
    /// nothing has no part.
    ///
    /// # Errors
    /// If there is no plan for this number of rows or columns.
    pub fn parts(&self, rows: usize, columns: usize) -> Result<Vec<(ProcessorId, Part)>, CutError> {
        match self {
            Self::Shares(shares) => Ok(shares.parts(rows, columns)),
            Self::Planned(planned) => planned.parts(rows, columns),
        }
    }

    /// Returns the processors that have a part of some output. One that has several parts may be repeated.
    pub fn processors(&self) -> impl Iterator<Item = ProcessorId> {
        let (shares, pieces) = match self {
            Self::Shares(shares) => (Some(shares.shares.iter()), None),
            Self::Planned(planned) => (None, Some(planned.by_rows.values().flatten())),
        };
        let shares = shares
            .into_iter()
            .flatten()
            .filter(|share| share.share > 0.0)
            .map(|share| share.processor);
        shares.chain(pieces.into_iter().flatten().map(|piece| piece.processor))
    }

    /// Returns the pieces of outputs of at most `rows` rows and `columns` columns: for each range of columns, the
    /// number of rows computed in one run. A processor with static graphs needs one graph for each piece.
    ///
    /// # Errors
    /// If there is no plan for this number of rows or columns.
    pub fn pieces(&self, rows: usize, columns: usize) -> Result<Vec<Piece>, CutError> {
        let parts = self.parts(rows, columns)?;
        match self {
            // With fewer rows, rounding can give a part more rows than its share, up to `multiple`.
            Self::Shares(Shares { multiple, .. }) => {
                let piece = |(processor, part): (ProcessorId, Part)| {
                    let rows = part.rows.len().saturating_add(*multiple).min(rows);
                    Piece {
                        processor,
                        part,
                        rows,
                    }
                };
                Ok(parts.into_iter().map(piece).collect())
            }
            Self::Planned(planned) => {
                let enough = planned
                    .by_rows
                    .range(..rows)
                    .chain(planned.by_rows.range(rows..).take(1));
                Ok(enough.flat_map(|(_, pieces)| pieces).cloned().collect())
            }
        }
    }
}

impl Planned {
    fn parts(&self, rows: usize, columns: usize) -> Result<Vec<(ProcessorId, Part)>, CutError> {
        let plan = self
            .by_rows
            .range(rows..)
            .next()
            .filter(|_| columns == self.columns);
        let Some((_, pieces)) = plan else {
            let most_rows = self.by_rows.keys().next_back().copied().unwrap_or(0);
            return Err(CutError::Unplanned {
                rows,
                columns,
                most_rows,
                planned_columns: self.columns,
            });
        };
        let part = |piece: &Piece| {
            let Part {
                rows: of_part,
                columns,
            } = &piece.part;
            let rows = of_part.start.min(rows)..of_part.end.min(rows);
            (!rows.is_empty()).then(|| {
                (
                    piece.processor,
                    Part {
                        rows,
                        columns: columns.clone(),
                    },
                )
            })
        };
        Ok(pieces.iter().filter_map(part).collect())
    }
}

/// Returns whether pieces cover each element of an output of `rows` by `columns` once.
fn covers(pieces: &[Piece], rows: usize, columns: usize) -> bool {
    let is_piece = |Piece {
                        part,
                        rows: computed,
                        ..
                    }: &Piece| {
        let Part {
            rows: of_part,
            columns: of_columns,
        } = part;
        let is_within = of_part.end <= rows && of_columns.end <= columns;
        is_within && !of_part.is_empty() && !of_columns.is_empty() && of_part.len() <= *computed
    };
    let overlap =
        |one: &Range<usize>, other: &Range<usize>| one.start < other.end && other.start < one.end;
    let is_apart = |(index, piece): (usize, &Piece)| {
        let part = &piece.part;
        let mut before = pieces[..index].iter().map(|other| &other.part);
        !before
            .any(|other| overlap(&part.rows, &other.rows) && overlap(&part.columns, &other.columns))
    };
    let area: usize = pieces
        .iter()
        .map(|piece| piece.part.rows.len() * piece.part.columns.len())
        .sum();
    pieces.iter().all(is_piece) && pieces.iter().enumerate().all(is_apart) && area == rows * columns
}

impl Shares {
    /// Creates shares of `axis` in the proportion of `shares`, in their order. All parts except the last start and end
    /// at a multiple of `multiple`, for example the columns of a kernel's tile.
    ///
    /// # Errors
    /// If a share is negative or not finite, all shares are zero, a processor has two shares, or `multiple` is zero.
    fn new(axis: Axis, shares: Vec<Share>, multiple: usize) -> Result<Self, CutError> {
        for (index, Share { processor, share }) in shares.iter().copied().enumerate() {
            if !(share >= 0.0 && share.is_finite()) {
                return Err(CutError::Share { processor, share });
            }
            if shares[..index]
                .iter()
                .any(|other| other.processor == processor)
            {
                return Err(CutError::Duplicate { processor });
            }
        }
        let sum: f64 = shares.iter().map(|share| share.share).sum();
        match (sum > 0.0 && sum.is_finite(), multiple) {
            (false, _) => Err(CutError::Empty),
            (true, 0) => Err(CutError::Multiple),
            (true, _) => Ok(Self {
                axis,
                shares,
                multiple,
            }),
        }
    }

    /// Returns the parts of an output of `rows` by `columns` in the order of the shares. They cover it without overlap.
    /// A share that rounds to nothing has no part.
    fn parts(&self, rows: usize, columns: usize) -> Vec<(ProcessorId, Part)> {
        let length = if self.axis == Axis::Rows {
            rows
        } else {
            columns
        };
        let sum: f64 = self.shares.iter().map(|share| share.share).sum();
        let last = self.shares.iter().rposition(|share| share.share > 0.0);
        let (mut parts, mut start, mut before) = (Vec::new(), 0, 0.0);
        for (index, Share { processor, share }) in self.shares.iter().enumerate() {
            before += share;
            let tiles = (before / sum * length as f64 / self.multiple as f64).round() as usize;
            let end = if last.is_some_and(|last| index >= last) {
                length
            } else {
                tiles.saturating_mul(self.multiple)
            };
            let range = start..end.clamp(start, length);
            start = range.end;
            if !range.is_empty() {
                let part = match self.axis {
                    Axis::Rows => Part {
                        rows: range,
                        columns: 0..columns,
                    },
                    Axis::Columns => Part {
                        rows: 0..rows,
                        columns: range,
                    },
                };
                parts.push((*processor, part));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn cuts()(
            axis in prop_oneof![Just(Axis::Rows), Just(Axis::Columns)],
            shares in prop::collection::vec(prop_oneof![1 => Just(0.0), 4 => 0f64..1.0], 1..5),
            some in 0usize..5,
            multiple in 1usize..40,
        ) -> Shares {
            let shares = shares.iter().enumerate();
            let mut shares: Vec<_> =
                shares.map(|(index, share)| Share { processor: ProcessorId::new(index), share: *share }).collect();
            let some = some % shares.len();
            shares[some].share += 0.1;
            Shares::new(axis, shares, multiple).unwrap()
        }
    }

    proptest! {
        #[test]
        fn every_element_of_an_output_is_in_one_part(cut in cuts(), rows in 1usize..40, columns in 1usize..90) {
            let parts = cut.parts(rows, columns);
            let mut computed = vec![0; rows * columns];
            for (processor, part) in &parts {
                prop_assert!(!part.rows.is_empty() && !part.columns.is_empty());
                let share = cut.shares.iter().find(|share| share.processor == *processor).unwrap();
                prop_assert!(share.share > 0.0, "nothing is computed without a share");
                part.rows.clone().for_each(|row| part.columns.clone().for_each(|column| computed[row * columns + column] += 1));
            }
            prop_assert!(computed.iter().all(|times| *times == 1));
            for pair in parts.windows(2) {
                let [end, start] = match cut.axis {
                    Axis::Rows => [pair[0].1.rows.end, pair[1].1.rows.start],
                    Axis::Columns => [pair[0].1.columns.end, pair[1].1.columns.start],
                };
                prop_assert!(end == start && end % cut.multiple == 0);
            }
        }

        #[test]
        fn a_part_is_as_large_as_its_share_but_for_a_tile(cut in cuts(), rows in 1usize..400, columns in 1usize..900) {
            let length = if cut.axis == Axis::Rows { rows } else { columns };
            let sum: f64 = cut.shares.iter().map(|share| share.share).sum();
            let parts = cut.parts(rows, columns);
            for share in &cut.shares {
                let part = parts.iter().find(|(processor, _)| *processor == share.processor);
                let of_axis = |part: &Part| if cut.axis == Axis::Rows { part.rows.len() } else { part.columns.len() };
                let size = part.map_or(0, |(_, part)| of_axis(part)) as f64;
                let exact = share.share / sum * length as f64;
                prop_assert!((size - exact).abs() <= cut.multiple as f64 + 1e-6, "{size} for {exact}");
            }
        }
    }

    #[test]
    fn a_cut_that_makes_no_sense_is_refused() {
        let share = |index, share| Share {
            processor: ProcessorId::new(index),
            share,
        };
        let cut = |shares: &[Share], multiple| {
            Cut::new(Axis::Columns, shares.to_vec(), multiple).unwrap_err()
        };
        assert_eq!(cut(&[], 1), CutError::Empty);
        assert_eq!(cut(&[share(0, 0.0)], 1), CutError::Empty);
        assert_eq!(cut(&[share(0, 1.0)], 0), CutError::Multiple);
        assert!(
            cut(&[share(0, -1.0)], 1)
                .to_string()
                .contains("processor 0 is -1")
        );
        assert!(cut(&[share(0, f64::NAN)], 1).to_string().contains("NaN"));
        assert_eq!(
            cut(&[share(1, 1.0), share(1, 1.0)], 1),
            CutError::Duplicate {
                processor: ProcessorId::new(1)
            }
        );
    }
}

//! Measured times of the products of decode steps, and how steps are cut by them (HeteroLLM, §4.1.2).

use serde::{Deserialize, Serialize};
use triad_kernels::int8::Int8Weight;
use triad_model::description::ModelDescription;
use triad_plan::graph::Role;
use triad_plan::partition::plans::{Plans, products_of};
use triad_plan::partition::solve::{Choice, Restriction, Solver};
use triad_plan::partition::{self, Alignment, Participant, ProductShape};
use triad_plan::processors::ProcessorId;

use super::times::{MAX_TIMES, MeasuredJoins, ProductTime, costs_of};
use crate::error::{Error, Result};
use crate::work::columns_can_be_cut;

/// Columns of a product are cut at multiples of this, or of a multiple of it.
const COLUMNS: usize = Int8Weight::COLUMNS;
/// Maximum places at which the columns of a product are cut.
const MAX_PLACES: usize = 32;

/// The times of products of decode steps on a list of processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeCosts {
    /// Rows of the steps, ascending.
    pub rows: Vec<usize>,
    /// The times to join tasks as short as those of a step.
    pub joins: MeasuredJoins,
    /// The times of the blocks' products.
    pub products: Vec<ProductTime>,
    /// The times of the output matrix, on processors with our own kernels.
    pub output: Vec<ProductTime>,
}

/// How the products of a step of decode are cut.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodePlans {
    /// The plans of the blocks' products.
    pub products: Plans,
    /// The choices for the output matrix by number of rows, ascending.
    pub output: Vec<Choice>,
}

impl DecodeCosts {
    /// # Errors
    /// If the costs can't be measurements of these processors.
    pub(super) fn check(&self, processors: usize) -> Result<(), String> {
        let expect = |holds: bool, what: &str| {
            if holds {
                Ok(())
            } else {
                Err(format!("decode: expected {what}"))
            }
        };
        let is_step = |rows: &usize| (1..=partition::MAX_DECODE_ROWS).contains(rows);
        expect(
            !self.rows.is_empty() && self.rows.is_sorted_by(|a, b| a < b),
            "ascending numbers of rows",
        )?;
        expect(self.rows.iter().all(is_step), "steps of 1 to 16 rows")?;
        let times = self.products.len() + self.output.len();
        expect(times <= MAX_TIMES, "at most 65536 times")?;
        expect(
            self.joins.float.index() < processors,
            "a processor of the list that computes floats",
        )?;
        let mut all = self.products.iter().chain(&self.output);
        expect(
            all.all(|time| time.processor.index() < processors),
            "times of processors of the list",
        )?;
        self.joins.joins().map_err(|error| error.to_string())?;
        costs_of(&self.products)?;
        costs_of(&self.output)?;
        Ok(())
    }

    /// Returns how the products of a model are cut.
    ///
    /// # Errors
    /// If the model has a product that was not measured.
    pub(super) fn plans(
        &self,
        description: &ModelDescription,
        participants: Vec<Participant>,
        restriction: Restriction,
    ) -> Result<DecodePlans> {
        let costs = |times: &[ProductTime]| {
            costs_of(times).map_err(|problem| Error::ProductCosts { problem })
        };
        let joins = self.joins.joins()?;
        let most = self.rows.last().copied().unwrap_or(1);
        let products = products_of(description, most, |role, shape| {
            alignment(description, role, shape)
        })?;
        let has_output = |one: &Participant| {
            self.output
                .iter()
                .any(|time| time.processor == one.processor)
        };
        let of_output: Vec<_> = participants
            .iter()
            .filter(|one| has_output(one))
            .cloned()
            .collect();
        let solver = Solver::new(participants, costs(&self.products)?, joins)?;
        let products = Plans::solve_decode(&solver, &products, restriction, &self.rows)?;
        // If a single processor computes floats, the output matrix can't be cut.
        let restriction = if of_output.len() > 1 {
            restriction
        } else {
            Restriction::Layer
        };
        let solver = Solver::new(of_output, costs(&self.output)?, joins)?;
        let choose = |rows: &usize| {
            let (shape, alignment) = output_product(description, *rows)?;
            Ok(solver.solve_aligned(shape, partition::Phase::Decode, restriction, alignment)?)
        };
        let output = self.rows.iter().map(choose).collect::<Result<_>>()?;
        Ok(DecodePlans { products, output })
    }
}

impl DecodePlans {
    /// Returns the choice for the output matrix in steps of `rows` rows; `None` beyond the longest one.
    pub fn output(&self, rows: usize) -> Option<&Choice> {
        self.output
            .iter()
            .find(|choice| choice.shape.rows() >= rows)
    }

    /// Returns the maximum rows of a step that are planned.
    pub(crate) fn most_rows(&self) -> usize {
        self.output.last().map_or(0, |choice| choice.shape.rows())
    }

    /// Returns whether some product of a step of `rows` rows is not computed completely on `float`.
    pub(crate) fn cuts(&self, rows: usize, float: ProcessorId) -> bool {
        let products = self
            .products
            .products()
            .iter()
            .filter_map(|plan| plan.choice(rows));
        let mut choices = products.chain(self.output(rows));
        choices.any(|choice| {
            choice
                .best
                .partition
                .pieces
                .iter()
                .any(|piece| piece.processor != float)
        })
    }
}

/// Returns the output matrix as a product, and where it can be cut.
pub(crate) fn output_product(
    description: &ModelDescription,
    rows: usize,
) -> Result<(ProductShape, Alignment)> {
    let shape = ProductShape::new(rows, description.vocab, description.hidden)?;
    Ok((
        shape,
        Alignment {
            columns: multiple(shape),
            ..Alignment::default()
        },
    ))
}

/// Returns where the output of a step's product may be cut. The places are closer than for chunks, since a part of a
/// chunk takes as long as many parts of a step.
pub(crate) fn alignment(
    description: &ModelDescription,
    role: Role,
    shape: ProductShape,
) -> Alignment {
    let columns = if columns_can_be_cut(description, role) {
        multiple(shape)
    } else {
        shape.columns()
    };
    Alignment {
        columns,
        ..Alignment::default()
    }
}

fn multiple(shape: ProductShape) -> usize {
    COLUMNS * shape.columns().div_ceil(MAX_PLACES * COLUMNS)
}

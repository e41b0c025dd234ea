//! Products of a model that another processor computes in part while the GPU runs the rest.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use triad_model::description::Linear;

use super::super::context::Context;
use super::buffers::QUAD;
use super::outer_division::Divided;
use super::outer_worker::{Programs, Worker};
use crate::error::{Error, Result};
use crate::model::{DeviceLinear, DeviceWeight, JoinStatistics};
use crate::multiplier::{Division, Multiplier, ProductPart, ProductPrograms, ProductWait, covers};

/// A product of which another processor computes parts.
pub(super) struct Outer {
    pub block: usize,
    pub layers: Vec<Linear>,
    /// Columns and maximum rows of each program.
    programs: Vec<(Range<usize>, usize)>,
    division: Division,
    pub in_features: usize,
    /// Columns of each layer, in their order.
    pub widths: Vec<usize>,
    /// The steps in which the GPU computes the product alone, one for each slab of the weights.
    pub product_steps: Range<usize>,
    /// The steps that join what the other processor computed, one for each slab.
    pub join_steps: Range<usize>,
}

/// The parts of a product for a number of rows.
pub(super) struct Parts {
    /// Parts of the GPU.
    pub own: Vec<ProductPart>,
    /// Parts of the other processor, each with the index of its program.
    pub other: Vec<(ProductPart, usize)>,
}

/// The products, and the processor that computes them.
pub(super) struct Outers {
    pub list: Vec<Outer>,
    pub worker: Option<Worker>,
    /// Whether the other processor has failed. The GPU then computes all products, until the other one is tried again.
    is_lost: bool,
    /// Its failure, until it was reported.
    failure: Option<Error>,
    /// Multiplications and additions of its products so far.
    pub operations: u64,
    pub statistics: JoinStatistics,
    /// Divisions by number of rows, and the generation of the buffers for which they were made.
    pub divided: HashMap<usize, Arc<Vec<Divided>>>,
    pub generation: Option<(u64, u64)>,
}

impl std::fmt::Debug for Outers {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Outers")
            .field("products", &self.list.len())
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl Outer {
    /// Returns whether it is the product of these layers of a block.
    pub fn is_of(&self, block: usize, names: &[Linear]) -> bool {
        self.block == block
            && self
                .layers
                .first()
                .is_some_and(|first| names.contains(first))
    }

    /// Checks the layers, which are all that read one input, and keeps their shapes.
    ///
    /// # Errors
    /// If they are others than those of the programs, or read floats.
    pub fn check(
        &mut self,
        context: &Context,
        layers: &[(Linear, DeviceLinear)],
        in_features: usize,
    ) -> Result<()> {
        let reads_int8 =
            |(_, layer): &(Linear, DeviceLinear)| matches!(layer.weight, DeviceWeight::Int8(..));
        if !layers.iter().all(reads_int8) {
            return Err(self.refused(
                context,
                "another processor multiplies INT8, and its layers read floats",
            ));
        }
        let names: Vec<_> = layers.iter().map(|(name, _)| *name).collect();
        if names != self.layers {
            let reason = format!(
                "another processor computes {:?}: expected {names:?}",
                self.layers
            );
            return Err(self.refused(context, &reason));
        }
        let widths = layers
            .iter()
            .map(|(_, layer)| layer.out_features(in_features));
        self.widths = widths.collect();
        self.in_features = in_features;
        let all = self.columns();
        let is_outside = |(columns, rows): &&(Range<usize>, usize)| {
            columns.is_empty() || columns.end > all || *rows == 0
        };
        match self.programs.iter().find(is_outside) {
            None => Ok(()),
            Some((columns, rows)) => {
                let reason = format!(
                    "a program for columns {columns:?} of {rows} rows: expected some of {all} columns"
                );
                Err(self.refused(context, &reason))
            }
        }
    }

    pub fn refused(&self, context: &Context, reason: &str) -> Error {
        Error::GpuModel {
            gpu: context.name.clone(),
            reason: format!("block {}: {reason}", self.block),
        }
    }

    /// Returns the columns of all layers.
    pub fn columns(&self) -> usize {
        self.widths.iter().sum()
    }

    /// Returns the number of columns of each layer among some columns of all.
    pub fn widths_of(&self, columns: &Range<usize>) -> Vec<usize> {
        let mut first = 0;
        let mut widths = Vec::new();
        for width in &self.widths {
            let (start, end) = (columns.start.max(first), columns.end.min(first + width));
            widths.extend(end.checked_sub(start).filter(|width| *width > 0));
            first += width;
        }
        widths
    }

    /// Divides the outputs of `rows` rows.
    ///
    /// # Errors
    /// If the parts do not cover the outputs once, or there is no program for a part.
    pub fn divide(&self, context: &Context, rows: usize) -> Result<Parts> {
        let parts = (self.division)(rows);
        if !covers(&parts, rows, self.columns()) {
            let reason = format!(
                "parts of {rows} rows by {} columns that do not cover each output once: {parts:?}",
                self.columns()
            );
            return Err(self.refused(context, &reason));
        }
        let (other, own): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.by_other);
        let with_program = |part: ProductPart| {
            let fits = |(_, (columns, rows)): &(usize, &(Range<usize>, usize))| {
                *columns == part.columns && part.rows.len() <= *rows
            };
            // With static shapes, a program computes all rows that it was prepared for.
            let programs = self.programs.iter().enumerate().filter(fits);
            match programs.min_by_key(|(_, (_, rows))| *rows) {
                Some((program, _)) => Ok((part, program)),
                None => Err(self.refused(
                    context,
                    &format!("another processor has no program for {part:?}"),
                )),
            }
        };
        let other = other.into_iter().map(with_program).collect::<Result<_>>()?;
        Ok(Parts { own, other })
    }
}

impl Outers {
    /// Starts the thread of the other processor.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn new(multiplier: Option<Multiplier>) -> Result<Self> {
        let Multiplier {
            name,
            time_out,
            wait,
            products,
        } = multiplier.unwrap_or_default();
        let (mut list, mut programs) = (Vec::new(), Vec::new());
        for ProductPrograms {
            block,
            layers,
            programs: of_product,
            division,
        } in products
        {
            let described = of_product
                .iter()
                .map(|program| (program.columns.clone(), program.rows));
            list.push(Outer {
                block,
                layers,
                programs: described.collect(),
                division,
                in_features: 0,
                widths: Vec::new(),
                product_steps: 0..0,
                join_steps: 0..0,
            });
            programs.push(
                of_product
                    .into_iter()
                    .map(|program| program.program)
                    .collect(),
            );
        }
        let worker = Self::start(&name, programs, (time_out, wait))?;
        Ok(Self {
            list,
            worker,
            is_lost: false,
            failure: None,
            operations: 0,
            statistics: JoinStatistics::default(),
            divided: HashMap::new(),
            generation: None,
        })
    }

    fn start(
        name: &str,
        programs: Vec<Programs>,
        how: (Duration, ProductWait),
    ) -> Result<Option<Worker>> {
        if programs.is_empty() {
            return Ok(None);
        }
        let worker = Worker::start(name, programs, how);
        worker.map(Some).map_err(|error| Error::Run {
            processor: name.to_owned(),
            reason: format!("no thread drives it: {error}"),
        })
    }

    /// Checks that each product is one of the model, and that outputs of `rows` rows can be divided.
    ///
    /// # Errors
    /// If one is not.
    pub fn check(&mut self, context: &Context, rows: usize) -> Result<()> {
        if let Some(outer) = self.list.iter().find(|outer| outer.join_steps.is_empty()) {
            let reason = format!(
                "it has no product of {:?}, or two lists of programs for it",
                outer.layers
            );
            return Err(outer.refused(context, &reason));
        }
        self.list
            .iter()
            .try_for_each(|outer| outer.divide(context, rows).map(|_| ()))
    }

    /// Returns whether the other processor multiplies.
    pub fn are_running(&self) -> bool {
        self.worker.is_some() && !self.is_lost
    }

    /// Records that the other processor has failed.
    pub fn lose(&mut self, error: Error) {
        self.is_lost = true;
        self.failure = Some(error);
    }

    /// Lets the other processor multiply again, unless it still hangs.
    pub fn retry(&mut self) {
        if self.is_lost {
            self.is_lost = !self.worker.as_mut().is_some_and(Worker::has_returned);
        }
    }

    /// Returns the failure, once.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Returns the words of the largest buffers for `rows` rows: of rows that are read, with their scales, and of
    /// outputs that are written.
    pub fn words(&self, rows: usize) -> (usize, usize) {
        let most = |of: &dyn Fn(&Outer) -> usize| self.list.iter().map(of).max().unwrap_or(0);
        let read = most(&|outer| outer.in_features / QUAD + 1);
        let written = most(&|outer| outer.columns());
        (rows * read, rows * written)
    }
}

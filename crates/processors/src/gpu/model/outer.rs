//! Products of a model that another processor computes in part while the GPU runs the rest.

use std::ops::Range;

use triad_model::description::Linear;

use super::super::context::Context;
use crate::error::{Error, Result};
use crate::model::{DeviceLinear, DeviceWeight};
use crate::multiplier::{Division, ProductPart, covers};

/// A product of which another processor computes parts.
pub(super) struct Outer {
    pub block: usize,
    pub layers: Vec<Linear>,
    /// Columns and maximum rows of each program.
    pub programs: Vec<(Range<usize>, usize)>,
    pub division: Division,
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

//! Products of a model that another processor computes while the GPU runs the rest.

use std::fmt;

use triad_kernels::int8::{Int8Weight, QuantizedRows};
use triad_model::description::Linear;

use super::super::context::Context;
use super::buffers::QUAD;
use crate::device::ProductProgram;
use crate::error::{Error, Result};
use crate::model::{DeviceLinear, DeviceWeight};

/// A product of which another processor computes the last columns.
pub(super) struct Outer {
    pub(super) product: ProductProgram,
    /// First column, among those of all layers that read the input, that the program computes.
    pub from: usize,
    pub(super) in_features: usize,
    /// The step before which the quantized rows are read, and the step that reads the program's outputs.
    pub first_step: usize,
    pub join_step: usize,
}

impl fmt::Debug for Outer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.product.fmt(f)
    }
}

/// The products, and what was computed of them.
#[derive(Debug, Default)]
pub(super) struct Outers {
    pub list: Vec<Outer>,
    /// Whether the other processor has failed. The GPU then computes all products, until the other one is tried again.
    is_lost: bool,
    /// Its failure, until it was reported.
    failure: Option<Error>,
    /// Multiplications and additions of its products so far.
    pub(super) operations: u64,
    pub(super) rows: QuantizedRows,
    pub(super) numbers: Vec<i8>,
    pub(super) scales: Vec<f32>,
    pub(super) computed: Vec<f32>,
}

impl Outer {
    pub fn new(product: ProductProgram) -> Self {
        Self {
            product,
            from: 0,
            in_features: 0,
            first_step: 0,
            join_step: 0,
        }
    }

    /// Returns whether the program multiplies by some of these layers of a block.
    pub fn is_of(&self, block: usize, layers: &[Linear]) -> bool {
        let mut outputs = self.product.outputs.iter();
        self.product.block == block && outputs.any(|(linear, _)| layers.contains(linear))
    }

    /// Checks that the program computes the last columns of `layers`, and keeps the first of these columns.
    ///
    /// # Errors
    /// If it computes others, or the layers read floats.
    pub fn check(
        &mut self,
        context: &Context,
        layers: &[(Linear, DeviceLinear)],
        [in_features, columns]: [usize; 2],
    ) -> Result<()> {
        let refused = |reason: String| Error::GpuModel {
            gpu: context.name.clone(),
            reason: format!("block {}: {reason}", self.product.block),
        };
        let outputs = &self.product.outputs;
        let reads_int8 = |layer: &DeviceLinear| matches!(layer.weight, DeviceWeight::Int8(..));
        if !layers.iter().all(|(_, layer)| reads_int8(layer)) {
            let reason = "another processor multiplies INT8, and its layers read floats";
            return Err(refused(reason.to_owned()));
        }
        let before = layers.len().saturating_sub(outputs.len());
        let last = layers[before..].iter().enumerate();
        let is_output = |(index, (linear, layer)): (usize, &(Linear, DeviceLinear))| {
            let (other, range) = &outputs[index];
            other == linear
                && range.end == layer.out_features(in_features)
                && (index == 0 || range.start == 0)
                && !range.is_empty()
        };
        let are_last = layers.len() - before == outputs.len() && last.clone().all(is_output);
        let computed: usize = outputs.iter().map(|(_, range)| range.len()).sum();
        let from = columns.checked_sub(computed);
        match from.filter(|from| are_last && from.is_multiple_of(Int8Weight::COLUMNS)) {
            Some(from) => {
                (self.from, self.in_features) = (from, in_features);
                Ok(())
            }
            None => Err(refused(format!(
                "another processor computes {outputs:?} of {columns} columns: expected the last ones of its layers, from \
                 a multiple of {} on",
                Int8Weight::COLUMNS
            ))),
        }
    }

    /// Returns whether the program has its steps.
    fn is_placed(&self) -> bool {
        self.join_step > 0
    }

    /// Returns the columns that the program computes.
    pub fn columns(&self) -> usize {
        let outputs = self.product.outputs.iter();
        outputs.map(|(_, range)| range.len()).sum()
    }
}

impl Outers {
    pub fn new(products: Vec<ProductProgram>) -> Self {
        Self {
            list: products.into_iter().map(Outer::new).collect(),
            ..Self::default()
        }
    }

    /// Checks that each program is for a product of the model.
    ///
    /// # Errors
    /// If one is not.
    pub fn check(&self, context: &Context) -> Result<()> {
        match self.list.iter().find(|outer| !outer.is_placed()) {
            None => Ok(()),
            Some(outer) => Err(Error::GpuModel {
                gpu: context.name.clone(),
                reason: format!("it has no product as that of {outer:?}, or two programs for it"),
            }),
        }
    }

    /// Returns whether the other processor multiplies.
    pub fn are_running(&self) -> bool {
        !self.list.is_empty() && !self.is_lost
    }

    /// Records that the other processor has failed.
    pub fn lose(&mut self, error: Error) {
        self.is_lost = true;
        self.failure = Some(error);
    }

    /// Lets the other processor multiply again.
    pub fn retry(&mut self) {
        self.is_lost = false;
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

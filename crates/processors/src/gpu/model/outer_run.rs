//! Runs a chunk of which another processor computes products: the CPU only moves rows and results.
//!
//! Before such a product, the GPU quantizes its input. The quantized rows are read, and the other processor multiplies
//! them while the GPU computes its own columns, if it has any. The results are written to the GPU, which adds shadows.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::cast_slice;
use triad_kernels::OutputMut;

use super::GpuModel;
use super::buffers::{Place, WORD};
use super::outer::{Outer, Outers};
use super::slices::Chunk;
use crate::error::{Error, Result};
use crate::model::ModelOperations;

/// A failure while a chunk runs.
pub(super) enum ChunkError {
    /// The GPU failed.
    Gpu(Error),
    /// The other processor failed.
    Outer(Error),
}

impl From<Error> for ChunkError {
    fn from(error: Error) -> Self {
        Self::Gpu(error)
    }
}

impl GpuModel {
    /// Runs `steps` but the last ones, together with the products of the other processor. Returns the last steps, which
    /// are not run yet.
    ///
    /// # Errors
    /// If either processor fails. If it is the other one, the contents of all buffers are arbitrary.
    pub(super) fn run_with_outers(
        &mut self,
        steps: &[usize],
        chunk: &Chunk,
    ) -> std::result::Result<Vec<usize>, ChunkError> {
        let mut batch = Vec::new();
        for &step in steps {
            if let Some(outer) = self.outer(|outer| outer.first_step == step) {
                self.read_rows(outer, &batch, chunk)?;
                batch.clear();
            }
            if let Some(outer) = self.outer(|outer| outer.join_step == step) {
                if !batch.is_empty() {
                    // The GPU computes its own columns meanwhile.
                    let encoder = self.encode(&batch, chunk)?;
                    self.context.submit(encoder);
                    batch.clear();
                }
                self.run_outer(outer).map_err(ChunkError::Outer)?;
            }
            batch.push(step);
        }
        Ok(batch)
    }

    fn outer(&self, is_it: impl Fn(&Outer) -> bool) -> Option<usize> {
        self.outers.list.iter().position(is_it)
    }

    /// Runs `steps`, and reads the quantized rows with their scales.
    fn read_rows(&mut self, outer: usize, steps: &[usize], chunk: &Chunk) -> Result<()> {
        let mut encoder = self.encode(steps, chunk)?;
        let (rows, in_features) = (
            chunk.call.rows as usize,
            self.outers.list[outer].in_features,
        );
        let staging = self.buffers.get(Place::Staging);
        let (of_numbers, word) = ((rows * in_features) as u64, WORD as u64);
        let quantized = self.buffers.get(Place::Quantized);
        encoder.copy_buffer_to_buffer(quantized, 0, staging, 0, of_numbers);
        let of_row = ((1 + in_features) * 2 * WORD) as u64;
        let outliers = self.buffers.get(Place::Outliers);
        for row in 0..rows as u64 {
            let at = of_numbers + row * word;
            encoder.copy_buffer_to_buffer(outliers, row * of_row, staging, at, word);
        }
        let bytes = of_numbers + rows as u64 * word;
        let Outers {
            rows: quantized,
            numbers,
            scales,
            ..
        } = &mut self.outers;
        self.context.run(encoder, staging, bytes, |bytes| {
            let (of_rows, of_scales) = bytes.split_at(rows * in_features);
            numbers.clear();
            numbers.extend_from_slice(cast_slice(of_rows));
            scales.clear();
            scales.extend_from_slice(cast_slice(of_scales));
        })?;
        quantized.store(numbers, in_features, scales);
        Ok(())
    }

    /// Has the other processor multiply the rows that were read, and writes the outputs to the GPU.
    fn run_outer(&mut self, outer: usize) -> Result<()> {
        let Outers {
            list,
            rows,
            computed,
            operations,
            ..
        } = &mut self.outers;
        let outer = &mut list[outer];
        let columns = outer.columns();
        computed.resize(rows.rows() * columns, 0.0);
        let mut rest = Some(OutputMut::new(computed, columns));
        let mut outputs = Vec::new();
        for (_, range) in &outer.product.outputs {
            let left = rest.take().expect("columns of all outputs");
            if range.len() == left.columns() {
                outputs.push(left);
            } else {
                let (first, others) = left.split_at_column(range.len());
                outputs.push(first);
                rest = Some(others);
            }
        }
        let program = &mut outer.product.program;
        // A panic of the other processor is not one of the GPU.
        let run = catch_unwind(AssertUnwindSafe(|| program.run(rows.view(), &mut outputs)));
        run.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        *operations += 2 * (rows.rows() * outer.in_features * columns) as u64;
        let buffer = self.buffers.get(Place::Computed);
        self.context
            .queue
            .write_buffer(buffer, 0, cast_slice(computed));
        Ok(())
    }

    /// Returns what the GPU, and the other processor for it, have computed so far.
    pub fn operations(&self) -> ModelOperations {
        ModelOperations {
            device: self.operations as u64,
            products: self.outers.operations,
        }
    }

    /// Lets the processor that multiplied, and failed, multiply again.
    pub fn retry(&mut self) {
        self.outers.retry();
    }

    /// Returns the failure of the processor that multiplied, once.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.outers.take_failure()
    }

    pub(super) fn operations_of(&self, steps: &[usize], chunk: &Chunk) -> f64 {
        steps.iter().map(|step| self.units(*step, chunk)).sum()
    }
}

/// Returns the error of another processor whose program panicked.
fn panicked(panic: &dyn Any) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Error::Run {
        processor: "the processor that multiplies".to_owned(),
        reason: format!("it panicked: {}", text.unwrap_or("without a message")),
    }
}

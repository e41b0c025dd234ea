//! Runs a chunk of which another processor computes products: the CPU only moves rows and results.
//!
//! Before such a product, the GPU quantizes its input. The quantized rows are read, and the other processor multiplies
//! them while the GPU computes its own parts, if it has any. Meanwhile the commands that follow are recorded. The results
//! are written to the GPU, which adds shadows.

use std::time::Instant;

use bytemuck::cast_slice;

use super::buffers::{Place, WORD};
use super::divided::Divided;
use super::gpu_model::{GpuModel, Travelling};
use super::item::Item;
use super::outer_worker::{Done, Job};
use super::slices::Chunk;
use crate::error::{Error, Result};
use crate::model::{JoinStatistics, ModelOperations};

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
    ) -> std::result::Result<Vec<Item>, ChunkError> {
        let divided = self.divided(chunk.call.rows as usize)?;
        let mut order: Vec<_> = (0..divided.len()).collect();
        order.sort_by_key(|outer| self.outers.list[*outer].join_steps.start);
        let (mut items, mut at) = (Vec::new(), 0);
        let mut is_begun = false;
        for outer in order {
            let of_product = &divided[outer];
            let joins = self.outers.list[outer].join_steps.clone();
            let before = steps[at..].iter().take_while(|step| **step < joins.start);
            items.extend(before.map(|step| Item::Step(*step)));
            at = steps.partition_point(|step| *step < joins.end);
            self.operations += of_product.operations.0;
            let own = of_product.own.iter().cloned().map(Item::Piece);
            if of_product.other.is_empty() {
                items.extend(own);
                continue;
            }
            // Recorded while the other processor computes the product before.
            let encoder = self.encode_rows(outer, of_product, &items, chunk)?;
            if is_begun {
                self.finish_outer()?;
            }
            self.read_rows(outer, of_product, encoder)?;
            self.begin_outer(outer, of_product)?;
            is_begun = true;
            if !of_product.own.is_empty() {
                // The GPU computes its own parts meanwhile.
                let encoder = self.encode(own, chunk)?;
                self.context.submit(encoder);
            }
            items = of_product.joins.iter().cloned().map(Item::Piece).collect();
        }
        items.extend(steps[at..].iter().map(|step| Item::Step(*step)));
        if is_begun {
            self.finish_outer()?;
        }
        Ok(items)
    }

    /// Records `items`, and the copies of the quantized rows with their scales.
    pub(super) fn encode_rows(
        &mut self,
        outer: usize,
        divided: &Divided,
        items: &[Item],
        chunk: &Chunk,
    ) -> Result<wgpu::CommandEncoder> {
        let mut encoder = self.encode(items.iter().cloned(), chunk)?;
        let in_features = self.outers.list[outer].in_features;
        let (rows, read) = (chunk.call.rows as usize, &divided.read);
        let (quantized, staging) = (
            self.buffers.get(Place::Quantized),
            self.buffers.get(Place::Staging),
        );
        let bytes = |count: usize| count as u64;
        let of_numbers = bytes(read.len() * in_features);
        encoder.copy_buffer_to_buffer(
            quantized,
            bytes(read.start * in_features),
            staging,
            0,
            of_numbers,
        );
        let scales_at = bytes(rows * in_features + read.start * WORD);
        encoder.copy_buffer_to_buffer(
            quantized,
            scales_at,
            staging,
            of_numbers,
            bytes(read.len() * WORD),
        );
        Ok(encoder)
    }

    /// Submits the copies, and reads the quantized rows.
    pub(super) fn read_rows(
        &mut self,
        outer: usize,
        divided: &Divided,
        encoder: wgpu::CommandEncoder,
    ) -> Result<()> {
        let in_features = self.outers.list[outer].in_features;
        let count = divided.read.len();
        let Travelling {
            rows,
            numbers,
            scales,
            ..
        } = &mut self.travelling;
        let start = Instant::now();
        let bytes = (count * (in_features + WORD)) as u64;
        let expected = self.outers.expected(outer, count);
        let staging = (self.buffers.get(Place::Staging), bytes);
        let next = self
            .context
            .run_expected(encoder, staging, expected, |bytes| {
                let (of_rows, of_scales) = bytes.split_at(count * in_features);
                numbers.clear();
                numbers.extend_from_slice(cast_slice(of_rows));
                scales.clear();
                scales.extend_from_slice(cast_slice(of_scales));
            })?;
        self.outers.expect(outer, count, next);
        rows.store(numbers, in_features, scales);
        let statistics = &mut self.outers.statistics;
        statistics.products += 1;
        statistics.device_seconds += start.elapsed().as_secs_f64();
        statistics.bytes_read += bytes;
        Ok(())
    }

    /// Hands the rows that were read to the other processor.
    fn begin_outer(
        &mut self,
        outer: usize,
        divided: &Divided,
    ) -> std::result::Result<(), ChunkError> {
        let Travelling { rows, computed, .. } = &mut self.travelling;
        computed.resize(divided.outputs(), 0.0);
        let job = Job {
            product: outer,
            parts: divided.job_parts(),
            rows: std::mem::take(rows),
            computed: std::mem::take(computed),
        };
        let worker = self.outers.worker.as_mut().expect("products have a worker");
        worker.begin(job).map_err(ChunkError::Outer)?;
        self.outers.operations += divided.operations.1 as u64;
        Ok(())
    }

    /// Waits for the other processor, and writes its outputs to the GPU.
    fn finish_outer(&mut self) -> std::result::Result<(), ChunkError> {
        let worker = self.outers.worker.as_mut().expect("products have a worker");
        let (
            Done {
                job,
                seconds,
                ended,
                ..
            },
            waited,
        ) = worker.finish().map_err(ChunkError::Outer)?;
        let bytes: &[u8] = cast_slice(&job.computed);
        self.context
            .queue
            .write_buffer(self.buffers.get(Place::Computed), 0, bytes);
        let statistics = &mut self.outers.statistics;
        statistics.other_seconds += seconds;
        statistics.waited_seconds += waited;
        // The thread may have had other work when the product ended.
        statistics.late_seconds += ended.elapsed().as_secs_f64().min(waited);
        statistics.bytes_written += bytes.len() as u64;
        (self.travelling.rows, self.travelling.computed) = (job.rows, job.computed);
        Ok(())
    }

    /// Gives up a chunk that a processor failed at. Returns the error if it is the GPU.
    pub(super) fn lose_outer(&mut self, error: ChunkError) -> Result<()> {
        match error {
            ChunkError::Gpu(error) => {
                if let Some(worker) = &mut self.outers.worker {
                    worker.abandon();
                }
                Err(error)
            }
            ChunkError::Outer(error) => {
                self.outers.lose(error);
                Ok(())
            }
        }
    }

    /// Returns what the GPU, and the other processor for it, have computed so far.
    pub fn operations(&self) -> ModelOperations {
        ModelOperations {
            device: self.operations as u64,
            products: self.outers.operations,
            bytes_written: self.written + self.outers.statistics.bytes_written,
            bytes_read: self.read + self.outers.statistics.bytes_read,
        }
    }

    /// Returns what joining the other processor has taken so far.
    pub fn joins(&self) -> JoinStatistics {
        self.outers.statistics
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

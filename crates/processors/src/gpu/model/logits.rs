//! The last norm and the output matrix of a model, for rows that have been through all layers.

use bytemuck::{bytes_of, cast_slice};
use triad_kernels::Phase;

use super::buffers::{Place, WORD};
use super::call::Call;
use super::gpu_model::GpuModel;
use super::item::Item;
use super::slices::Chunk;
use crate::error::{Error, Result};
use crate::model::OutputRows;

impl GpuModel {
    /// Computes the logits of rows of the residual stream after the last layer, `x[rows, hidden]`.
    ///
    /// # Errors
    /// If there are more rows than outputs that the model was prepared for, or the GPU fails or takes too long.
    pub fn logits(&mut self, x: &[f32], phase: Phase, read: impl FnOnce(&[f32])) -> Result<()> {
        self.context.check()?;
        let hidden = self.description.hidden;
        let rows = x.len() / hidden;
        let prepared = self.outputs.min(self.rows);
        if rows == 0 || rows > prepared || x.len() != rows * hidden {
            return Err(Error::Rows { rows, prepared });
        }
        let call = Call {
            rows: rows as u32,
            outputs: rows as u32,
            splits: 1,
            pages_of_split: 1,
            tiles_at: 0,
            outputs_at: 0,
            returns: 0,
            unused: 0,
        };
        let table: Vec<_> = (0..rows as u32).collect();
        let words = rows * self.description.vocab;
        self.buffers
            .reserve(&self.context, Place::Table, table.len())?;
        self.buffers.reserve(&self.context, Place::Staging, words)?;
        self.bind();
        let queue = &self.context.queue;
        queue.write_buffer(&self.uniforms.0, 0, bytes_of(&call));
        queue.write_buffer(self.buffers.get(Place::Table), 0, cast_slice(&table));
        queue.write_buffer(self.buffers.get(Place::Stream), 0, cast_slice(x));
        let wanted = OutputRows {
            rows: &[],
            logits: true,
            phase,
            keys_and_values: false,
        };
        let steps = self.steps_of(&call, &wanted);
        let steps: Vec<_> = steps
            .into_iter()
            .filter(|step| self.steps[*step].of_outputs)
            .collect();
        let chunk = Chunk {
            call,
            table: &table,
            tiles: 0,
            tile_rows: self.tile_rows,
        };
        self.operations += self.operations_of(&steps, &chunk);
        let steps = self.run_slices(steps, &chunk)?;
        let mut encoder = self.encode(steps.into_iter().map(Item::Step), &chunk)?;
        let (staging, bytes) = (self.buffers.get(Place::Staging), (words * WORD) as u64);
        encoder.copy_buffer_to_buffer(self.buffers.get(Place::Logits), 0, staging, 0, bytes);
        self.context
            .run(encoder, staging, bytes, |bytes| read(cast_slice(bytes)))
    }
}

//! Recording of a chunk's dispatches, and of the copies of its outputs.

use super::buffers::{Place, WORD, returned_words};
use super::call::Call;
use super::gpu_model::GpuModel;
use super::item::Item;
use super::slices::Chunk;
use crate::error::Result;
use crate::model::OutputRows;

impl GpuModel {
    /// Encodes some dispatches in one compute pass.
    pub(super) fn encode(
        &mut self,
        items: impl IntoIterator<Item = Item>,
        chunk: &Chunk,
    ) -> Result<wgpu::CommandEncoder> {
        let mut encoder = self
            .context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for item in items {
                let (kernel, groups, bindings) = match &item {
                    Item::Step(step) => {
                        let (kernel, groups) = self.dispatch(*step, chunk);
                        (kernel, groups, &self.groups.1[*step])
                    }
                    Item::Piece(piece) => (piece.kernel, piece.groups, &piece.bindings),
                };
                pass.set_pipeline(self.pipelines.get(&self.context, kernel)?);
                pass.set_bind_group(0, bindings, &[]);
                let [x, y, z] = groups.map(|count| count as u32);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        Ok(encoder)
    }

    /// Encodes the copies of the outputs that the CPU reads.
    pub(super) fn copy_outputs(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        call: &Call,
        wanted: &OutputRows,
    ) {
        let Self {
            buffers,
            description,
            ..
        } = self;
        let staging = buffers.get(Place::Staging);
        let bytes = |words: usize| (words * WORD) as u64;
        let mut at = 0;
        if wanted.logits {
            at = bytes(wanted.rows.len() * description.vocab);
            if at > 0 {
                encoder.copy_buffer_to_buffer(buffers.get(Place::Logits), 0, staging, 0, at);
            }
        } else {
            // Copies adjacent rows together.
            for run in wanted.rows.chunk_by(|row, next| row + 1 == *next) {
                let (first, size) = (
                    bytes(run[0] * description.hidden),
                    bytes(run.len() * description.hidden),
                );
                encoder.copy_buffer_to_buffer(buffers.get(Place::Stream), first, staging, at, size);
                at += size;
            }
        }
        if wanted.keys_and_values {
            let size = bytes(returned_words(description, call.rows as usize));
            encoder.copy_buffer_to_buffer(buffers.get(Place::Returned), 0, staging, at, size);
        }
    }
}

//! Mamba-2 of Granite 4, Nemotron-H and Falcon-H1.

use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::mixer::scratch_rows;
use triad_model::description;

use crate::error::Result;
use crate::forward::kernels::mamba2_kernel;
use crate::forward::subgraphs::{Chunk, ForwardContext};

impl ForwardContext<'_> {
    /// Computes the Mamba-2 of a block.
    pub(super) fn mamba2(
        &self,
        (index, mamba): (usize, &description::Mamba2),
        chunk: Chunk,
    ) -> Result<()> {
        self.multiply_parts(mamba, chunk);
        let kernel = mamba2_kernel(mamba, &self.block(index).mixer);
        let scratch = &chunk.buffers.mixer_scratch;
        let rows = scratch_rows(chunk.buffers.rows());
        let mut scratch = scratch.write(kernel.shape().scratch_len(), 0..rows);
        self.run_states(index, mamba.state_size(), chunk, &mut |state, rows, out| {
            kernel.run(state, rows, out, &mut scratch);
        })
    }

    /// Multiplies the parts of the input layer's outputs by their factors, if they have some.
    fn multiply_parts(&self, mamba: &description::Mamba2, chunk: Chunk) {
        let Some(factors) = mamba.factors else {
            return;
        };
        let mut rows = chunk.buffers.mixed.write(mamba.row(), 0..chunk.rows());
        for_each_chunk(chunks_mut(&mut rows, mamba.row()), 1, |_, row| {
            let mut rest = row;
            for (width, factor) in mamba.parts().into_iter().zip(factors) {
                let (part, others) = rest.split_at_mut(width);
                part.iter_mut().for_each(|value| *value *= factor);
                rest = others;
            }
        });
    }
}

//! Mamba-2 of Granite 4.

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
        let kernel = mamba2_kernel(mamba, &self.block(index).mixer);
        let scratch = &chunk.buffers.mixer_scratch;
        let rows = scratch_rows(chunk.buffers.rows());
        let mut scratch = scratch.write(kernel.shape().scratch_len(), 0..rows);
        self.run_states(index, mamba.state_size(), chunk, &mut |state, rows, out| {
            kernel.run(state, rows, out, &mut scratch);
        })
    }
}

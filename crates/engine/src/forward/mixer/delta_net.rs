//! Gated DeltaNet of Qwen3-Next and Qwen3.5.

use triad_kernels::mixer::scratch_rows;
use triad_model::description;

use crate::error::Result;
use crate::forward::kernels::delta_net_kernel;
use crate::forward::subgraphs::{Chunk, ForwardContext};

impl ForwardContext<'_> {
    /// Computes the DeltaNet of a block.
    pub(super) fn delta_net(
        &self,
        (index, net): (usize, &description::DeltaNet),
        chunk: Chunk,
    ) -> Result<()> {
        let kernel = delta_net_kernel(net, &self.block(index).mixer);
        let scratch = &chunk.buffers.mixer_scratch;
        let rows = scratch_rows(chunk.buffers.rows());
        let mut scratch = scratch.write(kernel.shape().scratch_len(), 0..rows);
        self.run_states(index, net.state(), chunk, &mut |state, rows, out| {
            kernel.run(state, rows, out, &mut scratch);
        })
    }
}

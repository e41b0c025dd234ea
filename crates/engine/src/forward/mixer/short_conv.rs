//! The gated convolution of LFM2.

use triad_kernels::mixer::ShortConv;
use triad_model::description::{self, MixerWeight};

use crate::error::Result;
use crate::forward::subgraphs::{Chunk, ForwardContext};

impl ForwardContext<'_> {
    /// Computes the gated convolution of a block.
    pub(super) fn short_conv(
        &self,
        (index, conv): (usize, &description::ShortConv),
        chunk: Chunk,
    ) -> Result<()> {
        let weights = &self.block(index).mixer;
        let kernel = ShortConv::new(
            &weights[&MixerWeight::Convolution],
            weights
                .get(&MixerWeight::ConvolutionBias)
                .map(Vec::as_slice),
            conv.channels,
        );
        self.run_states(index, conv.state(), chunk, &mut |state, rows, out| {
            if let Some(out) = out {
                kernel.compute(state, rows, out);
            }
            kernel.advance(state, rows);
        })
    }
}

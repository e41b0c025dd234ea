//! The operators of mixers. Where they keep a state, each segment goes on from that of its sequence.

use triad_kernels::mixer::ShortConv;
use triad_model::description::{self, Mixer, MixerWeight};
use triad_model::role::Role;

use super::Segment;
use super::subgraphs::{Chunk, ForwardContext, MatmulContext};
use crate::error::Result;
use crate::linear_input::LinearInput;
use crate::statistics::{Bytes, Operator};

impl ForwardContext<'_> {
    /// Computes the operator of the block's mixer; quantizes its output.
    pub(super) fn mix(
        &self,
        index: usize,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        self.join_shadow(chunk.rows(), chunk.buffers);
        self.add_adapters(index, Role::QueryKeyValue, chunk);
        match &self.description.blocks[index].mixer {
            Mixer::Attention(attention) => {
                self.attention((index, attention), chunk, multiplier);
                Ok(())
            }
            Mixer::ShortConv(conv) => self.short_conv((index, conv), chunk, multiplier),
        }
    }

    /// Computes the gated convolution of a block; quantizes its output.
    fn short_conv(
        &self,
        (index, conv): (usize, &description::ShortConv),
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let (rows, buffers, channels) = (chunk.rows(), chunk.buffers, conv.channels);
        let weights = &self.block(index).mixer;
        let kernel = ShortConv::new(
            &weights[&MixerWeight::Convolution],
            weights
                .get(&MixerWeight::ConvolutionBias)
                .map(Vec::as_slice),
            channels,
        );
        let begun = self.counters.begin();
        let mixed = buffers.mixed.read(3 * channels, 0..rows);
        let mut mixer_output = buffers.attended.write(channels, 0..rows);
        for Segment {
            cache,
            rows,
            position,
            is_branch,
        } in chunk.segments
        {
            let x = &mixed[rows.start * 3 * channels..rows.end * 3 * channels];
            let out = &mut mixer_output[rows.start * channels..rows.end * channels];
            let mut update = |state: &mut [f32], x: &[f32], first: Option<usize>| {
                if let Some(first) = first {
                    let count = x.len() / (3 * channels);
                    let out = &mut out[first * channels..(first + count) * channels];
                    kernel.compute(state, x, out);
                }
                kernel.advance(state, x);
            };
            let mut cache = cache.block(index);
            if *is_branch {
                cache.go_back(*position);
            }
            cache.advance(*position, x, self.phase, &mut update)?;
        }
        self.counters.end(begun, Operator::Mixer, || {
            let states = chunk.segments.len() * kernel.state_len() * size_of::<f32>();
            let weights = weights
                .values()
                .map(|values| size_of_val(&values[..]))
                .sum();
            let (read, written) = (size_of_val(&mixed[..]), size_of_val(&mixer_output[..]));
            Bytes::of(read + states, written + states, weights)
        });
        multiplier.observe(index, LinearInput::AttentionOutput, &mixer_output);
        self.quantize(index, LinearInput::AttentionOutput, &mixer_output, chunk);
        Ok(())
    }
}

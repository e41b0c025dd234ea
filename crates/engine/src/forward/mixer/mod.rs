//! The operators of mixers. Where they keep a state, each segment goes on from that of its sequence.

mod delta_net;
mod gate;
mod latent;
mod mamba2;
mod short_conv;

use triad_model::description::{Mixer, StateSize};
use triad_model::role::Role;

use super::Segment;
use super::subgraphs::{Chunk, ForwardContext, MatmulContext};
use crate::error::Result;
use crate::linear_input::LinearInput;
use crate::statistics::{Bytes, Operator};

/// A function that brings a state from before some rows to after them, and computes their outputs if it gets room for
/// them.
type Run<'a> = &'a mut dyn FnMut(&mut [f32], &[f32], Option<&mut [f32]>);

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
        let mixer = &self.description.blocks[index].mixer;
        match mixer {
            Mixer::Attention(attention) => {
                self.attention((index, attention), chunk, multiplier);
                return Ok(());
            }
            Mixer::ShortConv(conv) => self.short_conv((index, conv), chunk)?,
            Mixer::DeltaNet(net) => self.delta_net((index, net), chunk)?,
            Mixer::Mamba2(mamba) => self.mamba2((index, mamba), chunk)?,
        }
        let mixer_output = chunk.buffers.attended.read(mixer.width(), 0..chunk.rows());
        multiplier.observe(index, LinearInput::AttentionOutput, &mixer_output);
        self.quantize(index, LinearInput::AttentionOutput, &mixer_output, chunk);
        Ok(())
    }

    /// Computes the operator of a mixer with a state.
    fn run_states(&self, index: usize, size: StateSize, chunk: Chunk, run: Run) -> Result<()> {
        let (rows, buffers, row_len) = (chunk.rows(), chunk.buffers, size.row);
        let width = self.description.blocks[index].mixer.width();
        let begun = self.counters.begin();
        let mixed = buffers.mixed.read(row_len, 0..rows);
        let mut mixer_output = buffers.attended.write(width, 0..rows);
        for Segment {
            cache,
            rows,
            position,
            is_branch,
            ..
        } in chunk.segments
        {
            let x = &mixed[rows.start * row_len..rows.end * row_len];
            let out = &mut mixer_output[rows.start * width..rows.end * width];
            let mut update = |state: &mut [f32], x: &[f32], first: Option<usize>| {
                let count = x.len() / row_len;
                let out = first.map(|first| &mut out[first * width..(first + count) * width]);
                run(state, x, out);
            };
            let mut cache = cache.block(index);
            if *is_branch {
                cache.go_back(*position);
            }
            cache.advance(*position, x, self.phase, &mut update)?;
        }
        self.counters.end(begun, Operator::Mixer, || {
            let states = chunk.segments.len() * size.state * size_of::<f32>();
            let weights = self.block(index).mixer.values();
            let weights = weights.map(|values| size_of_val(&values[..])).sum();
            let (read, written) = (size_of_val(&mixed[..]), size_of_val(&mixer_output[..]));
            Bytes::new(read + states, written + states, weights)
        });
        Ok(())
    }
}

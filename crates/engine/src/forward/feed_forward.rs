//! The feed-forward of a layer as one subgraph.

use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_kernels::{OutputMut, Phase};
use triad_model::description::Linear;
use triad_model::role::Role;

use super::subgraphs::{Chunk, ForwardContext, MatmulContext, activation, read};
use crate::error::Result;
use crate::linear::{LinearOutput, Shadows, StaticInput, shadow};
use crate::linear_input::LinearInput;
use crate::statistics::{Begun, Bytes, Operator};

impl ForwardContext<'_> {
    /// Computes gate and up, the activation, requantizing, and down: by one program, or one after the other, for
    /// example if adapters change the values in between.
    pub(super) fn feed_forward(
        &self,
        index: usize,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        if self.block(index).router.is_some() {
            return self.experts(index, chunk, multiplier);
        }
        self.dense(index, chunk, multiplier)
    }

    /// Computes [`ForwardContext::feed_forward`] without experts.
    pub(super) fn dense(
        &self,
        index: usize,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let feed_forward = &self.description.blocks[index].feed_forward;
        let is_whole = !multiplier.reads_floats(chunk) && feed_forward.has_plain_gates();
        if is_whole && self.feed_forward_program(index, chunk, multiplier)? {
            return Ok(());
        }
        if !self.gated(index, chunk, multiplier) {
            // If the shadow is computed apart, it is that of down alone.
            let shadows = std::mem::replace(&mut multiplier.shadows, Shadows::Inline);
            let outcome = self.subgraph(index, Role::GateUp, chunk, multiplier);
            multiplier.shadows = shadows;
            outcome?;
            self.activation(index, chunk, multiplier);
        }
        self.subgraph(index, Role::Down, chunk, multiplier)
    }

    /// Computes gate and up, the activation and quantizing of a prompt as one operator, if the backend has one and
    /// nothing reads the values in between in float.
    fn gated(&self, index: usize, chunk: Chunk, multiplier: &mut MatmulContext) -> bool {
        let (block, feed_forward) = (
            self.block(index),
            &self.description.blocks[index].feed_forward,
        );
        let is_plain = feed_forward.gated && feed_forward.has_plain_gates();
        if self.phase != Phase::Prefill || !is_plain || multiplier.reads_floats(chunk) {
            return false;
        }
        let (begun, activation) = (self.counters.begin(), activation(feed_forward.activation));
        let (mut input_bytes, backend) = (0, &mut multiplier.backend);
        let multiply = |x: QuantizedView, how: StaticInput, inner: &mut QuantizedRows| {
            input_bytes = x.size();
            backend.gated(index, x, activation, how, inner)
        };
        let is_done = self.make_gated(index, chunk, multiply);
        if is_done {
            self.end_made(begun, Operator::Gated, (index, chunk), || {
                let of_linear = |linear: Linear| {
                    let linear = &block.linears[&linear];
                    linear.weight.bytes() + linear.bias.as_deref().map_or(0, size_of_val)
                };
                Bytes::new(
                    input_bytes,
                    0,
                    of_linear(Linear::Gate) + of_linear(Linear::Up),
                )
            });
        }
        is_done
    }

    /// Counts a whole feed-forward that began at `begun`.
    fn count_feed_forward(&self, begun: Begun, index: usize, x: QuantizedView, projected: &[f32]) {
        self.counters.end(begun, Operator::FeedForward, || {
            let linears = [Linear::Gate, Linear::Up, Linear::Down];
            let weights = linears
                .iter()
                .filter_map(|linear| self.block(index).linears.get(linear));
            let weights = weights.map(|linear| linear.weight.bytes()).sum();
            Bytes::new(x.size(), size_of_val(projected), weights)
        });
    }

    /// Computes the feed-forward by one program, if the backend has one. The program writes the input of down to the
    /// buffer of up.
    fn feed_forward_program(
        &self,
        index: usize,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<bool> {
        let (width, hidden) = (
            self.description.blocks[index].feed_forward.width,
            self.description.hidden,
        );
        let (rows, buffers) = (chunk.rows(), chunk.buffers);
        let mut projected = buffers.projected.write(hidden, 0..rows);
        {
            let (input, mut inner) = (read(&buffers.input), buffers.up.write(width, 0..rows));
            let Some(x) = input.int8(0..rows) else {
                return Ok(false);
            };
            let begun = self.counters.begin();
            if !multiplier
                .backend
                .feed_forward(index, x, &mut projected, &mut inner)?
            {
                return Ok(false);
            }
            self.count_feed_forward(begun, index, x, &projected);
        }
        let block = self.block(index);
        let has_shadow = block
            .inputs
            .as_ref()
            .is_some_and(|inputs| inputs[LinearInput::Down.index()].has_shadow());
        if has_shadow && multiplier.shadows == Shadows::Inline {
            self.quantize(
                index,
                LinearInput::Down,
                &buffers.up.read(width, 0..rows),
                chunk,
            );
            let input = read(&buffers.input);
            let x = input
                .int8(0..rows)
                .expect("the rows were quantized for a shadow");
            let out = OutputMut::new(&mut projected, hidden);
            shadow(
                block,
                x,
                &mut [LinearOutput {
                    linear: Linear::Down,
                    columns: 0..hidden,
                    out,
                }],
                self.counters,
            );
        }
        Ok(true)
    }
}

//! Operators that run row by row between linear layers: residual additions, norms, and quantizing the input of linear
//! layers.
//!
//! A row passes through all of them while it is in a core's cache. It is written in float only if another operator
//! reads it in float.

use triad_kernels::activation::add;
use triad_kernels::chunks::{Chunks, chunks_mut, for_each_chunk};
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_kernels::lock;
use triad_kernels::norm::rms_norm_in_place;

use triad_model::description::Residual;
use triad_model::role::Role;

use super::Buffers;
use super::subgraphs::{Chunk, ForwardContext, MatmulContext, TASK_ROWS, read, write};
use crate::linear::{QuantizedInput, StaticInput};
use crate::linear_input::LinearInput;
use crate::statistics::{Begun, Bytes, Operator};
use crate::weights::Norm;

impl ForwardContext<'_> {
    /// Adds the output of half a block to the residual stream, if there is one (with its post-norm, if the family has
    /// one); computes the norm, or copies the stream if there is none; quantizes it. A row passes through all of them before the next row. It is written in
    /// float only if another operator reads it in float.
    pub(super) fn norm(
        &self,
        (index, input): (usize, LinearInput),
        (residual, norm): (Option<Addition<'_>>, Option<&Norm>),
        is_kept: bool,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) {
        let begun = self.counters.begin();
        let (rows, buffers, hidden) = (chunk.rows(), chunk.buffers, self.description.hidden);
        let of_block = self.description.blocks[index].residual;
        let replaces = match input {
            LinearInput::Attention => of_block.attention_norm_replaces(),
            _ => of_block.replaces(),
        };
        let make =
            |(x, projected): &mut (&mut [f32], &mut [f32]), row: usize, normed: &mut [f32]| {
                let place = row % TASK_ROWS * hidden;
                let (x, projected) = (&mut x[place..][..hidden], &mut projected[place..][..hidden]);
                if let Some(addition) = residual {
                    add_normed(x, projected, addition);
                }
                match norm {
                    Some(norm) => norm.normalize_rows(x, normed),
                    None => normed.copy_from_slice(x),
                }
                if replaces {
                    x.copy_from_slice(normed);
                }
            };
        let bytes = || {
            let all = rows * hidden * size_of::<f32>();
            let mut bytes = residual.map_or(Bytes::new(all, 0, 0), |(post_norm, _)| {
                residual_bytes(all, post_norm)
            });
            bytes += Bytes::new(0, 0, norm.map_or(0, Norm::bytes));
            bytes
        };
        {
            let (mut x, mut projected) = (
                buffers.x.write(hidden, 0..rows),
                buffers.projected.write(hidden, 0..rows),
            );
            let task = TASK_ROWS * hidden;
            if !is_kept && !multiplier.reads_floats(chunk) {
                let source = (chunks_mut(&mut x, task), chunks_mut(&mut projected, task));
                if self.quantize_made((index, input), hidden, source, make, chunk) {
                    self.end_made(begun, Operator::Norm, (index, chunk), bytes);
                    return;
                }
            }
            let mut normed = buffers.normed.write(hidden, 0..rows);
            let source = (chunks_mut(&mut x, task), chunks_mut(&mut projected, task));
            for_each_chunk(
                (source, chunks_mut(&mut normed, task)),
                1,
                |task, (mut source, normed)| {
                    for (row, normed) in normed.chunks_exact_mut(hidden).enumerate() {
                        make(&mut source, task * TASK_ROWS + row, normed);
                    }
                },
            );
        }
        let normed = buffers.normed.read(hidden, 0..rows);
        self.counters.end(begun, Operator::Norm, || {
            let bytes = bytes();
            Bytes {
                written: bytes.written + size_of_val(&normed[..]) as u64,
                ..bytes
            }
        });
        multiplier.observe(index, input, &normed);
        self.quantize(index, input, &normed, chunk);
    }

    /// Quantizes rows as [`ForwardContext::quantize`] does, while they are computed, if possible
    /// ([`QuantizedInput::quantize_made`]).
    pub(super) fn quantize_made<C: Chunks>(
        &self,
        (index, input): (usize, LinearInput),
        channels: usize,
        source: C,
        make: impl Fn(&mut C::Chunk, usize, &mut [f32]) + Sync,
        chunk: Chunk,
    ) -> bool {
        let (block, shape) = (self.block(index), (chunk.rows(), channels));
        let mut quantized = write(&chunk.buffers.input);
        let is_done = quantized.quantize_made(block, input, shape, self.phase, source, make);
        if is_done {
            self.request(index, input, &quantized, chunk);
        }
        is_done
    }

    /// Computes the input of down from that of gate and up ([`QuantizedInput::make_gated`]).
    pub(super) fn make_gated(
        &self,
        index: usize,
        chunk: Chunk,
        multiply: impl FnOnce(QuantizedView, StaticInput, &mut QuantizedRows) -> bool,
    ) -> bool {
        let mut quantized = write(&chunk.buffers.input);
        let is_done = quantized.make_gated(self.block(index), chunk.rows(), multiply);
        if is_done {
            self.request(index, LinearInput::Down, &quantized, chunk);
        }
        is_done
    }

    /// Counts an operator of a block that computes rows and quantizes them, and otherwise reads and writes `bytes`.
    pub(super) fn end_made(
        &self,
        begun: Begun,
        operator: Operator,
        (index, chunk): (usize, Chunk),
        bytes: impl FnOnce() -> Bytes,
    ) {
        let input = || read(&chunk.buffers.input);
        let all = || {
            let mut all = bytes();
            all += input().bytes(self.block(index));
            all
        };
        self.counters
            .end_with(begun, operator, all, |statistics| input().count(statistics));
    }

    /// Requests the rows that the shadow of the quantized input will need, so that they are read while the linear
    /// layers run.
    fn request(&self, index: usize, input: LinearInput, quantized: &QuantizedInput, chunk: Chunk) {
        if let Some(outlier_cache) = self.outlier_cache {
            let x = quantized.int8(0..chunk.rows());
            *lock(&chunk.buffers.requested) =
                x.and_then(|x| outlier_cache.request(index, input, x));
        }
    }

    /// Prepares `x[rows, channels]` for the layers that read `input`.
    pub(super) fn quantize(&self, index: usize, input: LinearInput, x: &[f32], chunk: Chunk) {
        let mut quantized = write(&chunk.buffers.input);
        quantized.quantize(
            self.block(index),
            input,
            (x, chunk.rows()),
            self.phase,
            self.counters,
        );
        self.request(index, input, &quantized, chunk);
    }

    /// Quantizes the norm that was computed last.
    pub(super) fn quantize_normed(
        &self,
        (index, input): (usize, LinearInput),
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) {
        let hidden = self.description.hidden;
        let normed = chunk.buffers.normed.read(hidden, 0..chunk.rows());
        multiplier.observe(index, input, &normed);
        self.quantize(index, input, &normed, chunk);
    }

    /// Adds the changes of adapters to the last linear layer of a block.
    pub(super) fn add_last_adapters(&self, index: usize, chunk: Chunk) {
        let last = match self.has_feed_forward(index) {
            true => Role::Down,
            false => Role::AttentionOutput,
        };
        self.add_adapters(index, last, chunk);
    }

    pub(super) fn has_feed_forward(&self, index: usize) -> bool {
        let residual = self.description.blocks[index].residual;
        residual.has_feed_forward()
    }

    /// Returns whether the mixer of the next block reads the norm of this one.
    pub(super) fn has_second_mixer(&self, index: usize) -> bool {
        let next = self.description.blocks.get(index + 1);
        next.is_some_and(|block| block.residual == Residual::SecondMixer)
    }

    /// Returns how the output of a mixer is added to the residual stream.
    pub(super) fn mixer_addition(&self, index: usize) -> Addition<'_> {
        let factor = self.description.blocks[index].mixer_scale;
        let post_norm = self.block(index).attention_post_norm.as_ref();
        (post_norm, self.description.residual_scale * factor)
    }

    /// Returns how the output of the last half of a block is added to the residual stream.
    pub(super) fn last_addition(&self, index: usize) -> Addition<'_> {
        let block = &self.description.blocks[index];
        if !block.residual.has_feed_forward() {
            return self.mixer_addition(index);
        }
        let post_norm = self.block(index).feed_forward_post_norm.as_ref();
        let factor = block.feed_forward_scale;
        (post_norm, self.description.residual_scale * factor)
    }

    /// Adds the projected input by token to the residual stream.
    pub(super) fn add_normed_output(&self, norm: &Norm, rows: usize, buffers: &Buffers) {
        self.add_output((Some(norm), 1.0), rows, buffers);
    }

    /// Adds the output of half a block to the residual stream.
    pub(super) fn add_output(&self, addition: Addition<'_>, rows: usize, buffers: &Buffers) {
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let (mut x, mut projected) = (
            buffers.x.write(hidden, 0..rows),
            buffers.projected.write(hidden, 0..rows),
        );
        let task = TASK_ROWS * hidden;
        let chunks = (chunks_mut(&mut x, task), chunks_mut(&mut projected, task));
        for_each_chunk(chunks, 1, |_, (x, projected)| {
            add_normed(x, projected, addition);
        });
        self.counters.end(begun, Operator::Residual, || {
            residual_bytes(size_of_val(&x[..]), addition.0)
        });
    }
}

/// The norm of the output of half a block, if it has one, and its factor.
pub(super) type Addition<'a> = (Option<&'a Norm>, f32);

/// Adds `projected` to `x`, both whole rows. Applies the post-norm and the scale to `projected` in place
/// first.
fn add_normed(x: &mut [f32], projected: &mut [f32], (post_norm, scale): Addition<'_>) {
    if let Some(norm) = post_norm {
        // Post-norms are always RMS norms.
        rms_norm_in_place(projected, &norm.weight, norm.epsilon);
    }
    if scale != 1.0 {
        projected.iter_mut().for_each(|value| *value *= scale);
    }
    add(x, projected);
}

/// Returns the bytes of [`add_normed`], for `bytes` of residual stream.
fn residual_bytes(bytes: usize, post_norm: Option<&Norm>) -> Bytes {
    let normed = if post_norm.is_some() { bytes } else { 0 };
    Bytes::new(
        2 * bytes + normed,
        bytes + normed,
        post_norm.map_or(0, Norm::bytes),
    )
}

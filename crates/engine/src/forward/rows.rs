//! Operators that run row by row between linear layers: residual additions, norms, and quantizing the input of linear
//! layers.
//!
//! A row passes through all of them while it is in a core's cache. It is written in float only if another operator
//! reads it in float.

use triad_kernels::activation::add;
use triad_kernels::chunks::{Chunks, chunks_mut, for_each_chunk};
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_kernels::lock;
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};

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
        (residual, norm): (Option<Option<&Norm>>, Option<&Norm>),
        is_kept: bool,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) {
        let begun = self.counters.begin();
        let (rows, buffers, hidden) = (chunk.rows(), chunk.buffers, self.description.hidden);
        let scale = self.description.residual_scale;
        let replaces = self.description.blocks[index].residual.replaces();
        let make =
            |(x, projected): &mut (&mut [f32], &mut [f32]), row: usize, normed: &mut [f32]| {
                let place = row % TASK_ROWS * hidden;
                let (x, projected) = (&mut x[place..][..hidden], &mut projected[place..][..hidden]);
                if let Some(post_norm) = residual {
                    add_normed(x, projected, (post_norm, scale));
                }
                match norm {
                    Some(norm) => normalize_rows(norm, x, normed),
                    None => normed.copy_from_slice(x),
                }
                if replaces {
                    x.copy_from_slice(normed);
                }
            };
        let bytes = || {
            let all = rows * hidden * size_of::<f32>();
            let mut bytes = residual.map_or(Bytes::of(all, 0, 0), |post_norm| {
                residual_bytes(all, post_norm)
            });
            bytes += Bytes::of(0, 0, norm.map_or(0, Norm::bytes));
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
        if let Some(hot_rows) = self.hot_rows {
            let x = quantized.int8(0..chunk.rows());
            *lock(&chunk.buffers.requested) = x.and_then(|x| hot_rows.request(index, input, x));
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

    /// Adds the output of half a block to the residual stream, normed if its family does that.
    pub(super) fn add_projected(&self, post_norm: Option<&Norm>, rows: usize, buffers: &Buffers) {
        self.add_output((post_norm, self.description.residual_scale), rows, buffers);
    }

    /// Adds the projected input by token to the residual stream.
    pub(super) fn add_normed_output(&self, norm: &Norm, rows: usize, buffers: &Buffers) {
        self.add_output((Some(norm), 1.0), rows, buffers);
    }

    fn add_output(&self, (post_norm, scale): (Option<&Norm>, f32), rows: usize, buffers: &Buffers) {
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let (mut x, mut projected) = (
            buffers.x.write(hidden, 0..rows),
            buffers.projected.write(hidden, 0..rows),
        );
        let task = TASK_ROWS * hidden;
        let chunks = (chunks_mut(&mut x, task), chunks_mut(&mut projected, task));
        for_each_chunk(chunks, 1, |_, (x, projected)| {
            add_normed(x, projected, (post_norm, scale));
        });
        self.counters.end(begun, Operator::Residual, || {
            residual_bytes(size_of_val(&x[..]), post_norm)
        });
    }
}

/// Adds `projected` to `x`, both whole rows. Applies the post-norm and the scale to `projected` in place
/// first.
fn add_normed(x: &mut [f32], projected: &mut [f32], (post_norm, scale): (Option<&Norm>, f32)) {
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
    Bytes::of(
        2 * bytes + normed,
        bytes + normed,
        post_norm.map_or(0, Norm::bytes),
    )
}

/// Computes the norm of each row of `x`.
pub(super) fn normalize(norm: &Norm, x: &[f32], out: &mut [f32]) {
    let task = TASK_ROWS * norm.weight.len();
    for_each_chunk(chunks_mut(out, task), 1, |index, out| {
        normalize_rows(norm, &x[index * task..][..out.len()], out);
    });
}

/// Computes [`normalize`] on the calling thread.
fn normalize_rows(norm: &Norm, x: &[f32], out: &mut [f32]) {
    match &norm.bias {
        None => rms_norm(x, &norm.weight, norm.epsilon, out),
        Some(bias) => layer_norm(x, &norm.weight, bias, norm.epsilon, out),
    }
}

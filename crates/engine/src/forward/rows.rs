//! What is computed row by row between products: residual sums, norms, and quantizing what products read.
//!
//! A row goes through all of them while it is in a core's cache, and is written in float only where somebody reads it so.

use triad_kernels::activation::add;
use triad_kernels::chunks::{Chunks, chunks_mut, for_each_chunk};
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_kernels::lock;
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};

use super::Buffers;
use super::subgraphs::{Chunk, Multiplier, Pass, TASK_ROWS, read, write};
use crate::linear::{QuantizedInput, StaticInput};
use crate::linear_input::LinearInput;
use crate::statistics::{Begun, Bytes, Operator};
use crate::weights::Norm;

impl Pass<'_> {
    /// Adds the output of half a block to the residual stream, where there is one (with a norm of it, where its family has
    /// that); norm; quantize. A row goes through all of them before the next, and is written in float only where somebody
    /// reads it so.
    pub(super) fn norm(
        &self,
        (index, input): (usize, LinearInput),
        (residual, norm): (Option<Option<&Norm>>, &Norm),
        is_kept: bool,
        chunk: Chunk,
        multiplier: &mut Multiplier,
    ) {
        let begun = self.counters.begin();
        let (rows, buffers, hidden) = (chunk.rows(), chunk.buffers, self.description.hidden);
        let make =
            |(x, projected): &mut (&mut [f32], &mut [f32]), row: usize, normed: &mut [f32]| {
                let place = row % TASK_ROWS * hidden;
                let (x, projected) = (&mut x[place..][..hidden], &mut projected[place..][..hidden]);
                if let Some(post_norm) = residual {
                    add_normed(x, projected, post_norm);
                }
                normalize_rows(norm, x, normed);
            };
        let bytes = || {
            let all = rows * hidden * size_of::<f32>();
            let mut bytes = residual.map_or(Bytes::of(all, 0, 0), |post_norm| {
                residual_bytes(all, post_norm)
            });
            bytes += Bytes::of(0, 0, norm.bytes());
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

    /// As [`Pass::quantize`], of rows as they are made, where that can be ([`QuantizedInput::quantize_made`]).
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

    /// Has down's input made of gate's and up's ([`QuantizedInput::make_gated`]).
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

    /// Behind an operator of a block that makes rows and quantizes them, which beside that reads and writes `bytes`.
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

    /// Has rows read that the shadow of what was quantized will need: now, while others multiply.
    fn request(&self, index: usize, input: LinearInput, quantized: &QuantizedInput, chunk: Chunk) {
        if let Some(hot_rows) = self.hot_rows {
            let x = quantized.int8(0..chunk.rows());
            *lock(&chunk.buffers.requested) = x.and_then(|x| hot_rows.request(index, input, x));
        }
    }

    /// Makes `x[rows, channels]` ready for the layers that read `input`.
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

    /// Adds the output of half a block to the residual stream, normed where its family does that.
    pub(super) fn add_projected(&self, post_norm: Option<&Norm>, rows: usize, buffers: &Buffers) {
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let (mut x, mut projected) = (
            buffers.x.write(hidden, 0..rows),
            buffers.projected.write(hidden, 0..rows),
        );
        let task = TASK_ROWS * hidden;
        let chunks = (chunks_mut(&mut x, task), chunks_mut(&mut projected, task));
        for_each_chunk(chunks, 1, |_, (x, projected)| {
            add_normed(x, projected, post_norm)
        });
        self.counters.end(begun, Operator::Residual, || {
            residual_bytes(size_of_val(&x[..]), post_norm)
        });
    }
}

/// Adds `projected` to `x`, both whole rows, with a norm in place before, where there is one.
fn add_normed(x: &mut [f32], projected: &mut [f32], post_norm: Option<&Norm>) {
    if let Some(norm) = post_norm {
        // Always an RMS norm.
        rms_norm_in_place(projected, &norm.weight, norm.epsilon);
    }
    add(x, projected);
}

/// Of [`add_normed`], for `bytes` of residual stream.
fn residual_bytes(bytes: usize, post_norm: Option<&Norm>) -> Bytes {
    let normed = if post_norm.is_some() { bytes } else { 0 };
    Bytes::of(
        2 * bytes + normed,
        bytes + normed,
        post_norm.map_or(0, Norm::bytes),
    )
}

/// The norm of each row of `x`.
pub(super) fn normalize(norm: &Norm, x: &[f32], out: &mut [f32]) {
    let task = TASK_ROWS * norm.weight.len();
    for_each_chunk(chunks_mut(out, task), 1, |index, out| {
        normalize_rows(norm, &x[index * task..][..out.len()], out);
    });
}

/// [`normalize`], on the thread that calls.
fn normalize_rows(norm: &Norm, x: &[f32], out: &mut [f32]) {
    match &norm.bias {
        None => rms_norm(x, &norm.weight, norm.epsilon, out),
        Some(bias) => layer_norm(x, &norm.weight, bias, norm.epsilon, out),
    }
}

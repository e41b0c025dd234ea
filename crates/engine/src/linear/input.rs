//! What linear layers read, quantized where they compute in INT8.

use std::ops::Range;

use triad_kernels::Phase;
use triad_kernels::chunks::Chunks;
use triad_kernels::int8::{QuantizedRows, QuantizedView};

use crate::linear_input::LinearInput;
use crate::quantization::{INT8_MAX, InputQuantization};
use crate::statistics::{Bytes, Counters, Operator, Statistics};
use crate::weights::Block;

/// How an input is quantized that has a static scale, with what [`QuantizedRows::quantize_static`] takes: the scale, the smoothing and
/// whether it keeps a shadow.
pub(crate) type StaticInput<'a> = (f32, Option<&'a [f32]>, bool);

/// The activations that the next linear layers of a chunk read; its buffers are used again for every input.
#[derive(Default)]
pub(crate) struct QuantizedInput {
    rows: QuantizedRows,
    /// What is made of `rows`, which it then replaces.
    made: QuantizedRows,
    /// Of which input `rows` are; `None` where its layers compute in float.
    input: Option<LinearInput>,
    /// In decode, a model may have smaller weights.
    pub(super) phase: Phase,
}

impl QuantizedInput {
    /// Quantizes `x[rows, channels]` as the layers of `block` that read `input` need it.
    pub(crate) fn quantize(
        &mut self,
        block: &Block,
        input: LinearInput,
        (x, rows): (&[f32], usize),
        phase: Phase,
        counters: &Counters,
    ) {
        // Until they are, they are the rows of nothing.
        self.input = None;
        self.phase = phase;
        let Some(quantization) = quantization(block, input, phase) else {
            return;
        };
        let begun = counters.begin();
        let channels = x.len() / rows.max(1);
        match quantization {
            InputQuantization::Static {
                clip,
                shadow,
                smoothing,
            } => {
                self.rows.quantize_static(
                    x,
                    channels,
                    clip / INT8_MAX,
                    smoothing.as_deref(),
                    *shadow,
                );
            }
            InputQuantization::Dynamic { outlier_threshold } => {
                self.rows
                    .quantize_dynamic(x, channels, Some(*outlier_threshold));
            }
        }
        self.input = Some(input);
        let bytes = || {
            let mut bytes = self.bytes(block);
            bytes += Bytes::of(size_of_val(x), 0, 0);
            bytes
        };
        counters.end_with(begun, Operator::Quantize, bytes, |statistics| {
            self.count(statistics)
        });
    }

    /// As [`QuantizedInput::quantize`], of rows `[channels]` that `make` makes of chunks of `source`, one by one
    /// ([`QuantizedRows::quantize_made`]): floats are nowhere in memory. Returns whether that was done: where layers
    /// that read `input` need floats, or scales of all rows, none is made.
    pub(crate) fn quantize_made<C: Chunks>(
        &mut self,
        block: &Block,
        input: LinearInput,
        (rows, channels): (usize, usize),
        phase: Phase,
        source: C,
        make: impl Fn(&mut C::Chunk, usize, &mut [f32]) + Sync,
    ) -> bool {
        self.input = None;
        self.phase = phase;
        let Some(InputQuantization::Static {
            clip,
            shadow,
            smoothing,
        }) = quantization(block, input, phase)
        else {
            return false;
        };
        let how = (clip / INT8_MAX, smoothing.as_deref(), *shadow);
        self.rows.quantize_made((rows, channels), how, source, make);
        self.input = Some(input);
        true
    }

    /// Makes the rows that down reads of those that gate and up read, with what multiplies these and quantizes what that gives
    /// ([`Backend::gated`](super::Backend::gated)). Returns whether that was done: not where either are floats, or down's need scales
    /// of all rows.
    pub(crate) fn make_gated(
        &mut self,
        block: &Block,
        rows: usize,
        multiply: impl FnOnce(QuantizedView, StaticInput, &mut QuantizedRows) -> bool,
    ) -> bool {
        let down = quantization(block, LinearInput::Down, self.phase);
        let (
            true,
            Some(InputQuantization::Static {
                clip,
                shadow,
                smoothing,
            }),
        ) = (self.holds(LinearInput::FeedForward), down)
        else {
            return false;
        };
        let how = (clip / INT8_MAX, smoothing.as_deref(), *shadow);
        let is_done = multiply(self.rows.rows_view(0..rows), how, &mut self.made);
        if is_done {
            std::mem::swap(&mut self.rows, &mut self.made);
            self.input = Some(LinearInput::Down);
        }
        is_done
    }

    /// What quantizing writes, and reads beside the rows.
    pub(crate) fn bytes(&self, block: &Block) -> Bytes {
        let quantization = self
            .input
            .and_then(|input| quantization(block, input, self.phase));
        Bytes::of(
            0,
            self.rows.view().size(),
            quantization.map_or(0, smoothing_bytes),
        )
    }

    /// Adds the rows to those that have been quantized.
    pub(crate) fn count(&self, statistics: &mut Statistics) {
        statistics.values += (self.rows.rows() * self.rows.in_features()) as u64;
        statistics.outliers += self.rows.outliers() as u64;
    }

    /// Some of the quantized rows; `None` where the layers that read them compute in float.
    pub(crate) fn int8(&self, rows: Range<usize>) -> Option<QuantizedView<'_>> {
        self.input.map(|_| self.rows.rows_view(rows))
    }

    /// Whether these are the quantized rows of `input`.
    pub(crate) fn holds(&self, input: LinearInput) -> bool {
        self.input == Some(input)
    }
}

/// How the layers of `block` that read `input` quantize it; `None` where they read floats.
fn quantization(block: &Block, input: LinearInput, phase: Phase) -> Option<&InputQuantization> {
    let quantization = block.inputs.as_ref().map(|inputs| &inputs[input.index()]);
    quantization.filter(|_| phase == Phase::Prefill || !decodes_in_float(block, input))
}

/// Bytes of the factors on an input's channels.
fn smoothing_bytes(quantization: &InputQuantization) -> usize {
    match quantization {
        InputQuantization::Static {
            smoothing: Some(factors),
            ..
        } => size_of_val(&factors[..]),
        _ => 0,
    }
}

/// Whether the layers that read `input` have float weights for decode.
fn decodes_in_float(block: &Block, input: LinearInput) -> bool {
    let mut readers = block
        .linears
        .iter()
        .filter(|(name, _)| LinearInput::of(**name) == input);
    readers.all(|(_, linear)| linear.decode_weight.is_some())
}

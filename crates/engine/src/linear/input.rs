//! The input of linear layers, quantized if they compute in INT8.

use std::ops::Range;

use triad_kernels::Phase;
use triad_kernels::chunks::Chunks;
use triad_kernels::int8::{QuantizedRows, QuantizedView};

use crate::linear_input::LinearInput;
use crate::quantization::{INT8_MAX, InputQuantization};
use crate::statistics::{Bytes, Counters, Operator, Statistics};
use crate::weights::Block;

/// The quantization of an input with a static scale, as [`QuantizedRows::quantize_static`] takes it: the scale, the
/// smoothing and whether the input keeps a shadow.
pub type StaticInput<'a> = (f32, Option<&'a [f32]>, bool);

/// The activations that the next linear layers of a chunk read. The buffers are reused for every input.
#[derive(Default)]
pub(crate) struct QuantizedInput {
    rows: QuantizedRows,
    /// The output of operators that compute it from `rows`; the two are then swapped.
    made: QuantizedRows,
    /// The input that `rows` are; `None` if its layers compute in float.
    input: Option<LinearInput>,
    /// The phase matters because a model may have smaller weights for decode.
    pub(super) phase: Phase,
}

impl QuantizedInput {
    /// Quantizes `x[rows, channels]` for the layers of `block` that read `input`.
    pub(crate) fn quantize(
        &mut self,
        block: &Block,
        input: LinearInput,
        (x, rows): (&[f32], usize),
        phase: Phase,
        counters: &Counters,
    ) {
        // The rows are invalid until they are quantized.
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
            bytes += Bytes::new(size_of_val(x), 0, 0);
            bytes
        };
        counters.end_with(begun, Operator::Quantize, bytes, |statistics| {
            self.count(statistics);
        });
    }

    /// Quantizes rows `[channels]` as [`QuantizedInput::quantize`] does, while `make` computes them one by one from
    /// chunks of `source` ([`QuantizedRows::quantize_made`]), so that they are not stored in float. Returns whether
    /// that was done: if the layers that read `input` need floats, or scales of all rows, no row is computed.
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

    /// Computes the rows that down reads from those that gate and up read, by a `multiply` that also quantizes the
    /// result ([`Backend::gated`](super::Backend::gated)). Returns whether that was done: not if either input is in
    /// float, or that of down needs scales of all rows.
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

    /// Returns the bytes that quantizing writes, and those that it reads other than the rows.
    pub(crate) fn bytes(&self, block: &Block) -> Bytes {
        let quantization = self
            .input
            .and_then(|input| quantization(block, input, self.phase));
        Bytes::new(
            0,
            self.rows.view().size(),
            quantization.map_or(0, smoothing_bytes),
        )
    }

    /// Adds the rows to the counts of quantized values.
    pub(crate) fn count(&self, statistics: &mut Statistics) {
        statistics.values += (self.rows.rows() * self.rows.in_features()) as u64;
        statistics.outliers += self.rows.outliers() as u64;
    }

    /// Returns some of the quantized rows; `None` if the layers that read them compute in float.
    pub(crate) fn int8(&self, rows: Range<usize>) -> Option<QuantizedView<'_>> {
        self.input.map(|_| self.rows.rows_view(rows))
    }

    /// Returns whether these are the quantized rows of `input`.
    pub(crate) fn holds(&self, input: LinearInput) -> bool {
        self.input == Some(input)
    }
}

/// Returns the quantization of `input` for the layers of `block` that read it; `None` if they read floats.
fn quantization(block: &Block, input: LinearInput, phase: Phase) -> Option<&InputQuantization> {
    let quantization = block.inputs.as_ref().map(|inputs| &inputs[input.index()]);
    quantization.filter(|_| phase == Phase::Prefill || !decodes_in_float(block, input))
}

/// Returns the bytes of the factors on an input's channels.
fn smoothing_bytes(quantization: &InputQuantization) -> usize {
    match quantization {
        InputQuantization::Static {
            smoothing: Some(factors),
            ..
        } => size_of_val(&factors[..]),
        _ => 0,
    }
}

/// Returns whether the layers that read `input` have float weights for decode.
fn decodes_in_float(block: &Block, input: LinearInput) -> bool {
    let mut readers = block
        .linears
        .iter()
        .filter(|(name, _)| LinearInput::read_by(**name) == input);
    readers.all(|(_, linear)| linear.decode_weight.is_some())
}

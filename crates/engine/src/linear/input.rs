//! What linear layers read, quantized where they compute in INT8.

use std::ops::Range;
use std::time::Instant;

use triad_kernels::Phase;
use triad_kernels::int8::{QuantizedRows, QuantizedView};

use super::statistics::Counted;
use crate::linear_input::LinearInput;
use crate::quantization::{INT8_MAX, InputQuantization};
use crate::weights::Block;

/// The activations that the next linear layers of a chunk read; its buffers are used again for every input.
#[derive(Default)]
pub(crate) struct QuantizedInput {
    rows: QuantizedRows,
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
        counted: &Counted,
    ) {
        let quantization = block.inputs.as_ref().map(|inputs| &inputs[input.index()]);
        let quantization = quantization.filter(|_| phase == Phase::Prefill || !decodes_in_float(block, input));
        // Until they are, they are the rows of nothing.
        self.input = None;
        self.phase = phase;
        let Some(quantization) = quantization else { return };
        let start = Instant::now();
        let channels = x.len() / rows.max(1);
        match quantization {
            InputQuantization::Static { clip, shadow, smoothing } => {
                self.rows.quantize_static(x, channels, clip / INT8_MAX, smoothing.as_deref(), *shadow);
            }
            InputQuantization::Dynamic { outlier_threshold } => {
                self.rows.quantize_dynamic(x, channels, Some(*outlier_threshold));
            }
        }
        self.input = Some(input);
        counted.add(|statistics| {
            statistics.quantize_seconds += start.elapsed().as_secs_f64();
            statistics.values += x.len() as u64;
            statistics.outliers += self.rows.outliers() as u64;
        });
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

/// Whether the layers that read `input` have float weights for decode.
fn decodes_in_float(block: &Block, input: LinearInput) -> bool {
    let mut readers = block.linears.iter().filter(|(name, _)| LinearInput::of(**name) == input);
    readers.all(|(_, linear)| linear.decode_weight.is_some())
}

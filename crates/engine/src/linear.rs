//! The linear layers of a forward pass, in float or in INT8 with its shadow.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use triad_kernels::int8::{QuantizedRows, matmul_int8, shadow, shadow_float};
use triad_kernels::matmul;
use triad_model::description;

use crate::linear_input::LinearInput;
use crate::quantize::{INT8_MAX, InputQuantization};
use crate::weights::{Block, Linear, Weight};

/// What kind of pass it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Over a prompt.
    Prefill,
    /// Over one new token: a model may have smaller weights for it.
    Decode,
}

/// Where the time of a session's INT8 layers went, and what its shadows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Int8Statistics {
    /// Seconds of quantizing activations and finding outliers.
    pub quantize_seconds: f64,
    /// Seconds of the INT8 matmuls.
    pub matmul_seconds: f64,
    /// Seconds of the shadow matmuls.
    pub shadow_seconds: f64,
    /// Activations quantized.
    pub values: u64,
    /// Outliers among them that a shadow computed.
    pub outliers: u64,
}

/// Quantizes what linear layers read; its buffers are used again for every one.
#[derive(Default)]
pub(crate) struct Quantizer {
    rows: QuantizedRows,
    pub(crate) statistics: Int8Statistics,
}

/// Hears what linear layers read: the block, which of its inputs, `x[rows, channels]`.
pub(crate) type Observer<'a> = &'a mut (dyn FnMut(usize, LinearInput, &[f32]) + Send);

/// The input of one to three linear layers, ready for all of them.
pub(crate) struct Input<'a> {
    x: &'a [f32],
    rows: usize,
    /// There unless the layers compute in float.
    int8: Option<(&'a QuantizedRows, &'a mut Int8Statistics)>,
}

impl Quantizer {
    /// Makes `x[rows, channels]` ready for the layers of `block` that read `input`.
    pub(crate) fn input<'a>(
        &'a mut self,
        block: &Block,
        input: LinearInput,
        x: &'a [f32],
        rows: usize,
        phase: Phase,
    ) -> Input<'a> {
        let quantization = block.inputs.as_ref().map(|inputs| &inputs[input.index()]);
        let quantization = quantization.filter(|_| phase == Phase::Prefill || !decodes_in_float(block, input));
        let int8 = quantization.map(|quantization| {
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
            self.statistics.quantize_seconds += start.elapsed().as_secs_f64();
            self.statistics.values += x.len() as u64;
            self.statistics.outliers += self.rows.outliers() as u64;
            (&self.rows, &mut self.statistics)
        });
        Input { x, rows, int8 }
    }
}

/// Whether the layers that read `input` have float weights for decode.
fn decodes_in_float(block: &Block, input: LinearInput) -> bool {
    let mut readers = block.linears.iter().filter(|(name, _)| LinearInput::of(**name) == input);
    readers.all(|(_, linear)| linear.decode_weight.is_some())
}

impl Input<'_> {
    /// `out[rows, out_features]` of the layer called `name`.
    pub(crate) fn apply(
        &mut self,
        linears: &BTreeMap<description::Linear, Linear>,
        name: description::Linear,
        out: &mut [f32],
    ) {
        let linear = &linears[&name];
        let bias = linear.bias.as_deref();
        match (&linear.weight, &mut self.int8) {
            (Weight::Int8(weight), Some((x, statistics))) => {
                let start = Instant::now();
                matmul_int8(x, weight.view(), bias, out);
                let multiplied = start.elapsed();
                if x.outliers() > 0 {
                    match weight.float() {
                        None => shadow(x, weight.view(), out),
                        Some(float) => shadow_float(x, float.view(), weight.out_features(), out),
                    }
                }
                statistics.matmul_seconds += multiplied.as_secs_f64();
                statistics.shadow_seconds += (start.elapsed().saturating_sub(multiplied)).as_secs_f64();
            }
            (Weight::Int8(_), None) => {
                let weight = linear.decode_weight.as_ref().expect("INT8 layers read INT8 but in decode");
                matmul(self.x, self.rows, weight.view(), weight.out_features(), bias, out);
            }
            (Weight::Float(weight), _) => {
                matmul(self.x, self.rows, weight.view(), weight.out_features(), bias, out);
            }
        }
    }
}

impl Int8Statistics {
    /// Share of the linear layers' time that shadows take.
    pub fn shadow_share(&self) -> f64 {
        let total = self.quantize_seconds + self.matmul_seconds + self.shadow_seconds;
        if total > 0.0 { self.shadow_seconds / total } else { 0.0 }
    }
}

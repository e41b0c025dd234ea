//! The linear layers of a forward pass, in float or in INT8 with its shadow.

use std::time::Instant;

use serde::Serialize;
use smallvec::SmallVec;
use triad_kernels::int8::{
    Int8Product, QuantizedRows, join_shadow, matmul_int8_each, shadow, shadow_apart, shadow_float,
};
use triad_kernels::pool::Pool;
use triad_kernels::{OutputMut, Phase, Product, matmul_each};
use triad_model::description;

use crate::error::Result;
use crate::linear_input::LinearInput;
use crate::quantize::{INT8_MAX, InputQuantization};
use crate::weights::{Block, Int8Matrix, Weight, Weights};

/// Linear layers that read one input: query, key and value.
const MOST_READERS: usize = 3;

/// Where the time of a session's INT8 layers went, and what its shadows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Int8Statistics {
    /// Seconds of quantizing activations and finding outliers.
    pub quantize_seconds: f64,
    /// Seconds of the INT8 matmuls.
    pub matmul_seconds: f64,
    /// Seconds of the shadow matmuls; of those that ran beside their products, what these did not cover.
    pub shadow_seconds: f64,
    /// Activations quantized.
    pub values: u64,
    /// Outliers among them that a shadow computed.
    pub outliers: u64,
}

/// Quantizes what linear layers read, and has it multiplied; its buffers are used again for every input.
#[derive(Default)]
pub(crate) struct Quantizer {
    rows: QuantizedRows,
    /// Whether they hold the latest input: layers may compute in float.
    is_int8: bool,
    /// Of the latest input; in decode, a model may have smaller weights.
    phase: Phase,
    /// Shadows that were computed beside their products, `[rows, out_features]` of one layer after the other.
    shadows: Vec<f32>,
    pub(crate) statistics: Int8Statistics,
}

/// Is called with what linear layers read: the block, which of its inputs, `x[rows, channels]`.
pub type Observer<'a> = &'a mut (dyn FnMut(usize, LinearInput, &[f32]) + Send);

/// A linear layer and where its output `[rows, out_features]` goes.
pub type Output<'a> = (description::Linear, &'a mut [f32]);

/// Who multiplies INT8 activations with INT8 weights: our kernels, or the program of a processor. Shadows are not its
/// business.
pub trait Products: Send {
    /// Products and biases of the layers of `block` that read `input`, whose activations are `x`.
    ///
    /// # Errors
    /// If the processor fails; the outputs then hold anything.
    fn multiply(&mut self, block: usize, input: LinearInput, x: &QuantizedRows, outs: &mut [Output]) -> Result<()>;

    /// The whole feed-forward of `block` on `x`, from gate and up to down's products in `out[rows, hidden]`; what down
    /// reads, before smoothing, goes to `inner[rows, width]` where it keeps its shadow. Answers `false`, and writes
    /// nothing, where gate, up and down are multiplied one after the other.
    ///
    /// # Errors
    /// If the processor fails; `out` and `inner` then hold anything.
    fn feed_forward(&mut self, block: usize, x: &QuantizedRows, out: &mut [f32], inner: &mut [f32]) -> Result<bool> {
        let _ = (block, x, out, inner);
        Ok(false)
    }
}

/// What a forward pass multiplies with.
pub(crate) struct Multiplier<'a> {
    pub(crate) products: &'a mut dyn Products,
    /// A thread for shadows while `products` multiply; without one they follow.
    pub(crate) beside: Option<&'a Pool>,
}

/// Products by our own kernels.
pub(crate) struct Kernels<'a>(pub(crate) &'a Weights);

impl Products for Kernels<'_> {
    fn multiply(&mut self, block: usize, _input: LinearInput, x: &QuantizedRows, outs: &mut [Output]) -> Result<()> {
        let block = &self.0.blocks[block];
        let products = outs.iter_mut().map(|(name, out)| {
            let weight = int8(block, *name).view();
            Int8Product::new(weight, block.linears[name].bias.as_deref(), OutputMut::new(out, weight.out_features))
        });
        let mut products: SmallVec<[_; MOST_READERS]> = products.collect();
        matmul_int8_each(x.view(), &mut products);
        Ok(())
    }
}

impl Quantizer {
    /// Makes `x[rows, channels]` ready for the layers of `block` that read `input`.
    pub(crate) fn read(&mut self, block: &Block, input: LinearInput, x: &[f32], rows: usize, phase: Phase) {
        let quantization = block.inputs.as_ref().map(|inputs| &inputs[input.index()]);
        let quantization = quantization.filter(|_| phase == Phase::Prefill || !decodes_in_float(block, input));
        self.is_int8 = quantization.is_some();
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
        self.statistics.quantize_seconds += start.elapsed().as_secs_f64();
        self.statistics.values += x.len() as u64;
        self.statistics.outliers += self.rows.outliers() as u64;
    }

    /// Outputs of layers that read `input`, the latest that was [`read`](Self::read), in INT8 or as `x[rows, channels]`.
    ///
    /// # Errors
    /// If the products fail.
    pub(crate) fn apply(
        &mut self,
        (index, block): (usize, &Block),
        input: LinearInput,
        x: &[f32],
        rows: usize,
        multiplier: &mut Multiplier,
        outs: &mut [Output],
    ) -> Result<()> {
        if !self.is_int8 {
            let products = outs.iter_mut().map(|(name, out)| {
                let linear = &block.linears[name];
                let weight = match (&linear.weight, &linear.decode_weight) {
                    (Weight::Float(weight), _) | (Weight::Int8(_), Some(weight)) => weight,
                    (Weight::Int8(_), None) => unreachable!("INT8 layers read INT8 but in decode"),
                };
                let out = OutputMut::new(out, weight.out_features());
                Product::new(weight.view(), linear.bias.as_deref(), out)
            });
            let mut products: SmallVec<[_; MOST_READERS]> = products.collect();
            matmul_each(x, rows, self.phase, &mut products);
            return Ok(());
        }
        let Multiplier { products, beside } = multiplier;
        let start = Instant::now();
        let Some(beside) = beside.filter(|_| self.rows.outliers() > 0) else {
            products.multiply(index, input, &self.rows, outs)?;
            self.statistics.matmul_seconds += start.elapsed().as_secs_f64();
            self.add_shadow(block, outs);
            return Ok(());
        };
        let Self { rows, shadows, statistics, .. } = self;
        let layers: Vec<_> = outs.iter().map(|(name, out)| (int8(block, *name), out.len())).collect();
        let values = layers.iter().map(|(_, values)| values).sum();
        if shadows.len() < values {
            shadows.resize(values, 0.0);
        }
        let multiply = || {
            let outcome = products.multiply(index, input, rows, outs);
            (outcome, start.elapsed())
        };
        let (outcome, multiplied) = beside.join(multiply, || {
            let mut shadows = &mut shadows[..];
            for (weight, values) in &layers {
                let shadow = shadows.split_off_mut(..*values).expect("room for all of them");
                shadow_apart(rows.view(), weight.view(), OutputMut::new(shadow, weight.out_features()));
            }
        });
        outcome?;
        let mut shadows = &shadows[..];
        for ((_, out), (weight, values)) in outs.iter_mut().zip(&layers) {
            let shadow = shadows.split_off(..*values).expect("room for all of them");
            join_shadow(rows.view(), shadow, OutputMut::new(out, weight.out_features()));
        }
        statistics.matmul_seconds += multiplied.as_secs_f64();
        statistics.shadow_seconds += (start.elapsed().saturating_sub(multiplied)).as_secs_f64();
        Ok(())
    }

    /// The feed-forward of a block in one go, where the products are computed so: reads what was [`read`](Self::read) for
    /// gate and up, writes `out[rows, hidden]` and spoils `inner[rows, width]`. Answers whether they are. Down's
    /// shadow is computed from what the program returned, so that nothing runs beside it.
    ///
    /// # Errors
    /// If the products fail.
    pub(crate) fn feed_forward(
        &mut self,
        (index, block): (usize, &Block),
        rows: usize,
        multiplier: &mut Multiplier,
        inner: &mut [f32],
        out: &mut [f32],
    ) -> Result<bool> {
        let start = Instant::now();
        if !self.is_int8 || !multiplier.products.feed_forward(index, &self.rows, out, inner)? {
            return Ok(false);
        }
        self.statistics.matmul_seconds += start.elapsed().as_secs_f64();
        let down = LinearInput::Down;
        if block.inputs.as_ref().is_some_and(|inputs| inputs[down.index()].has_shadow()) {
            self.read(block, down, inner, rows, Phase::Prefill);
            self.add_shadow(block, &mut [(description::Linear::Down, out)]);
        }
        Ok(true)
    }

    /// Adds to products of the latest input what its outliers lack.
    fn add_shadow(&mut self, block: &Block, outs: &mut [Output]) {
        if self.rows.outliers() == 0 {
            return;
        }
        let start = Instant::now();
        for (name, out) in outs {
            let weight = int8(block, *name);
            let out = OutputMut::new(out, weight.out_features());
            match weight.float() {
                None => shadow(self.rows.view(), weight.view(), out),
                Some(float) => shadow_float(self.rows.view(), float.view(), out),
            }
        }
        self.statistics.shadow_seconds += start.elapsed().as_secs_f64();
    }
}

/// The weight of a layer that reads INT8.
fn int8(block: &Block, name: description::Linear) -> &Int8Matrix {
    let Weight::Int8(weight) = &block.linears[&name].weight else { unreachable!("what reads INT8 has INT8 weights") };
    weight
}

/// Whether the layers that read `input` have float weights for decode.
fn decodes_in_float(block: &Block, input: LinearInput) -> bool {
    let mut readers = block.linears.iter().filter(|(name, _)| LinearInput::of(**name) == input);
    readers.all(|(_, linear)| linear.decode_weight.is_some())
}

impl Int8Statistics {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            quantize_seconds: self.quantize_seconds + other.quantize_seconds,
            matmul_seconds: self.matmul_seconds + other.matmul_seconds,
            shadow_seconds: self.shadow_seconds + other.shadow_seconds,
            values: self.values + other.values,
            outliers: self.outliers + other.outliers,
        }
    }

    /// Share of the linear layers' time that shadows take.
    pub fn shadow_share(&self) -> f64 {
        let total = self.quantize_seconds + self.matmul_seconds + self.shadow_seconds;
        if total > 0.0 { self.shadow_seconds / total } else { 0.0 }
    }
}

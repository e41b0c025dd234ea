//! Whole models, as input to devices that run them.

use half::f16;
use triad_kernels::attention::Cache;
use triad_kernels::int8::Int8Weight;
use triad_kernels::{Matrix, Phase};
use triad_model::description::{Linear, ModelDescription};

use crate::error::{Error, Result};
use crate::multiplier::ProductPart;

/// A model with borrowed weights, in the CPU's formats.
#[derive(Clone, Debug)]
pub struct DeviceModel<'a> {
    /// Shapes, norms, activations and residuals.
    pub description: &'a ModelDescription,
    /// Rotary position embeddings, without duplicates.
    pub rotations: Vec<Rotation<'a>>,
    /// Index of each layer's rotation.
    pub rotation_of_block: &'a [usize],
    /// The layers in order.
    pub blocks: Vec<DeviceBlock<'a>>,
    /// Norm between the last layer and the output matrix.
    pub output_norm: DeviceNorm<'a>,
    /// Output matrix `[vocab, hidden]`.
    pub output: DeviceLinear<'a>,
}

/// One rotary position embedding.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Radians per position of each pair: `[dims / 2]`.
    pub frequencies: &'a [f32],
    /// Factor on cosine and sine.
    pub factor: f32,
}

/// Weights of one layer. Its description determines which norms it has.
#[derive(Clone, Debug)]
pub struct DeviceBlock<'a> {
    /// Norm before attention.
    pub attention_norm: Option<DeviceNorm<'a>>,
    /// Norm on attention's output.
    pub attention_post_norm: Option<DeviceNorm<'a>>,
    /// Norm before the feed-forward, unless attention's norm serves both halves.
    pub feed_forward_norm: Option<DeviceNorm<'a>>,
    /// Norm on the feed-forward's output.
    pub feed_forward_post_norm: Option<DeviceNorm<'a>>,
    /// RMS norm of every query head.
    pub query_norm: Option<DeviceNorm<'a>>,
    /// RMS norm of every key head.
    pub key_norm: Option<DeviceNorm<'a>>,
    /// The linear layers listed by [`BlockDescription::linears`](triad_model::description::BlockDescription::linears),
    /// in any order.
    pub linears: Vec<(Linear, DeviceLinear<'a>)>,
}

/// One norm. The description's offset is already added to its weight.
#[derive(Clone, Copy, Debug)]
pub struct DeviceNorm<'a> {
    /// Factor of each feature.
    pub weight: &'a [f32],
    /// Summand of each feature; present exactly for a layer norm.
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square or the variance.
    pub epsilon: f32,
}

/// One linear layer.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLinear<'a> {
    /// `[out_features, in_features]`.
    pub weight: DeviceWeight<'a>,
    /// Weights for decode ([`Phase::Decode`]), if they differ.
    pub decode_weight: Option<Matrix<'a>>,
    /// `[out_features]`.
    pub bias: Option<&'a [f32]>,
}

/// The weight of a linear layer, and the format of its input.
#[derive(Clone, Copy, Debug)]
pub enum DeviceWeight<'a> {
    /// The layer reads float activations.
    Float(Matrix<'a>),
    /// The layer reads INT8 activations (W8A8). Layers with the same input have the same [`Int8Input`].
    Int8(Int8Weight<'a>, Int8Input<'a>),
}

impl<'a> DeviceWeight<'a> {
    /// Returns how the layer's input is quantized to INT8, or `None` if it is not.
    pub fn input(self) -> Option<Int8Input<'a>> {
        match self {
            Self::Float(_) => None,
            Self::Int8(_, input) => Some(input),
        }
    }
}

/// Quantization of activations to INT8, as in
/// [`QuantizedRows::quantize_static`](triad_kernels::int8::QuantizedRows::quantize_static).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int8Input<'a> {
    /// Quantization step: 1/127 of the clip threshold.
    pub scale: f32,
    /// Smoothing factors `[in_features]` on the activations. The weights contain their inverse.
    pub smoothing: Option<&'a [f32]>,
    /// Whether the part beyond the clip threshold is multiplied in float and added (llm.npu, §3.3).
    pub has_shadow: bool,
}

/// Multiplications and additions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelOperations {
    /// Number on the device that runs the model. Operators other than products are counted approximately.
    pub device: u64,
    /// Number on the other processor, for the products that it computed.
    pub products: u64,
    /// Bytes that the CPU has copied to the device: of embeddings, tables and results of the other processor.
    pub bytes_written: u64,
    /// Bytes that the CPU has copied from the device: of results, keys and values, and inputs of the other processor.
    pub bytes_read: u64,
}

/// Statistics of joining another processor, which multiplies, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JoinStatistics {
    /// Products that it computed, in part or whole.
    pub products: u64,
    /// Seconds from submitting what precedes a product until its rows were read, in total.
    pub device_seconds: f64,
    /// Seconds in which it computed, in total.
    pub other_seconds: f64,
    /// Seconds in which the thread of the device waited for it, in total.
    pub waited_seconds: f64,
    /// Seconds from the ends of its products until that thread, which waited for them, went on, in total.
    pub late_seconds: f64,
    /// Bytes that were read from the device for it.
    pub bytes_read: u64,
    /// Bytes of its results that were written to the device.
    pub bytes_written: u64,
}

/// Median seconds of what joins a part of a product of another processor to the rest on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinTimes {
    /// Submitting nothing, and blocking until the device has completed it.
    pub blocking: f64,
    /// Submitting nothing, and polling a flag that is set when the device has completed it.
    pub polling: f64,
    /// Submitting nothing after other work that the device has not completed.
    pub queued: f64,
    /// Submitting the copies of the part's input, waiting for them, and reading it.
    pub read: f64,
    /// Writing the part's output, submitting its join, and waiting for it.
    pub write: f64,
}

/// A model that is ready to run on one device, which keeps the keys and values of its sequences. The caller chooses the
/// numbers of sequences; an unknown number stands for an empty sequence.
pub trait ModelProgram: Send {
    /// Returns the number of positions that a sequence holds.
    fn length(&self, sequence: u64) -> usize;

    /// Drops all positions of a sequence after the first `length`. With 0, drops the sequence.
    fn truncate(&mut self, sequence: u64, length: usize);

    /// Replaces the contents of a sequence by `length` positions: the keys and values of all layers, in f16.
    ///
    /// # Errors
    /// If there is no memory for them, or they are not in f16 or don't have the model's shapes.
    fn fill(&mut self, sequence: u64, length: usize, blocks: &[&dyn Cache]) -> Result<()>;

    /// Runs a chunk through all layers. `x[rows, hidden]` are the token embeddings, already multiplied by the
    /// description's scale. `segments` are sequences with a number of rows each, which cover the rows in order; each
    /// sequence grows by its rows. `read` is called with the `wanted` outputs, if there are any.
    ///
    /// # Errors
    /// If there are more rows or outputs than the model was prepared for, a sequence occurs twice, there is no memory
    /// for keys and values, or the device fails. The sequences then keep their previous state.
    fn forward(
        &mut self,
        x: &[f32],
        segments: &[(u64, usize)],
        wanted: &OutputRows,
        read: &mut dyn FnMut(Outputs),
    ) -> Result<()>;

    /// Computes the last norm and the output matrix for rows of the residual stream after the last layer,
    /// `x[rows, hidden]`, and calls `read` with the logits `[rows, vocab]`, without a soft cap.
    ///
    /// # Errors
    /// If there are more rows than outputs that the model was prepared for, or the device fails.
    fn logits(&mut self, x: &[f32], phase: Phase, read: &mut dyn FnMut(&[f32])) -> Result<()>;

    /// Returns what was computed so far, if the device counts it.
    fn operations(&self) -> Option<ModelOperations> {
        None
    }

    /// Returns what joining the processor that multiplies has taken so far, if there is one.
    fn joins(&self) -> Option<JoinStatistics> {
        None
    }

    /// Measures the seconds of a part of a product on the device, if it has such a measurement. Products are numbered as in
    /// [`Multiplier::products`](crate::Multiplier).
    ///
    /// # Errors
    /// If there is no such product or part, or the device fails.
    fn time_part(&mut self, _product: usize, _part: &ProductPart) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Measures the times of joining a part of a product, if the device has such a measurement.
    ///
    /// # Errors
    /// As [`time_part`](Self::time_part).
    fn time_join(&mut self, _product: usize, _part: &ProductPart) -> Result<Option<JoinTimes>> {
        Ok(None)
    }

    /// Returns the failure of the processor that multiplied for the device, once. The device multiplies since then.
    fn take_failure(&mut self) -> Option<Error> {
        None
    }

    /// Lets the processor that multiplied, and failed, multiply again.
    fn retry(&mut self) {}
}

/// Outputs of a chunk that the CPU reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputRows<'a> {
    /// Rows whose logits, or residual stream after the last layer, are returned.
    pub rows: &'a [usize],
    /// Whether logits are returned, without a soft cap.
    pub logits: bool,
    /// Phase; selects the weights that the rows are multiplied by.
    pub phase: Phase,
    /// Whether the keys and values of all rows are returned, too.
    pub keys_and_values: bool,
}

/// The requested outputs.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// Values of the requested rows, `[rows, vocab]` or `[rows, hidden]`.
    pub values: &'a [f32],
    /// Keys and values of each layer, `[keys and values, rows of the chunk, kv_heads, head_dim]`; empty unless
    /// requested.
    pub keys_and_values: &'a [f16],
}

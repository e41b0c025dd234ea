//! Whole models, as devices take and run them.

use half::f16;
use triad_kernels::attention::Cache;
use triad_kernels::int8::Int8Weight;
use triad_kernels::{Matrix, Phase};
use triad_model::description::{Linear, ModelDescription};

use crate::error::Result;

/// A model with borrowed weights, in the formats of the CPU.
#[derive(Clone, Debug)]
pub struct DeviceModel<'a> {
    /// Shapes, norms, activations and residuals.
    pub description: &'a ModelDescription,
    /// Rotary position embeddings, each different one once.
    pub rotations: Vec<Rotation<'a>>,
    /// Which of them each block uses.
    pub rotation_of_block: &'a [usize],
    /// The blocks, first to last.
    pub blocks: Vec<DeviceBlock<'a>>,
    /// Norm between the last block and the output matrix.
    pub output_norm: DeviceNorm<'a>,
    /// Output matrix `[vocab, hidden]`.
    pub output: DeviceLinear<'a>,
}

/// One rotary position embedding.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Of each pair, radians a position: `[dims / 2]`.
    pub frequencies: &'a [f32],
    /// On cosine and sine.
    pub factor: f32,
}

/// Weights of one block; which norms it has follows from its description.
#[derive(Clone, Debug)]
pub struct DeviceBlock<'a> {
    /// Norm before attention.
    pub attention_norm: DeviceNorm<'a>,
    /// Norm on attention's output.
    pub attention_post_norm: Option<DeviceNorm<'a>>,
    /// Norm before the feed-forward, unless attention's serves both halves.
    pub feed_forward_norm: Option<DeviceNorm<'a>>,
    /// Norm on the feed-forward's output.
    pub feed_forward_post_norm: Option<DeviceNorm<'a>>,
    /// RMS norm of every query head.
    pub query_norm: Option<DeviceNorm<'a>>,
    /// RMS norm of every key head.
    pub key_norm: Option<DeviceNorm<'a>>,
    /// The linear layers, those of [`BlockDescription::linears`](triad_model::description::BlockDescription::linears) in any
    /// order.
    pub linears: Vec<(Linear, DeviceLinear<'a>)>,
}

/// One norm, with the description's offset already added to its weight.
#[derive(Clone, Copy, Debug)]
pub struct DeviceNorm<'a> {
    /// Factor of every feature.
    pub weight: &'a [f32],
    /// Summand of every feature: there exactly for a layer norm.
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square or the variance.
    pub epsilon: f32,
}

/// One linear layer.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLinear<'a> {
    /// `[out_features, in_features]`.
    pub weight: DeviceWeight<'a>,
    /// Weights of rows that decode ([`Phase::Decode`]), where they are others.
    pub decode_weight: Option<Matrix<'a>>,
    /// `[out_features]`.
    pub bias: Option<&'a [f32]>,
}

/// The weight of a linear layer, and what the layer reads.
#[derive(Clone, Copy, Debug)]
pub enum DeviceWeight<'a> {
    /// The layer reads float activations.
    Float(Matrix<'a>),
    /// The layer reads activations in INT8 (W8A8); layers that read one input have the same.
    Int8(Int8Weight<'a>, Int8Input<'a>),
}

impl<'a> DeviceWeight<'a> {
    /// How what the layer reads becomes INT8, if it does.
    pub fn input(self) -> Option<Int8Input<'a>> {
        match self {
            Self::Float(_) => None,
            Self::Int8(_, input) => Some(input),
        }
    }
}

/// How activations become INT8, as in [`QuantizedRows::quantize_static`](triad_kernels::int8::QuantizedRows::quantize_static).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int8Input<'a> {
    /// What one unit is worth: 1/127 of the clip threshold.
    pub scale: f32,
    /// Factors `[in_features]` on the activations, whose inverse the weights carry.
    pub smoothing: Option<&'a [f32]>,
    /// Whether what is beyond the clip threshold is added in float (llm.npu, §3.3).
    pub has_shadow: bool,
}

/// A model ready to run on one device, which keeps the keys and values of its sequences. Sequences have numbers that the
/// caller chooses; one that nothing is known of holds nothing.
pub trait ModelProgram: Send {
    /// Positions that a sequence holds.
    fn length(&self, sequence: u64) -> usize;

    /// Forgets what a sequence holds behind its first `length` positions, and with 0 the sequence.
    fn truncate(&mut self, sequence: u64, length: usize);

    /// Makes a sequence hold `length` positions in place of what it held: the keys and values of all blocks, in f16.
    ///
    /// # Errors
    /// If there is no memory for them, or they are not in f16 and of the model's shapes.
    fn fill(&mut self, sequence: u64, length: usize, blocks: &[&dyn Cache]) -> Result<()>;

    /// Runs a chunk through all blocks: `x[rows, hidden]`, the embeddings of tokens, each times the description's scale.
    /// `segments`, sequences with a number of rows for each, cover the rows in order; each sequence then holds as many
    /// positions more. `read` is called with what is `wanted`, if that is anything.
    ///
    /// # Errors
    /// If there are more rows or outputs than the model was prepared for, a sequence is there twice, there is no memory
    /// for keys and values, or the device fails: sequences then hold what they held before.
    fn forward(
        &mut self,
        x: &[f32],
        segments: &[(u64, usize)],
        wanted: &Wanted,
        read: &mut dyn FnMut(Outputs),
    ) -> Result<()>;
}

/// What the CPU reads of a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Rows whose logits, or residual stream behind the last block, are returned.
    pub rows: &'a [usize],
    /// Whether these are logits, without a soft cap.
    pub logits: bool,
    /// Which weights the rows are multiplied with.
    pub phase: Phase,
    /// Whether the keys and values of all rows are returned, too.
    pub keys_and_values: bool,
}

/// What was wanted.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// Of the wanted rows, `[rows, vocab]` or `[rows, hidden]`.
    pub values: &'a [f32],
    /// Of each block `[keys and values, rows of the chunk, kv_heads, head_dim]`; empty unless wanted.
    pub keys_and_values: &'a [f16],
}

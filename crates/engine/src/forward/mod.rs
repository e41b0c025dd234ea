//! A forward pass: runs the tokens of a chunk through all blocks.
//!
//! A layer consists of subgraphs ([`subgraphs`]), each a function on the [`Buffers`] of one chunk. [`ForwardContext::run`]
//! calls them one after the other; an executor for several processors calls the same functions as tasks.
//!
//! The buffers are allocated once, for the longest chunk, and are reused. The pass itself allocates nothing that grows
//! with the model.

mod adapters;
mod added_inputs;
mod attention;
mod buffers;
mod experts;
mod feed_forward;
mod joined_input;
mod kernels;
mod mixer;
mod outputs;
mod rows;
mod segment;
mod stream;
mod streams;
mod subgraphs;
mod token_inputs;
mod within;

use std::ops::Range;
use std::sync::Arc;

use triad_kernels::activation::soft_cap;
use triad_kernels::{OutputMut, Phase, matmul};
use triad_model::description::ModelDescription;
use triad_model::role::Role;

pub use buffers::{Buffers, Rotation};
pub use kernels::{delta_net_kernel, mamba2_kernel};
pub use segment::{RowLayout, Segment};
pub use subgraphs::{Chunk, ForwardContext, MatmulContext, activation};

use crate::error::Result;
use crate::model::Model;
use crate::pictures::Pictures;
use crate::statistics::{Bytes, Counters, Operator};
use crate::weights::{Linear, Weight, Weights};

/// The parts that all forward passes of an engine share.
pub struct Forward {
    model: Arc<Model>,
    rotation: Rotation,
    counters: Counters,
    pictures: Pictures,
}

impl Forward {
    /// Creates the shared parts for sessions of `context` tokens.
    pub(crate) fn new(model: &Arc<Model>, context: usize) -> Self {
        Self {
            model: Arc::clone(model),
            rotation: Rotation::new(model.description(), context),
            counters: Counters::default(),
            pictures: Pictures::default(),
        }
    }

    /// Returns the pictures that the engine has encoded.
    pub(crate) fn pictures(&self) -> &Pictures {
        &self.pictures
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the description of the model.
    pub fn description(&self) -> &ModelDescription {
        self.model.description()
    }

    /// Returns the parts of RoPE that depend on no token.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// Returns the counts of operators.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns a forward pass in the arithmetic of `phase`.
    pub fn context(&self, phase: Phase) -> ForwardContext<'_> {
        ForwardContext {
            description: self.model.description(),
            weights: self.model.weights(),
            rotation: &self.rotation,
            phase,
            outlier_cache: None,
            counters: &self.counters,
            pictures: &self.pictures,
        }
    }
}

impl ForwardContext<'_> {
    /// Runs `tokens`, which the segments of `chunk` cover in order, through all layers. Keys and values are written to
    /// the cache; the residual stream stays in the buffers for [`ForwardContext::logits`]. `between` is called before
    /// each layer.
    ///
    /// # Errors
    /// If a linear layer fails, or the error of `between`.
    pub fn run(
        &self,
        tokens: &[u32],
        chunk: Chunk,
        matmul: &mut MatmulContext,
        between: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.begin(tokens, chunk);
        for layer in 0..self.description.blocks.len() {
            between()?;
            for role in Role::of_block(false) {
                self.subgraph(layer, role, chunk, matmul)?;
            }
        }
        self.end(chunk);
        Ok(())
    }

    /// Computes the logits `[rows, vocab]` of the given rows of a chunk that has been through all blocks. `phase` is
    /// the phase of these rows and not of the chunk: rows from which a token is sampled are [`Phase::Decode`] also at
    /// the end of a prompt.
    pub fn logits(
        &self,
        buffers: &Buffers,
        rows: impl ExactSizeIterator<Item = usize>,
        phase: Phase,
        out: &mut [f32],
    ) {
        let (hidden, count) = (self.description.hidden, rows.len());
        let mut gathered = buffers.projected.write(hidden, 0..count);
        for (row, gathered) in rows.zip(gathered.chunks_exact_mut(hidden)) {
            gathered.copy_from_slice(&buffers.x.read(hidden, row..row + 1));
        }
        self.logits_of(
            &gathered,
            &mut buffers.normed.write(hidden, 0..count),
            phase,
            out,
        );
    }

    /// Returns the input of the output matrix for some rows, `[rows, hidden]`: the residual stream after the last norm.
    pub fn hidden_states(&self, buffers: &Buffers, rows: Range<usize>) -> Vec<f32> {
        let hidden = self.description.hidden;
        self.states_of(&buffers.x.read(hidden, rows))
    }

    /// Returns the input of the output matrix for the residual stream `x[rows, hidden]` after the last block.
    pub fn states_of(&self, x: &[f32]) -> Vec<f32> {
        self.weights.output_norm.normalized(x)
    }

    /// Computes the logits `[rows, vocab]` of the residual stream `x[rows, hidden]` after the last block. Overwrites
    /// `normed`, which has the same shape.
    pub fn logits_of(&self, x: &[f32], normed: &mut [f32], phase: Phase, out: &mut [f32]) {
        self.logits_part_of(x, normed, phase, 0..self.description.vocab, out);
    }

    /// Computes, as [`ForwardContext::logits_of`] does, the logits `[rows, columns]` of a part of the vocabulary.
    pub fn logits_part_of(
        &self,
        x: &[f32],
        normed: &mut [f32],
        phase: Phase,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        let (begun, count) = (self.counters.begin(), columns.len());
        self.weights.output_norm.normalize(x, normed);
        multiply_output(
            self.weights,
            normed,
            columns,
            phase,
            OutputMut::new(out, count),
        );
        let scale = self.description.logit_scale;
        if scale != 1.0 {
            out.iter_mut().for_each(|logit| *logit *= scale);
        }
        if let Some(cap) = self.description.logit_soft_cap {
            soft_cap(out, cap);
        }
        self.counters.end(begun, Operator::Output, || {
            let normed = size_of_val(normed);
            let weights = self.weights.output.weight.bytes() * count / self.description.vocab;
            let weights = weights + self.weights.output_norm.bytes();
            Bytes::new(size_of_val(x) + normed, normed + size_of_val(out), weights)
        });
    }
}

/// Computes some columns of the output layer for `x[rows, hidden]`.
pub fn multiply_output(
    weights: &Weights,
    x: &[f32],
    columns: Range<usize>,
    phase: Phase,
    out: OutputMut,
) {
    let Linear { weight, bias, .. } = &weights.output;
    let Weight::Float(weight) = weight else {
        unreachable!("the output matrix reads float activations")
    };
    let bias = bias.as_deref().map(|bias| &bias[columns.clone()]);
    matmul(
        x,
        weight.view().rows(columns, weight.in_features()),
        bias,
        phase,
        out,
    );
}

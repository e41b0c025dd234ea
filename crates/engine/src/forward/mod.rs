//! A forward pass: runs the tokens of a chunk through all blocks.
//!
//! A block consists of subgraphs ([`subgraphs`]), each a function on the [`Buffers`] of one chunk. Here they are called
//! one after the other; [`execute`](crate::execute) calls the same functions on several processors.
//!
//! The buffers are allocated once, for the longest chunk, and are reused. The pass itself allocates nothing that grows
//! with the model.

mod adapters;
mod buffers;
mod fixed;
mod rows;
mod subgraphs;

use std::ops::Range;

use triad_kernels::activation::soft_cap;
use triad_kernels::{OutputMut, Phase, matmul};
use triad_plan::graph::Role;

pub(crate) use buffers::{Buffers, Rotation};
pub(crate) use fixed::FixedBlocks;
use rows::normalize;
pub(crate) use subgraphs::{Chunk, ForwardContext, MatmulContext, activation};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::kv::KvCache;
use crate::linear::{CpuBackend, Observer};
use crate::statistics::{Bytes, Operator};
use crate::weights::{Linear, Weight, Weights};

/// A segment of a chunk: rows that are consecutive tokens of one sequence, the first of them at `position`.
///
/// Every row is computed independently except in attention, which writes the keys and values of a segment to its
/// sequence's cache and reads the cache. Segments of a prompt may share a cache: each segment then overwrites the one
/// before it.
#[derive(Clone)]
pub(crate) struct Segment<'a> {
    pub(crate) cache: &'a KvCache,
    pub(crate) rows: Range<usize>,
    pub(crate) position: usize,
}

impl Segment<'_> {
    fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows.len()
    }
}

/// A pass and its buffers, which run chunks one after the other.
pub(crate) struct Forward<'a> {
    pub(crate) pass: ForwardContext<'a>,
    pub(crate) buffers: &'a Buffers,
    pub(crate) observer: Option<Observer<'a>>,
}

impl Forward<'_> {
    /// Runs `tokens`, which `segments` cover in order, through all blocks. Keys and values are written to the cache;
    /// the residual stream stays in the buffers for [`ForwardContext::logits`].
    pub(crate) fn run(
        &mut self,
        tokens: &[u32],
        segments: &[Segment],
        cancel: &Cancel,
    ) -> Result<()> {
        let Self {
            pass,
            buffers,
            observer,
        } = self;
        let chunk = Chunk { segments, buffers };
        pass.begin(tokens, chunk);
        let mut kernels = CpuBackend(pass.weights);
        let mut multiplier = MatmulContext {
            observer: observer.take(),
            ..MatmulContext::new(&mut kernels)
        };
        let outcome = (0..pass.description.blocks.len()).try_for_each(|block| {
            cancel.check()?;
            Role::of_block(false)
                .try_for_each(|role| pass.subgraph(block, role, chunk, &mut multiplier))
        });
        *observer = multiplier.observer;
        outcome?;
        pass.end(chunk);
        Ok(())
    }
}

impl ForwardContext<'_> {
    /// Computes the logits `[rows, vocab]` of the given rows of a chunk that has been through all blocks. `phase` is
    /// the phase of these rows and not of the chunk: rows from which a token is sampled are [`Phase::Decode`] also at
    /// the end of a prompt.
    pub(crate) fn logits(
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

    /// Returns the input of the output matrix for the first `rows` rows, `[rows, hidden]`: the residual stream after
    /// the last norm.
    pub(crate) fn hidden_states(&self, buffers: &Buffers, rows: usize) -> Vec<f32> {
        let hidden = self.description.hidden;
        let mut states = vec![0.0; rows * hidden];
        normalize(
            &self.weights.output_norm,
            &buffers.x.read(hidden, 0..rows),
            &mut states,
        );
        states
    }

    /// Computes the logits `[rows, vocab]` of the residual stream `x[rows, hidden]` after the last block. Overwrites
    /// `normed`, which has the same shape.
    pub(crate) fn logits_of(&self, x: &[f32], normed: &mut [f32], phase: Phase, out: &mut [f32]) {
        self.logits_part_of(x, normed, phase, 0..self.description.vocab, out);
    }

    /// Computes, as [`ForwardContext::logits_of`] does, the logits `[rows, columns]` of a part of the vocabulary.
    pub(crate) fn logits_part_of(
        &self,
        x: &[f32],
        normed: &mut [f32],
        phase: Phase,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        let (begun, count) = (self.counters.begin(), columns.len());
        normalize(&self.weights.output_norm, x, normed);
        multiply_output(
            self.weights,
            normed,
            columns,
            phase,
            OutputMut::new(out, count),
        );
        if let Some(cap) = self.description.logit_soft_cap {
            soft_cap(out, cap);
        }
        self.counters.end(begun, Operator::Output, || {
            let normed = size_of_val(normed);
            let weights = self.weights.output.weight.bytes() * count / self.description.vocab;
            let weights = weights + self.weights.output_norm.bytes();
            Bytes::of(size_of_val(x) + normed, normed + size_of_val(out), weights)
        });
    }
}

/// Computes some columns of the output layer for `x[rows, hidden]`.
pub(crate) fn multiply_output(
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

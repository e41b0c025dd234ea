//! One forward pass: the tokens of a chunk through all blocks.
//!
//! A block is six subgraphs ([`subgraphs`]), each a function on the [`Buffers`] of one chunk. Here they are called one
//! after the other; [`execute`](crate::execute) calls the same functions on several processors.
//!
//! The buffers are allocated once a session, for the longest chunk; the pass itself allocates nothing that
//! grows with the model.

mod buffers;
mod subgraphs;

use std::ops::Range;

use triad_kernels::activation::soft_cap;
use triad_kernels::{OutputMut, Phase, matmul};
use triad_plan::graph::Role;

pub(crate) use buffers::{Buffers, Rotation};
use subgraphs::normalize;
pub(crate) use subgraphs::{Pass, activation};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::kv::KvCache;
use crate::linear::{Kernels, Multiplier, Observer};
use crate::weights::Weight;

/// Rows of a chunk that are consecutive tokens of one sequence, the first of them at `position`.
///
/// Every row stands alone but for attention, which writes the keys and values of a segment to its sequence's cache and
/// reads what is there. Segments of a prompt may share a cache: each in turn then takes the place of the one before it.
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

/// A pass and its buffers, ready to run chunks one after the other.
pub(crate) struct Forward<'a> {
    pub(crate) pass: Pass<'a>,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) observer: Option<Observer<'a>>,
}

impl Forward<'_> {
    /// Runs `tokens`, which `segments` cover in order, through all blocks: keys and values go to the cache, the
    /// residual stream stays in the buffers for [`Pass::logits`].
    pub(crate) fn run(&mut self, tokens: &[u32], segments: &[Segment], cancel: &Cancel) -> Result<()> {
        let Self { pass, buffers, observer } = self;
        pass.begin(tokens, segments, buffers);
        let mut multiplier = Multiplier { products: &mut Kernels(pass.weights), beside: None };
        for block in 0..pass.description.blocks.len() {
            cancel.check()?;
            for role in Role::ALL {
                pass.subgraph(block, role, segments, buffers, &mut multiplier, observer)?;
            }
        }
        pass.end(tokens.len(), buffers);
        Ok(())
    }
}

impl Pass<'_> {
    /// Logits `[rows, vocab]` of the given rows of a chunk that is at its end. `phase` is theirs, not the chunk's: rows
    /// that a next token is sampled from are [`Phase::Decode`] also at the end of a prompt.
    pub(crate) fn logits(
        &self,
        buffers: &mut Buffers,
        rows: impl ExactSizeIterator<Item = usize>,
        phase: Phase,
        out: &mut [f32],
    ) {
        let hidden = self.description.hidden;
        let count = rows.len();
        let Buffers { x, normed, projected, .. } = buffers;
        for (row, gathered) in rows.zip(projected.chunks_exact_mut(hidden)) {
            gathered.copy_from_slice(&x[row * hidden..(row + 1) * hidden]);
        }
        self.logits_of(&projected[..count * hidden], &mut normed[..count * hidden], phase, out);
    }

    /// Logits `[rows, vocab]` of the residual stream `x[rows, hidden]` behind the last block; spoils `normed`, which has
    /// its shape.
    pub(crate) fn logits_of(&self, x: &[f32], normed: &mut [f32], phase: Phase, out: &mut [f32]) {
        normalize(&self.weights.output_norm, x, normed);
        let output = &self.weights.output;
        let Weight::Float(weight) = &output.weight else { unreachable!("the output matrix reads float activations") };
        let logits = OutputMut::new(out, weight.out_features());
        matmul(normed, weight.view(), output.bias.as_deref(), phase, logits);
        if let Some(cap) = self.description.logit_soft_cap {
            soft_cap(out, cap);
        }
    }
}

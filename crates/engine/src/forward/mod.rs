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
use triad_kernels::{Phase, matmul};
use triad_plan::graph::Role;

pub(crate) use buffers::{Buffers, Rotation};
use subgraphs::normalize;
pub(crate) use subgraphs::{Pass, activation};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::kv_cache::KvCache;
use crate::linear::{Kernels, Multiplier, Observer};
use crate::weights::Weight;

/// Rows of a chunk that are consecutive tokens of one sequence, the first of them at `position`.
///
/// A prompt's chunk is one segment. Several segments are several sequences that share what the session has seen:
/// every row stands alone but for attention, and there each segment in turn takes the place of the one before it
/// in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) rows: Range<usize>,
    pub(crate) position: usize,
}

impl Segment {
    fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows.len()
    }
}

/// A model and a session's parts, ready to run chunks one after the other.
pub(crate) struct Forward<'a> {
    pub(crate) pass: Pass<'a>,
    pub(crate) cache: &'a KvCache,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) observer: Option<Observer<'a>>,
}

impl Forward<'_> {
    /// Runs `tokens`, which `segments` cover in order, through all blocks: keys and values go to the cache, the
    /// residual stream stays in the buffers for [`Pass::logits`].
    pub(crate) fn run(&mut self, tokens: &[u32], segments: &[Segment], cancel: &Cancel) -> Result<()> {
        let Self { pass, cache, buffers, observer } = self;
        pass.begin(tokens, segments, buffers);
        let mut multiplier = Multiplier { products: &mut Kernels(pass.weights), beside: None };
        for block in 0..pass.description.blocks.len() {
            cancel.check()?;
            for role in Role::ALL {
                pass.subgraph(block, role, segments, cache, buffers, &mut multiplier, observer)?;
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
        let normed = &mut normed[..count * hidden];
        normalize(&self.weights.output_norm, &projected[..count * hidden], normed);
        let output = &self.weights.output;
        let Weight::Float(weight) = &output.weight else { unreachable!("the output matrix reads float activations") };
        matmul(normed, count, weight.view(), weight.out_features(), output.bias.as_deref(), phase, out);
        if let Some(cap) = self.description.logit_soft_cap {
            soft_cap(out, cap);
        }
    }
}

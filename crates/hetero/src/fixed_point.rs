//! Feed-forwards of prompts with fixed-point arithmetic between gate, up and down, on any processor.

use std::sync::{Mutex, PoisonError};

use triad_engine::linear::{Backend, FloatRows, LinearOutput, Shadows, StaticInput};
use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_model::role::Role;
use triad_processors::{FixedFeedForward, FixedScratch};

/// The fixed-point feed-forwards of a model, by block, as the CPU computes them; `None` for a block that is computed in
/// float.
pub(crate) struct FixedBlocks {
    blocks: Vec<Option<FixedFeedForward>>,
    /// Scratch buffers that are not in use.
    spare: Mutex<Vec<FixedScratch>>,
}

impl FixedBlocks {
    pub(crate) fn new(blocks: Vec<Option<FixedFeedForward>>) -> Self {
        Self {
            blocks,
            spare: Mutex::default(),
        }
    }

    /// Returns the number of blocks with one.
    pub(crate) fn count(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    /// Returns whether a block has one.
    pub(crate) fn has(&self, block: usize) -> bool {
        self.blocks[block].is_some()
    }

    /// Returns whether our own kernels have computed one.
    #[cfg(test)]
    pub(crate) fn has_run(&self) -> bool {
        !self
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Writes `out[rows, hidden]` and returns `true`, if the block has one.
    fn run(&self, block: usize, x: QuantizedView, out: OutputMut) -> bool {
        let Some(feed_forward) = &self.blocks[block] else {
            return false;
        };
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = spare().pop().unwrap_or_default();
        feed_forward.run(&mut scratch, x, out);
        spare().push(scratch);
        true
    }
}

/// A backend that computes the whole feed-forwards of prompts in fixed point, unless `backend` has programs for them.
pub(crate) struct FixedBackend<'a, B> {
    pub(crate) fixed: &'a FixedBlocks,
    pub(crate) backend: B,
}

impl<B: Backend> Backend for FixedBackend<'_, B> {
    fn multiply(
        &mut self,
        block: usize,
        role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> triad_engine::Result<bool> {
        self.backend.multiply(block, role, x, outs, shadows)
    }

    fn multiply_floats(
        &mut self,
        block: usize,
        role: Role,
        x: FloatRows,
        outs: &mut [LinearOutput],
    ) -> triad_engine::Result<()> {
        self.backend.multiply_floats(block, role, x, outs)
    }

    fn gated(
        &mut self,
        block: usize,
        x: QuantizedView,
        activation: Activation,
        how: StaticInput,
        inner: &mut QuantizedRows,
    ) -> bool {
        self.backend.gated(block, x, activation, how, inner)
    }

    fn feed_forward(
        &mut self,
        block: usize,
        x: QuantizedView,
        out: &mut [f32],
        inner: &mut [f32],
    ) -> triad_engine::Result<bool> {
        if self.backend.feed_forward(block, x, out, inner)? {
            return Ok(true);
        }
        let hidden = out.len() / x.rows();
        Ok(self.fixed.run(block, x, OutputMut::new(out, hidden)))
    }
}

//! Proposals of tokens, and their sources.

use crate::cancel::Cancel;
use crate::error::Result;
use crate::sampler::Distribution;

/// A proposed token.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) token: u32,
    /// The distribution that it was drawn from; `None` if no other token could have been proposed.
    pub(crate) drawn_from: Option<Distribution>,
}

/// A source of proposed tokens.
pub(crate) trait Propose {
    /// Receives the prompt before the first call of [`Propose::find`].
    ///
    /// # Errors
    /// If the prompt cannot be computed, or `cancel` is set.
    fn begin(&mut self, _prompt: &[u32], _cancel: &Cancel) -> Result<()> {
        Ok(())
    }

    /// Runs what waits before the first proposal of what follows `tokens`. The time of a step does not include it, since
    /// later steps need it no more.
    ///
    /// # Errors
    /// As [`Propose::begin`].
    fn catch_up(&mut self, _tokens: &[u32], _cancel: &Cancel) -> Result<()> {
        Ok(())
    }

    /// Returns the kind of the available proposals of what follows `tokens`, a small number, or `None` if there are
    /// none. Acceptance is counted by kind.
    fn find(&mut self, tokens: &[u32]) -> Option<usize>;

    /// Adds at most `count` proposals of what follows `tokens`. [`Propose::find`] was called with the same `tokens`
    /// just before.
    ///
    /// # Errors
    /// As [`Propose::begin`].
    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        cancel: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()>;
}

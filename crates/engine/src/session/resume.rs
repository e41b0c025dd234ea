//! Computing tokens again whose states are no longer known.

use triad_kernels::Phase;

use super::Session;
use crate::batch::{LogitsMode, Request, RequestStates};
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// The maximum tokens of an answer that are computed again at once.
const ROWS: usize = 16;

impl Session {
    /// Makes the states of mixers known after the session's tokens, so that others can follow: computes tokens again
    /// from the last position where they are known. Does nothing in models without such mixers. Keys and values are
    /// written again with the same bits.
    ///
    /// # Errors
    /// As [`Session::prefill`]. The session keeps its tokens.
    pub(crate) fn resume(&mut self, cancel: &Cancel) -> Result<()> {
        loop {
            let held = self.tokens.len();
            let position = self.cache.resumable(held);
            // Each token is computed in the arithmetic that it had.
            let run = self.phases.run_at(position).filter(|_| position < held);
            let (end, phase) = match run {
                Some((run, Phase::Prefill)) => (run.end, Phase::Prefill),
                Some((run, Phase::Decode)) => (run.end.min(position + ROWS), Phase::Decode),
                None => return Ok(()),
            };
            self.compute_again(position..end, phase, cancel)?;
            if self.cache.resumable(end) != end {
                return Err(Error::UnknownState { position: end });
            }
        }
    }

    fn compute_again(
        &mut self,
        tokens: std::ops::Range<usize>,
        phase: Phase,
        cancel: &Cancel,
    ) -> Result<()> {
        cancel.check()?;
        self.cache.reserve(tokens.start, self.tokens.len())?;
        let (vocab, logits) = (
            self.model().description().vocab,
            std::mem::take(&mut self.logits),
        );
        let request = Request::new(
            self.id,
            std::sync::Arc::clone(&self.cache),
            (
                self.tokens[tokens.clone()].to_vec(),
                tokens.start,
                self.layout_again(tokens.clone()),
            ),
            (phase, LogitsMode::Last),
            (vocab, logits),
            RequestStates::default(),
            cancel,
        );
        let scheduler = &self.engine.shared().scheduler;
        scheduler.submit(std::slice::from_ref(&request));
        let outcome = scheduler.wait(&request, cancel, &mut |_| {});
        let result = self.model().check_unchanged().and(outcome.result);
        self.logits = outcome.logits;
        if outcome.is_tainted {
            self.cache = std::sync::Arc::new(self.cache.fork());
        }
        result
    }
}

//! The head of the model that predicts one more token, as a source of proposals.

use std::sync::{Arc, Mutex};

use triad_kernels::lock;

use super::{Proposal, Propose};
use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Follower;

/// The head that follows the session of an answer.
pub(super) struct MtpProposer {
    head: Arc<Mutex<dyn Follower>>,
    /// The engine of the session that the head follows.
    engine: Engine,
    sampler: Sampler,
    /// The tokens so far, with those that are proposed.
    seen: Vec<u32>,
    /// Whether the head failed: it then proposes nothing more.
    has_failed: bool,
}

impl MtpProposer {
    /// Creates a proposer for an answer with these options, whose likeliest tokens it proposes.
    ///
    /// # Errors
    /// If an option is out of range.
    pub(super) fn new(
        head: Arc<Mutex<dyn Follower>>,
        engine: &Engine,
        options: &SamplerOptions,
    ) -> Result<Self> {
        let sampler = Sampler::new(&SamplerOptions {
            temperature: 0.0,
            ..options.clone()
        })?;
        Ok(Self {
            head,
            engine: engine.clone(),
            sampler,
            seen: Vec::new(),
            has_failed: false,
        })
    }

    /// Lets the head run, unless it failed before, or a prompt needs the threads.
    ///
    /// # Errors
    /// If the answer was cancelled. An answer does not fail for want of proposals.
    fn run(
        &mut self,
        run: impl FnOnce(&mut dyn Follower, &mut Sampler, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let held = self.engine.shared().scheduler.hold_prompts();
        if held.is_none() || self.has_failed {
            return Ok(());
        }
        match run(&mut *lock(&self.head), &mut self.sampler, &mut self.seen) {
            Err(error) if !matches!(error, Error::Cancelled) => {
                tracing::warn!("the model's MTP head proposes nothing more in an answer: {error}");
                self.has_failed = true;
                Ok(())
            }
            other => other,
        }
    }
}

impl Propose for MtpProposer {
    fn begin(&mut self, prompt: &[u32], _cancel: &Cancel) -> Result<()> {
        self.sampler.begin_answer(prompt.len());
        Ok(())
    }

    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        let may_run = !self.has_failed && self.engine.shared().scheduler.hold_prompts().is_some();
        (may_run && lock(&self.head).is_ready(tokens.len())).then_some(0)
    }

    fn catch_up(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<()> {
        let known = &tokens[..tokens.len() - 1];
        self.run(|head, _, _| head.catch_up(known, cancel))
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        cancel: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        self.run(|head, sampler, seen| {
            seen.clear();
            seen.extend_from_slice(tokens);
            let count = count.min(head.room());
            let result = predict(head, (sampler, seen), (count, cancel), proposals);
            head.undo();
            result
        })
    }
}

/// Adds `count` proposals of what follows the tokens that were seen.
fn predict(
    head: &mut dyn Follower,
    (sampler, seen): (&mut Sampler, &mut Vec<u32>),
    (count, cancel): (usize, &Cancel),
    proposals: &mut Vec<Proposal>,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    head.predict(seen, cancel)?;
    // The last proposal is not run through the head.
    for left in (0..count).rev() {
        let token = sampler.sample(head.logits(), seen);
        seen.push(token);
        proposals.push(Proposal {
            token,
            drawn_from: None,
        });
        if left > 0 {
            head.predict_after(token, cancel)?;
        }
    }
    Ok(())
}

//! The head of the model that predicts one more token, as a source of proposals.

use std::sync::{Arc, Mutex};

use triad_kernels::lock;

use super::{Proposal, Propose};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Follower;

/// The head that follows the session of an answer.
pub(super) struct MtpProposer {
    head: Arc<Mutex<dyn Follower>>,
    sampler: Sampler,
    /// The tokens so far, with those that are proposed.
    seen: Vec<u32>,
    /// Whether there is no memory for its keys and values: it then proposes nothing more.
    is_out_of_memory: bool,
}

impl MtpProposer {
    /// Creates a proposer for an answer with these options, whose likeliest tokens it proposes.
    ///
    /// # Errors
    /// If an option is out of range.
    pub(super) fn new(head: Arc<Mutex<dyn Follower>>, options: &SamplerOptions) -> Result<Self> {
        let sampler = Sampler::new(&SamplerOptions {
            temperature: 0.0,
            ..options.clone()
        })?;
        Ok(Self {
            head,
            sampler,
            seen: Vec::new(),
            is_out_of_memory: false,
        })
    }

    /// Returns `result`, unless it is that no memory is left: an answer does not fail for want of proposals.
    fn checked(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::KvMemoryFull { .. }) => {
                self.is_out_of_memory = true;
                Ok(())
            }
            other => other,
        }
    }
}

impl Propose for MtpProposer {
    fn begin(&mut self, prompt: &[u32], cancel: &Cancel) -> Result<()> {
        self.sampler.begin_answer(prompt.len());
        let result = lock(&self.head).catch_up(prompt, cancel);
        self.checked(result)
    }

    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        let is_ready = !self.is_out_of_memory && lock(&self.head).is_ready(tokens.len());
        is_ready.then_some(0)
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        cancel: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        self.seen.clear();
        self.seen.extend_from_slice(tokens);
        let result = {
            let mut head = lock(&self.head);
            let count = count.min(head.room());
            let result = predict(
                &mut *head,
                (&mut self.sampler, &mut self.seen),
                (count, cancel),
                proposals,
            );
            head.undo();
            result
        };
        self.checked(result)
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

//! Several tokens a step: guesses of what comes next go through the model together, and those that it would have chosen
//! itself are kept.
//!
//! A step runs the latest token and some proposals as rows of one [`Session::decode_each`](crate::Session::decode_each), which has for each row the
//! bits that one-by-one decode has. From the first row on, the sampler chooses as it always does; as long as it chooses
//! the proposal, the next row is valid, too. Keys and values of the others are forgotten. Weights are read once for all
//! rows, so a step of several rows takes little longer than one of a single row.
//!
//! | where | what |
//! | --- | --- |
//! | [`lookup`] | proposes what followed the same tokens earlier |
//! | [`draft`] | proposes the likeliest tokens of a smaller model |
//! | [`step`] | one step: propose, run, verify |
//! | [`lengths`] | how many proposals are worth their time, by measured steps and recent acceptance |

mod draft;
mod lengths;
mod lookup;
mod step;
#[cfg(test)]
mod tests;

pub use draft::Draft;
pub use lookup::Lookup;

pub(crate) use step::Speculator;

use serde::Serialize;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::sampler::Distribution;

/// Proposals of a step at most, unless another number is given.
const MOST: usize = 16;
/// No step has more.
const MOST_OF_ALL: usize = 255;

/// How several tokens a step are made of guesses.
#[derive(Clone, Debug)]
pub struct Speculate {
    /// Where proposals come from.
    pub source: Source,
    /// Proposals of a step at most, 1 to 255.
    pub most: usize,
    /// Whether each step has as many proposals as `most`; otherwise as many as are worth their time, by what steps have
    /// taken and how many were accepted.
    pub is_fixed: bool,
}

/// Where proposals come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// From the tokens so far.
    Lookup(Lookup),
    /// From a smaller model.
    Draft(Draft),
}

impl Speculate {
    /// By prompt lookup, as much as pays.
    pub fn lookup() -> Self {
        Self {
            source: Source::Lookup(Lookup::default()),
            most: MOST,
            is_fixed: false,
        }
    }

    /// By a draft model, as much as pays.
    pub fn draft(draft: Draft) -> Self {
        Self {
            source: Source::Draft(draft),
            most: MOST,
            is_fixed: false,
        }
    }

    fn check(&self) -> Result<()> {
        if !(1..=MOST_OF_ALL).contains(&self.most) {
            let (name, expected) = ("the number of proposals", "1 to 255");
            return Err(Error::Option {
                name,
                value: self.most.to_string(),
                expected,
            });
        }
        match &self.source {
            Source::Lookup(lookup) => lookup.check(),
            Source::Draft(_) => Ok(()),
        }
    }
}

/// What came of proposals in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speculation {
    /// Steps of decode, with and without proposals.
    pub steps: usize,
    /// Tokens that were proposed.
    pub proposed: usize,
    /// Those of them that are part of the answer.
    pub accepted: usize,
    /// Mean seconds of the steps without proposals; 0 if there were none.
    pub plain_step_seconds: f64,
}

impl Speculation {
    /// The share of proposals that were accepted; 0 if there were none.
    pub fn acceptance(&self) -> f64 {
        if self.proposed == 0 {
            0.0
        } else {
            self.accepted as f64 / self.proposed as f64
        }
    }

    /// How many times as long `tokens` that took `seconds` would have taken one by one, by the steps without proposals;
    /// `None` if nothing was proposed or there were no such steps.
    pub fn gain(&self, tokens: usize, seconds: f64) -> Option<f64> {
        let is_known = self.proposed > 0 && self.plain_step_seconds > 0.0 && seconds > 0.0;
        is_known.then(|| tokens as f64 * self.plain_step_seconds / seconds)
    }
}

/// A guess of a token.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) token: u32,
    /// What it was drawn from; `None` if no other token could have been proposed.
    pub(crate) drawn_from: Option<Distribution>,
}

/// Something that proposes tokens.
pub(crate) trait Propose {
    /// Is called with a prompt before the first [`Propose::find`].
    ///
    /// # Errors
    /// If it cannot be computed, or `cancel` is set.
    fn begin(&mut self, _prompt: &[u32], _cancel: &Cancel) -> Result<()> {
        Ok(())
    }

    /// Whether there are proposals of what follows `tokens`, and of which kind: a small number. Acceptance is counted by
    /// kind.
    fn find(&mut self, tokens: &[u32]) -> Option<usize>;

    /// Adds at most `count` proposals of what follows `tokens`, with which [`Propose::find`] has just been called.
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

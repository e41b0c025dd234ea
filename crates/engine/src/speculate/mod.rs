//! Speculative decoding: the model runs several guessed tokens in one step, and those that it would have chosen itself
//! are kept.
//!
//! A step runs the latest token and some proposals as rows of one
//! [`Session::decode_each`](crate::Session::decode_each), whose logits are bit for bit those of decoding one token at a
//! time. From the first row on, the sampler chooses as usual. As long as it chooses the proposal, the next row is
//! valid, too. The keys and values of the other rows are dropped. Weights are read once for all rows, so a step of
//! several rows takes little longer than a step of one row.
//!
//! | module | content |
//! | --- | --- |
//! | [`lookup`] | proposes the tokens that followed the same tokens earlier |
//! | [`draft`] | proposes the likeliest tokens of a smaller model |
//! | [`mtp`] | proposes the likeliest tokens of the model's head that predicts one more token |
//! | [`step`] | one step: propose, run, verify |
//! | [`lengths`] | the number of proposals that pays, by measured times of steps and recent acceptance |

mod draft;
mod lengths;
mod lookup;
mod mtp;
mod propose;
mod step;
#[cfg(test)]
mod tests;

pub use draft::Draft;
pub use lookup::Lookup;
pub(crate) use propose::{Proposal, Propose};

pub(crate) use step::Speculator;

use serde::Serialize;

use crate::error::{Error, Result};

/// The default maximum number of proposals per step.
const MAX: usize = 16;
/// The limit of the maximum number of proposals per step.
const MAX_OF_ALL: usize = 255;

/// Options of speculative decoding.
#[derive(Clone, Debug)]
pub struct Speculate {
    /// The source of proposals.
    pub source: Source,
    /// The maximum number of proposals per step, 1 to 255.
    pub most: usize,
    /// Whether each step has `most` proposals. Otherwise the number is chosen by the measured times of steps and by how
    /// many proposals were accepted.
    pub is_fixed: bool,
}

/// A source of proposals.
#[derive(Clone, Debug)]
pub enum Source {
    /// Earlier occurrences in the tokens so far.
    Lookup(Lookup),
    /// A smaller model.
    Draft(Draft),
    /// The model's own head that predicts one more token (MTP). Refused if [no head](crate::Session::no_head) can follow
    /// the session.
    Mtp,
    /// All sources of the session: the head if it has one, and earlier occurrences. Before each step, the one with the
    /// most expected tokens per second is chosen.
    Automatic,
}

impl Speculate {
    /// Creates the default options of prompt lookup.
    pub fn lookup() -> Self {
        Self {
            source: Source::Lookup(Lookup::default()),
            most: MAX,
            is_fixed: false,
        }
    }

    /// Creates the default options of all sources that the session of an answer has by itself.
    pub fn automatic() -> Self {
        Self {
            source: Source::Automatic,
            ..Self::lookup()
        }
    }

    /// Creates the default options of the model's head that predicts one more token.
    pub fn mtp() -> Self {
        Self {
            source: Source::Mtp,
            ..Self::lookup()
        }
    }

    /// Creates the default options of a draft model.
    pub fn draft(draft: Draft) -> Self {
        Self {
            source: Source::Draft(draft),
            most: MAX,
            is_fixed: false,
        }
    }

    fn check(&self) -> Result<()> {
        if !(1..=MAX_OF_ALL).contains(&self.most) {
            let (name, expected) = ("the number of proposals", "1 to 255");
            return Err(Error::Option {
                name,
                value: self.most.to_string(),
                expected,
            });
        }
        match &self.source {
            Source::Lookup(lookup) => lookup.check(),
            Source::Draft(_) | Source::Mtp | Source::Automatic => Ok(()),
        }
    }
}

/// Counts of steps and proposals of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speculation {
    /// Decode steps, with and without proposals.
    pub steps: usize,
    /// Tokens that were proposed.
    pub proposed: usize,
    /// Proposed tokens that are part of the answer.
    pub accepted: usize,
    /// Tokens among `proposed` that the model's head proposed.
    pub mtp_proposed: usize,
    /// Tokens among `accepted` that the model's head proposed.
    pub mtp_accepted: usize,
    /// Mean seconds of the steps without proposals; 0 if there were none.
    pub plain_step_seconds: f64,
}

impl Speculation {
    /// Returns the share of proposals that were accepted; 0 if there were none.
    pub fn acceptance(&self) -> f64 {
        if self.proposed == 0 {
            0.0
        } else {
            self.accepted as f64 / self.proposed as f64
        }
    }

    /// Returns the speedup over one token per step for `tokens` that took `seconds`, by the mean time of the steps
    /// without proposals. Returns `None` if nothing was proposed or there were no such steps.
    pub fn gain(&self, tokens: usize, seconds: f64) -> Option<f64> {
        let is_known = self.proposed > 0 && self.plain_step_seconds > 0.0 && seconds > 0.0;
        is_known.then(|| tokens as f64 * self.plain_step_seconds / seconds)
    }
}

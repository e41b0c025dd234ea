//! One decode step: propose, run, verify.

use std::time::Instant;

use super::lengths::Lengths;
use super::lookup::LookupProposer;
use super::{Proposal, Propose, Source, Speculate, Speculation};
use crate::cancel::Cancel;
use crate::constraint::{Allowed, ConstraintUse, Guide};
use crate::error::{Error, Result};
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Session;

/// Runs the decode steps of one answer.
pub(crate) struct Speculator {
    /// `None`: one token per step.
    proposer: Option<Box<dyn Propose>>,
    /// The constraint of the answer, if there is one.
    guide: Option<Guide>,
    lengths: Lengths,
    /// The tokens that the session holds; during a step, also the token that it runs first.
    history: Vec<u32>,
    proposals: Vec<Proposal>,
    rows: Vec<u32>,
    chosen: Vec<u32>,
    /// Whether the rows of the latest step were forced by the constraint and not proposed.
    is_forced: bool,
    statistics: Speculation,
    plain_steps: usize,
}

impl Speculator {
    /// Creates a speculator for an answer of `session` with the options of `sampler`.
    ///
    /// # Errors
    /// If an option is out of range, or a draft model has other tokens.
    pub(crate) fn new(
        options: Option<&Speculate>,
        session: &Session,
        sampler: &SamplerOptions,
    ) -> Result<Self> {
        let Some(options) = options else {
            return Ok(Self::with(None, Lengths::fixed(0)));
        };
        options.check()?;
        let proposer: Box<dyn Propose> = match &options.source {
            Source::Lookup(lookup) => Box::new(LookupProposer::new(*lookup)),
            Source::Draft(draft) => {
                Box::new(draft.proposer(session.model(), session.salt(), sampler)?)
            }
        };
        let lengths = if options.is_fixed {
            Lengths::fixed(options.most)
        } else {
            Lengths::measured(options.most)
        };
        Ok(Self::with(Some(proposer), lengths))
    }

    pub(super) fn with(proposer: Option<Box<dyn Propose>>, lengths: Lengths) -> Self {
        Self {
            proposer,
            guide: None,
            lengths,
            history: Vec::new(),
            proposals: Vec::new(),
            rows: Vec::new(),
            chosen: Vec::new(),
            is_forced: false,
            statistics: Speculation::default(),
            plain_steps: 0,
        }
    }

    /// Sets the constraint of the answer.
    pub(crate) fn guide(&mut self, guide: Guide) {
        self.guide = Some(guide);
    }

    /// Returns whether the answer is complete: nothing may follow.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.guide.as_mut().is_some_and(Guide::is_complete)
    }

    /// Passes the tokens of a session after its prefill to the proposer.
    ///
    /// # Errors
    /// If the proposer cannot run them, or `cancel` is set.
    pub(crate) fn begin(&mut self, prompt: &[u32], cancel: &Cancel) -> Result<()> {
        let Some(proposer) = &mut self.proposer else {
            return Ok(());
        };
        self.history.clear();
        self.history.extend_from_slice(prompt);
        proposer.begin(prompt, cancel)
    }

    /// Samples the first token after the prompt; `None` if the answer must be empty.
    ///
    /// # Errors
    /// If the answer cannot satisfy its constraint.
    pub(crate) fn first(
        &mut self,
        session: &Session,
        sampler: &mut Sampler,
    ) -> Result<Option<u32>> {
        let (logits, seen) = (session.logits(), session.tokens());
        let Some(guide) = &mut self.guide else {
            return Ok(Some(sampler.sample(logits, seen)));
        };
        guide.end()?;
        let first = match guide.restrict(0, sampler)? {
            Allowed::Several => sampler.sample(logits, seen),
            Allowed::One(token) => token,
            Allowed::None => return Ok(None),
        };
        guide.settle(&[first])?;
        Ok(Some(first))
    }

    /// Runs `token` and at most `most` proposals after it. Returns the sampled tokens that follow `token`, at least
    /// one. Afterwards, the session holds all of them but the last.
    ///
    /// # Errors
    /// As [`Session::decode_each`]; if the answer cannot satisfy its constraint. The session then holds nothing more,
    /// or `token`.
    pub(crate) fn step(
        &mut self,
        session: &mut Session,
        sampler: &mut Sampler,
        token: u32,
        most: usize,
        cancel: &Cancel,
    ) -> Result<&[u32]> {
        let (start, before) = (Instant::now(), session.tokens().len());
        self.rows.clear();
        self.rows.push(token);
        let kind = self.propose(token, most, cancel)?;
        if let Err(error) = self.run(session, sampler, before, cancel) {
            session.truncate(before + 1);
            return Err(error);
        }
        let (rows, accepted) = (self.rows.len() - 1, self.chosen.len() - 1);
        session.forget_rows(rows - accepted);
        if self.proposer.is_some() {
            self.history.extend_from_slice(&self.chosen[..accepted]);
        }
        let seconds = start.elapsed().as_secs_f64();
        let statistics = &mut self.statistics;
        statistics.steps += 1;
        self.is_forced = kind.is_none();
        let Some(kind) = kind else {
            return Ok(&self.chosen);
        };
        let proposed = self.proposals.len();
        self.lengths.observe(kind, proposed, accepted, seconds);
        statistics.proposed += proposed;
        statistics.accepted += accepted;
        if proposed == 0 {
            self.plain_steps += 1;
            statistics.plain_step_seconds +=
                (seconds - statistics.plain_step_seconds) / self.plain_steps as f64;
        }
        Ok(&self.chosen)
    }

    /// Removes the end of the latest step: the answer ended with a token that has `remaining` chosen tokens after it. The
    /// session holds all but the last of those; it drops them and the answer's last token.
    pub(crate) fn end(&mut self, session: &mut Session, remaining: usize) {
        session.forget_rows(remaining);
        if !self.is_forced {
            self.statistics.accepted -= remaining.saturating_sub(1);
        }
    }

    /// Returns counts and times of the constraint; `None` if there is none.
    pub(crate) fn constraint_use(&self) -> Option<ConstraintUse> {
        self.guide.as_ref().map(Guide::statistics)
    }

    /// Returns the counts of proposals; `None` if there is no proposer.
    pub(crate) fn statistics(&self) -> Option<Speculation> {
        self.proposer.as_ref().map(|_| self.statistics)
    }

    /// Runs the rows of a step after the `before` tokens that the session holds, and fills `chosen` with the tokens
    /// that follow them.
    fn run(
        &mut self,
        session: &mut Session,
        sampler: &mut Sampler,
        before: usize,
        cancel: &Cancel,
    ) -> Result<()> {
        if let Some(guide) = &mut self.guide {
            guide.begin(&self.rows[1..])?;
        }
        session.decode_each(&self.rows, cancel)?;
        if let Some(guide) = &mut self.guide {
            guide.end()?;
        }
        self.chosen.clear();
        let vocab = session.model().description().vocab;
        for (row, logits) in session.logits_of_rows().chunks_exact(vocab).enumerate() {
            let seen = &session.tokens()[..=before + row];
            let proposal = self.proposals.get(row);
            let allowed = self
                .guide
                .as_mut()
                .map_or(Ok(Allowed::Several), |guide| guide.restrict(row, sampler))?;
            let chosen = match allowed {
                Allowed::Several => {
                    let verified =
                        proposal.and_then(|proposal| verify(proposal, sampler, logits, seen));
                    verified.unwrap_or_else(|| sampler.sample(logits, seen))
                }
                Allowed::One(token) => token,
                // This row is a proposal that completes the answer. A first row that completes it would not have
                // started a step.
                Allowed::None if row > 0 => break,
                Allowed::None => {
                    return Err(Error::Constraint("a complete answer was continued".into()));
                }
            };
            self.chosen.push(chosen);
            if proposal.is_none_or(|proposal| proposal.token != chosen) {
                break;
            }
        }
        self.guide
            .as_mut()
            .map_or(Ok(()), |guide| guide.settle(&self.chosen))
    }

    /// Fills the proposals of what follows `token`, and the rows after it. Returns the kind of the proposals, or `None`
    /// if the rows are forced by the constraint.
    fn propose(&mut self, token: u32, most: usize, cancel: &Cancel) -> Result<Option<usize>> {
        self.proposals.clear();
        if self.proposer.is_some() {
            self.history.push(token);
        }
        if let Some(guide) = &mut self.guide {
            let forced = guide.forced(most)?;
            if !forced.is_empty() {
                let proposal = |token: &u32| Proposal {
                    token: *token,
                    drawn_from: None,
                };
                self.rows.extend(forced);
                self.proposals.extend(forced.iter().map(proposal));
                return Ok(None);
            }
        }
        let Some(proposer) = &mut self.proposer else {
            return Ok(Some(0));
        };
        let Some(kind) = proposer.find(&self.history) else {
            return Ok(Some(0));
        };
        let count = self.lengths.choose(kind, most);
        if count > 0 {
            proposer.propose(&self.history, count, cancel, &mut self.proposals)?;
            self.proposals.truncate(count);
        }
        let mut rows = self.proposals.len();
        if let Some(guide) = &mut self.guide {
            let tokens: Vec<_> = self
                .proposals
                .iter()
                .map(|proposal| proposal.token)
                .collect();
            rows = guide.allowed(&tokens)?;
            // A drawn proposal that the constraint does not allow is still rejected by sampling, so that its
            // replacement keeps the distribution of plain decode. It needs no row.
            let drawn = usize::from(
                self.proposals
                    .get(rows)
                    .is_some_and(|proposal| proposal.drawn_from.is_some()),
            );
            self.proposals.truncate(rows + drawn);
        }
        self.rows
            .extend(self.proposals[..rows].iter().map(|proposal| proposal.token));
        Ok(Some(kind))
    }
}

/// Returns a token of the distribution that follows `logits`, which is the proposal as often as possible (Leviathan et
/// al., "Fast Inference from Transformers via Speculative Decoding", §2.3). Returns `None` if a token must be sampled
/// as usual: if no other token could have been proposed, this is the proposal equally often, and the random numbers are
/// those of plain decode.
pub(super) fn verify(
    proposal: &Proposal,
    sampler: &mut Sampler,
    logits: &[f32],
    seen: &[u32],
) -> Option<u32> {
    let drawn_from = proposal.drawn_from.as_ref()?;
    let distribution = sampler.distribution(logits, seen);
    let (wanted, proposed) = (
        distribution.probability(proposal.token),
        drawn_from.probability(proposal.token),
    );
    if sampler.unit() * proposed < wanted {
        return Some(proposal.token);
    }
    let residual = distribution.residual(drawn_from);
    Some(sampler.draw_from(residual.as_ref().unwrap_or(&distribution)))
}

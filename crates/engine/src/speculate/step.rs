//! One decode step: propose, run, verify.

use std::time::Instant;

use super::lengths::Lengths;
use super::lookup::{Lookup, LookupProposer};
use super::mtp::MtpProposer;
use super::{Proposal, Propose, Source, Speculate, Speculation};
use crate::cancel::Cancel;
use crate::constraint::{Allowed, ConstraintUse, Guide};
use crate::error::{Error, Result};
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Session;

/// Runs the decode steps of one answer.
pub(crate) struct Speculator {
    /// Empty: one token per step.
    sources: Vec<ProposalSource>,
    /// The constraint of the answer, if there is one.
    guide: Option<Guide>,
    /// The tokens that the session holds; during a step, also the token that it runs first.
    history: Vec<u32>,
    proposals: Vec<Proposal>,
    rows: Vec<u32>,
    chosen: Vec<u32>,
    /// The rows of the latest step.
    latest: StepRows,
    statistics: Speculation,
    plain_steps: usize,
}

/// A source of proposals, and how many of them pay.
struct ProposalSource {
    proposer: Box<dyn Propose>,
    lengths: Lengths,
    is_mtp: bool,
}

/// The origin of the rows of a step.
#[derive(Clone, Copy, PartialEq)]
enum StepRows {
    /// Only one row, or the constraint forced the others.
    Plain { is_forced: bool },
    /// The source with this index proposed them, and their kind.
    Proposed { source: usize, kind: usize },
}

impl Speculator {
    /// Creates a speculator for an answer of `session` with the options of `sampler`.
    ///
    /// # Errors
    /// If an option is out of range, a draft model has other tokens, or the head of a model is asked for that has none.
    pub(crate) fn new(
        options: Option<&Speculate>,
        session: &mut Session,
        sampler: &SamplerOptions,
    ) -> Result<Self> {
        let Some(options) = options else {
            return Ok(Self::of(Vec::new()));
        };
        options.check()?;
        let lookup = |lookup| (Box::new(LookupProposer::new(lookup)) as _, false);
        let mut proposers: Vec<(Box<dyn Propose>, bool)> = Vec::new();
        match &options.source {
            Source::Lookup(options) => proposers.push(lookup(*options)),
            Source::Draft(draft) => {
                let proposer = draft.proposer(session.model(), session.salt(), sampler)?;
                proposers.push((Box::new(proposer), false));
            }
            Source::Mtp | Source::Automatic => match session.lead_mtp() {
                Ok(head) => {
                    proposers.push((
                        Box::new(MtpProposer::new(head, session.engine(), sampler)?),
                        true,
                    ));
                }
                Err(reason) if matches!(options.source, Source::Mtp) => {
                    return Err(Error::NoHead(reason));
                }
                Err(_) => {}
            },
        }
        if matches!(options.source, Source::Automatic) {
            proposers.push(lookup(Lookup::default()));
        }
        let lengths = if options.is_fixed {
            Lengths::fixed(options.most)
        } else {
            Lengths::measured(options.most)
        };
        let source = |(proposer, is_mtp)| ProposalSource {
            proposer,
            lengths: lengths.clone(),
            is_mtp,
        };
        Ok(Self::of(proposers.into_iter().map(source).collect()))
    }

    #[cfg(test)]
    pub(super) fn with(proposer: Option<Box<dyn Propose>>, lengths: Lengths) -> Self {
        let source = proposer.map(|proposer| ProposalSource {
            proposer,
            lengths,
            is_mtp: false,
        });
        Self::of(source.into_iter().collect())
    }

    fn of(sources: Vec<ProposalSource>) -> Self {
        Self {
            sources,
            guide: None,
            history: Vec::new(),
            proposals: Vec::new(),
            rows: Vec::new(),
            chosen: Vec::new(),
            latest: StepRows::Plain { is_forced: false },
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
        self.history.clear();
        self.history.extend_from_slice(prompt);
        self.sources
            .iter_mut()
            .try_for_each(|source| source.proposer.begin(prompt, cancel))
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
        let (mut start, before) = (Instant::now(), session.tokens().len());
        self.rows.clear();
        self.rows.push(token);
        let latest = self.propose(token, most, &mut start, cancel)?;
        if let Err(error) = self.run(session, sampler, before, cancel) {
            session.truncate(before + 1);
            return Err(error);
        }
        let (rows, accepted) = (self.rows.len() - 1, self.chosen.len() - 1);
        session.forget_rows(rows - accepted);
        if !self.sources.is_empty() {
            self.history.extend_from_slice(&self.chosen[..accepted]);
        }
        let seconds = start.elapsed().as_secs_f64();
        self.latest = latest;
        let (proposed, statistics) = (self.proposals.len(), &mut self.statistics);
        statistics.steps += 1;
        match latest {
            StepRows::Plain { is_forced: true } => {}
            StepRows::Plain { is_forced: false } => {
                for source in &mut self.sources {
                    source.lengths.observe(0, 0, 0, seconds);
                }
                self.plain_steps += 1;
                statistics.plain_step_seconds +=
                    (seconds - statistics.plain_step_seconds) / self.plain_steps as f64;
            }
            StepRows::Proposed { source, kind } => {
                let source = &mut self.sources[source];
                source.lengths.observe(kind, proposed, accepted, seconds);
                statistics.proposed += proposed;
                statistics.accepted += accepted;
                if source.is_mtp {
                    statistics.mtp_proposed += proposed;
                    statistics.mtp_accepted += accepted;
                }
            }
        }
        Ok(&self.chosen)
    }

    /// Removes the end of the latest step: the answer ended with a token that has `remaining` chosen tokens after it. The
    /// session holds all but the last of those; it drops them and the answer's last token.
    pub(crate) fn end(&mut self, session: &mut Session, remaining: usize) {
        session.forget_rows(remaining);
        if let StepRows::Proposed { source, .. } = self.latest {
            let dropped = remaining.saturating_sub(1);
            self.statistics.accepted -= dropped;
            if self.sources[source].is_mtp {
                self.statistics.mtp_accepted -= dropped;
            }
        }
    }

    /// Returns counts and times of the constraint; `None` if there is none.
    pub(crate) fn constraint_use(&self) -> Option<ConstraintUse> {
        self.guide.as_ref().map(Guide::statistics)
    }

    /// Returns the counts of proposals; `None` if there is no source of proposals.
    pub(crate) fn statistics(&self) -> Option<Speculation> {
        (!self.sources.is_empty()).then_some(self.statistics)
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

    /// Fills the proposals of what follows `token`, and the rows after it. Returns their origin. Moves the `start` of the
    /// step by the time that proposals need only once.
    fn propose(
        &mut self,
        token: u32,
        most: usize,
        start: &mut Instant,
        cancel: &Cancel,
    ) -> Result<StepRows> {
        self.proposals.clear();
        if !self.sources.is_empty() {
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
                return Ok(StepRows::Plain { is_forced: true });
            }
        }
        let plain = Ok(StepRows::Plain { is_forced: false });
        let Some((source, kind, count)) = self.choose(most) else {
            return plain;
        };
        let proposer = &mut self.sources[source].proposer;
        let before = Instant::now();
        proposer.catch_up(&self.history, cancel)?;
        *start += before.elapsed();
        proposer.propose(&self.history, count, cancel, &mut self.proposals)?;
        self.proposals.truncate(count);
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
        if self.proposals.is_empty() {
            return plain;
        }
        Ok(StepRows::Proposed { source, kind })
    }

    /// Returns the source with the most expected tokens per second, the kind of its proposals and their number; `None` if
    /// none pays.
    fn choose(&mut self, most: usize) -> Option<(usize, usize, usize)> {
        let mut best: Option<(f64, (usize, usize, usize))> = None;
        for (index, source) in self.sources.iter_mut().enumerate() {
            let Some(kind) = source.proposer.find(&self.history) else {
                continue;
            };
            let count = source.lengths.choose(kind, most);
            let rate = source.lengths.rate(kind, count);
            if count > 0 && best.is_none_or(|(other, _)| rate > other) {
                best = Some((rate, (index, kind, count)));
            }
        }
        best.map(|(_, chosen)| chosen)
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

//! One step of decode: propose, run, verify.

use std::time::Instant;

use super::lengths::Lengths;
use super::lookup::LookupProposer;
use super::{Proposal, Propose, Source, Speculate, Speculation};
use crate::cancel::Cancel;
use crate::constraint::{Allowed, ConstraintUse, Guide};
use crate::error::{Error, Result};
use crate::execute::Session;
use crate::sampler::{Sampler, SamplerOptions};

/// Takes the steps of one answer.
pub(crate) struct Speculator {
    /// `None`: one token a step.
    proposer: Option<Box<dyn Propose>>,
    /// Keeps the answer in its form, if it has to have one.
    guide: Option<Guide>,
    lengths: Lengths,
    /// What the session has seen, and in a step the token that it runs first.
    history: Vec<u32>,
    proposals: Vec<Proposal>,
    rows: Vec<u32>,
    chosen: Vec<u32>,
    /// The rows of the latest step were what had to follow, and no proposals.
    is_forced: bool,
    statistics: Speculation,
    plain_steps: usize,
}

impl Speculator {
    /// For an answer of `session` by `sampler`.
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

    /// The answer is to be kept in a form.
    pub(crate) fn guide(&mut self, guide: Guide) {
        self.guide = Some(guide);
    }

    /// Whether the answer is complete: nothing may follow.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.guide.as_mut().is_some_and(Guide::is_complete)
    }

    /// Takes the tokens of a session whose prompt is through.
    ///
    /// # Errors
    /// If what proposes cannot run them, or `cancel` is set.
    pub(crate) fn begin(&mut self, prompt: &[u32], cancel: &Cancel) -> Result<()> {
        let Some(proposer) = &mut self.proposer else {
            return Ok(());
        };
        self.history.clear();
        self.history.extend_from_slice(prompt);
        proposer.begin(prompt, cancel)
    }

    /// The token that `sampler` chooses behind the prompt; `None` if the answer is to be empty.
    ///
    /// # Errors
    /// If the answer cannot be kept in its form.
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

    /// Runs `token` and at most `most` proposals behind it; the tokens that `sampler` chooses behind `token`, one or more.
    /// The session has then seen all of them but the last.
    ///
    /// # Errors
    /// As [`Session::decode_each`]; if the answer cannot be kept in its form. The session has then seen nothing more, or `token`.
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

    /// The answer has ended with a token of the latest step that has `behind` others behind it. The session has seen
    /// all but the last of them; it forgets these and the answer's last token.
    pub(crate) fn end(&mut self, session: &mut Session, behind: usize) {
        session.forget_rows(behind);
        if !self.is_forced {
            self.statistics.accepted -= behind.saturating_sub(1);
        }
    }

    /// What keeping the answer's form took; `None` if it has none.
    pub(crate) fn constraint_use(&self) -> Option<ConstraintUse> {
        self.guide.as_ref().map(Guide::statistics)
    }

    /// What came of proposals; `None` if nothing proposes.
    pub(crate) fn statistics(&self) -> Option<Speculation> {
        self.proposer.as_ref().map(|_| self.statistics)
    }

    /// Runs the rows of a step behind the `before` tokens that the session has seen, and fills what is chosen behind them.
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
                // Behind a proposal that completes the answer: behind the first row, there would have been no step.
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

    /// Fills the proposals of what follows `token`, and the rows behind it; the kind of the proposals, or `None` if the rows
    /// are what must follow.
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
            // One that was drawn and is not allowed is still rejected, so that what is drawn in its place is drawn as
            // often as without proposals; no row has to be computed for it.
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

/// A token of the distribution that follows `logits`, which is the proposal as often as can be (Leviathan et al., "Fast
/// Inference from Transformers via Speculative Decoding", §2.3). `None` if one is to be sampled as always: where nothing
/// else could have been proposed, this is the proposal as often, and the random numbers are those of plain decode.
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

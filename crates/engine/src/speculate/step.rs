//! One step of decode: propose, run, verify.

use std::time::Instant;

use super::lengths::Lengths;
use super::lookup::LookupProposer;
use super::{Proposal, Propose, Source, Speculate, Speculation};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::execute::Session;
use crate::sampler::{Sampler, SamplerOptions};

/// Takes the steps of one answer.
pub(crate) struct Speculator {
    /// `None`: one token a step.
    proposer: Option<Box<dyn Propose>>,
    lengths: Lengths,
    /// What the session has seen, and in a step the token that it runs first.
    history: Vec<u32>,
    proposals: Vec<Proposal>,
    rows: Vec<u32>,
    chosen: Vec<u32>,
    statistics: Speculation,
    plain_steps: usize,
}

impl Speculator {
    /// For an answer of `session` by `sampler`.
    ///
    /// # Errors
    /// If an option is out of range, or a draft model has other tokens.
    pub(crate) fn new(options: Option<&Speculate>, session: &Session, sampler: &SamplerOptions) -> Result<Self> {
        let Some(options) = options else { return Ok(Self::with(None, Lengths::fixed(0))) };
        options.check()?;
        let proposer: Box<dyn Propose> = match &options.source {
            Source::Lookup(lookup) => Box::new(LookupProposer::new(*lookup)),
            Source::Draft(draft) => Box::new(draft.proposer(session.model(), sampler)?),
        };
        let lengths = if options.is_fixed { Lengths::fixed(options.most) } else { Lengths::measured(options.most) };
        Ok(Self::with(Some(proposer), lengths))
    }

    pub(super) fn with(proposer: Option<Box<dyn Propose>>, lengths: Lengths) -> Self {
        Self {
            proposer,
            lengths,
            history: Vec::new(),
            proposals: Vec::new(),
            rows: Vec::new(),
            chosen: Vec::new(),
            statistics: Speculation::default(),
            plain_steps: 0,
        }
    }

    /// Takes the tokens of a session whose prompt is through.
    ///
    /// # Errors
    /// If what proposes cannot run them, or `cancel` is set.
    pub(crate) fn begin(&mut self, prompt: &[u32], cancel: &Cancel) -> Result<()> {
        let Some(proposer) = &mut self.proposer else { return Ok(()) };
        self.history.clear();
        self.history.extend_from_slice(prompt);
        proposer.begin(prompt, cancel)
    }

    /// Runs `token` and at most `most` proposals behind it; the tokens that `sampler` chooses behind `token`, one or more.
    /// The session has then seen all of them but the last.
    ///
    /// # Errors
    /// As [`Session::decode_each`]. The session has then seen nothing more, or `token`.
    pub(crate) fn step(
        &mut self,
        session: &mut Session,
        sampler: &mut Sampler,
        token: u32,
        most: usize,
        cancel: &Cancel,
    ) -> Result<&[u32]> {
        let (start, before) = (Instant::now(), session.tokens().len());
        let kind = self.propose(token, most, cancel)?;
        self.rows.clear();
        self.rows.push(token);
        self.rows.extend(self.proposals.iter().map(|proposal| proposal.token));
        if let Err(error) = session.decode_each(&self.rows, cancel) {
            session.truncate(before + 1);
            return Err(error);
        }
        self.chosen.clear();
        let vocab = session.model().description().vocab;
        for (row, logits) in session.logits_of_rows().chunks_exact(vocab).enumerate() {
            let seen = &session.tokens()[..=before + row];
            let proposal = self.proposals.get(row);
            let chosen = proposal.and_then(|proposal| verify(proposal, sampler, logits, seen));
            let chosen = chosen.unwrap_or_else(|| sampler.sample(logits, seen));
            self.chosen.push(chosen);
            if proposal.is_none_or(|proposal| proposal.token != chosen) {
                break;
            }
        }
        let (proposed, accepted) = (self.proposals.len(), self.chosen.len() - 1);
        session.forget_rows(proposed - accepted);
        if self.proposer.is_some() {
            self.history.extend_from_slice(&self.chosen[..accepted]);
        }
        let seconds = start.elapsed().as_secs_f64();
        self.lengths.observe(kind, proposed, accepted, seconds);
        let statistics = &mut self.statistics;
        statistics.steps += 1;
        statistics.proposed += proposed;
        statistics.accepted += accepted;
        if proposed == 0 {
            self.plain_steps += 1;
            statistics.plain_step_seconds += (seconds - statistics.plain_step_seconds) / self.plain_steps as f64;
        }
        Ok(&self.chosen)
    }

    /// The answer has ended with a token of the latest step that has `behind` others behind it. The session has seen
    /// all but the last of them; it forgets these and the answer's last token.
    pub(crate) fn end(&mut self, session: &mut Session, behind: usize) {
        session.forget_rows(behind);
        self.statistics.accepted -= behind.saturating_sub(1);
    }

    /// What came of proposals; `None` if nothing proposes.
    pub(crate) fn statistics(&self) -> Option<Speculation> {
        self.proposer.as_ref().map(|_| self.statistics)
    }

    /// Fills the proposals of what follows `token`; their kind.
    fn propose(&mut self, token: u32, most: usize, cancel: &Cancel) -> Result<usize> {
        self.proposals.clear();
        let Some(proposer) = &mut self.proposer else { return Ok(0) };
        self.history.push(token);
        let Some(kind) = proposer.find(&self.history) else { return Ok(0) };
        let count = self.lengths.choose(kind, most);
        if count > 0 {
            proposer.propose(&self.history, count, cancel, &mut self.proposals)?;
            self.proposals.truncate(count);
        }
        Ok(kind)
    }
}

/// A token of the distribution that follows `logits`, which is the proposal as often as can be (Leviathan et al., "Fast
/// Inference from Transformers via Speculative Decoding", §2.3). `None` if one is to be sampled as always: where nothing
/// else could have been proposed, this is the proposal as often, and the random numbers are those of plain decode.
pub(super) fn verify(proposal: &Proposal, sampler: &mut Sampler, logits: &[f32], seen: &[u32]) -> Option<u32> {
    let drawn_from = proposal.drawn_from.as_ref()?;
    let distribution = sampler.distribution(logits, seen);
    let (wanted, proposed) = (distribution.probability(proposal.token), drawn_from.probability(proposal.token));
    if sampler.unit() * proposed < wanted {
        return Some(proposal.token);
    }
    let residual = distribution.residual(drawn_from);
    Some(sampler.draw_from(residual.as_ref().unwrap_or(&distribution)))
}

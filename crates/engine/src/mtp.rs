//! The head of a model that predicts one more token ([`Mtp`](triad_model::description::Mtp)) as it follows a session.
//!
//! The head is a model of one block with a session of its own. Its row for a position has the hidden state of the model
//! there and the embedding of the token after it, so it is run once that token is known. Until then the states wait.
//!
//! The head only proposes tokens. So rows may be missing without a wrong answer: those of prefixes that were computed for
//! other sessions, of restored sessions, and of the beginning of long prompts.

use std::sync::{Arc, Mutex};

use triad_kernels::Phase;

use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{NoHead, Result};
use crate::pictures::is_of_picture;
use crate::session::{Follower, PROMPT_ROWS, Session, WAITING_ROWS};

/// Rows that are run as a prompt. Fewer of them are a decode step.
const PREFILLED: usize = 16;

/// The head of a model for one session of the model.
pub(crate) struct MtpSession {
    session: Session,
    /// The positions of the rows that the session holds, ascending.
    positions: Vec<usize>,
    /// The position of the first state that waits.
    first: usize,
    /// The states that wait, `[rows, hidden]`, of consecutive positions.
    waiting: Vec<f32>,
    hidden: usize,
}

impl MtpSession {
    /// Returns the head of `engine` before any token.
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            session: engine.session(),
            positions: Vec::new(),
            first: 0,
            waiting: Vec::new(),
            hidden: engine.model().description().hidden,
        }
    }

    /// Returns the position after the last state.
    fn end(&self) -> usize {
        self.first + self.waiting.len() / self.hidden
    }

    fn run(&mut self, rows: usize, tokens: &[u32], cancel: &Cancel) -> Result<()> {
        let next = &tokens[self.first + 1..self.first + 1 + rows];
        // The head reads no pictures.
        let picture = next.iter().rposition(|token| is_of_picture(*token));
        let skipped = picture.map_or(0, |last| last + 1);
        self.waiting.drain(..skipped * self.hidden);
        self.first += skipped;
        let (next, rows) = (&next[skipped..], rows - skipped);
        if rows == 0 {
            return Ok(());
        }
        let phase = match rows < PREFILLED {
            true => Phase::Decode,
            false => Phase::Prefill,
        };
        let states = self.waiting.drain(..rows * self.hidden).collect();
        let first = self.first;
        self.first += rows;
        let result = self.session.run_joined(next, states, phase, cancel);
        let held = self.session.tokens().len() - self.positions.len();
        self.positions.extend(first..first + held);
        result
    }
}

impl Session {
    /// Returns why no head that predicts one more token can follow the session, or `None` if one can.
    pub fn no_head(&self) -> Option<NoHead> {
        self.engine().no_head()
    }

    /// Lets the head of the model follow the session from now on, and returns it.
    ///
    /// # Errors
    /// The reason why none can.
    pub(crate) fn lead_mtp(&mut self) -> Result<Arc<Mutex<dyn Follower>>, NoHead> {
        if let Some(reason) = self.no_head() {
            return Err(reason);
        }
        let engine = self.engine().shared().mtp().ok_or(NoHead::OfModel)?.clone();
        Ok(self.followed_by(|| Arc::new(Mutex::new(MtpSession::new(&engine)))))
    }
}

impl Follower for MtpSession {
    fn fork(&self) -> Arc<Mutex<dyn Follower>> {
        Arc::new(Mutex::new(Self {
            session: self.session.fork(),
            positions: self.positions.clone(),
            first: self.first,
            waiting: self.waiting.clone(),
            hidden: self.hidden,
        }))
    }

    fn follow(&mut self, position: usize, states: &[f32]) {
        let (held, added) = (self.waiting.len(), states.len());
        if self.end() != position || held + added > WAITING_ROWS * self.hidden {
            // An answer without proposals keeps the latest states only.
            let kept = match self.end() == position {
                true => held.min(PROMPT_ROWS * self.hidden),
                false => 0,
            };
            self.waiting.drain(..self.waiting.len() - kept);
            self.first = position - kept / self.hidden;
        }
        self.waiting.extend_from_slice(states);
    }

    fn truncate(&mut self, length: usize) {
        let kept = self.positions.partition_point(|it| it + 1 < length);
        if kept < self.positions.len() {
            self.positions.truncate(kept);
            self.session.truncate(kept);
        }
        let kept = length.saturating_sub(self.first) * self.hidden;
        self.waiting.truncate(kept);
    }

    fn is_ready(&self, tokens: usize) -> bool {
        !self.waiting.is_empty() && self.end() + 1 == tokens
    }

    fn room(&self) -> usize {
        let rows = self.positions.len() + self.waiting.len() / self.hidden;
        (self.session.context() + 1).saturating_sub(rows)
    }

    fn catch_up(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<()> {
        let known = tokens.len().saturating_sub(1).min(self.end());
        let rows = known.saturating_sub(self.first);
        if rows < PREFILLED {
            return Ok(());
        }
        self.run(rows, tokens, cancel)
    }

    fn predict(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<()> {
        let rows = self.waiting.len() / self.hidden;
        self.run(rows, tokens, cancel)
    }

    fn predict_after(&mut self, token: u32, cancel: &Cancel) -> Result<()> {
        let state = self.session.take_states();
        self.session
            .run_joined(&[token], state, Phase::Decode, cancel)
    }

    fn undo(&mut self) {
        self.session.truncate(self.positions.len());
    }

    fn logits(&self) -> &[f32] {
        self.session.logits()
    }
}

//! Sessions and the heads that predict one more token: a session that a head follows, and the session of a head.

use std::sync::{Arc, Mutex};

use triad_kernels::{Phase, lock};

use super::{Follower, PROMPT_ROWS, Session};
use crate::batch::{LogitsMode, RequestStates};
use crate::cancel::Cancel;
use crate::error::{NoHead, Result};
use crate::mtp::MtpSession;

impl Session {
    /// Returns why no head that predicts one more token can follow the session, or `None` if one can.
    pub fn no_head(&self) -> Option<NoHead> {
        if self.model().mtp().is_none() {
            return Some(NoHead::OfModel);
        }
        let gives_states = self.engine.executor().gives_states();
        (!gives_states).then_some(NoHead::OfProcessors)
    }

    /// Lets the head of the model follow the session from now on, and returns it.
    ///
    /// # Errors
    /// The reason why none can.
    pub(crate) fn lead_mtp(&mut self) -> Result<Arc<Mutex<dyn Follower>>, NoHead> {
        if let Some(reason) = self.no_head() {
            return Err(reason);
        }
        let engine = self.engine.shared().mtp().ok_or(NoHead::OfModel)?;
        let new = || Arc::new(Mutex::new(MtpSession::new(engine))) as _;
        Ok(Arc::clone(self.mtp.get_or_insert_with(new)))
    }

    /// Returns the states that a request of `tokens` tokens gives.
    pub(super) fn wanted_states(&self, tokens: usize) -> RequestStates {
        RequestStates {
            given: Vec::new(),
            kept: match self.mtp {
                Some(_) => tokens.min(PROMPT_ROWS),
                None => 0,
            },
        }
    }

    /// Takes over the states of the last `rows` tokens.
    pub(super) fn keep_states(&mut self, rows: usize, states: Vec<f32>) {
        match &self.mtp {
            Some(_) if rows == 0 => {}
            Some(head) => lock(head).follow(self.tokens.len() - rows, &states),
            None => self.states = states,
        }
    }

    /// Returns the state of the last row of the latest request, in the session of a head.
    pub(crate) fn take_states(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.states)
    }

    /// Runs tokens with the hidden states that the model of this session reads, `given[tokens, hidden]`. Afterwards, it
    /// has the logits and the [state](Self::take_states) of the last of them.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub(crate) fn run_joined(
        &mut self,
        tokens: &[u32],
        given: Vec<f32>,
        phase: Phase,
        cancel: &Cancel,
    ) -> Result<()> {
        let states = RequestStates { given, kept: 1 };
        let what = (phase, LogitsMode::Last);
        self.run_with(tokens, what, states, cancel, &mut |_| {})
    }
}

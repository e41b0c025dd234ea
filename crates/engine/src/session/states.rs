//! Hidden states of sessions: for the head that follows a session, and in the session of a head.

use std::sync::{Arc, Mutex};

use triad_kernels::{Phase, lock};

use super::{Follower, PROMPT_ROWS, Session};
use crate::batch::{LogitsMode, RequestStates};
use crate::cancel::Cancel;
use crate::error::Result;

impl Session {
    /// Returns what follows the session from now on: `new` if nothing did so far.
    pub(crate) fn followed_by(
        &mut self,
        new: impl FnOnce() -> Arc<Mutex<dyn Follower>>,
    ) -> Arc<Mutex<dyn Follower>> {
        Arc::clone(self.follower.get_or_insert_with(new))
    }

    /// Returns the states that a request of `tokens` tokens gives.
    pub(super) fn wanted_states(&self, tokens: usize) -> RequestStates {
        RequestStates {
            given: Vec::new(),
            kept: match self.follower {
                Some(_) => tokens.min(PROMPT_ROWS),
                None => 0,
            },
        }
    }

    /// Takes over the states of the last `rows` tokens.
    pub(super) fn keep_states(&mut self, rows: usize, states: Vec<f32>) {
        match &self.follower {
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

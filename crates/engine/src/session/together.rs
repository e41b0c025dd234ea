//! Steps of several sessions at once.

use std::sync::Arc;

use triad_kernels::Phase;

use super::Session;
use crate::batch::LogitsMode;
use crate::cancel::Cancel;
use crate::error::Result;

impl Session {
    /// Runs some tokens of an answer in each of several sessions of one engine, in a single step if they fit.
    /// Afterwards each session has its [`logits`](Session::logits).
    ///
    /// # Errors
    /// The first error of any session, as [`Session::prefill`]; the others may have succeeded.
    pub fn decode_together<'a>(
        sessions: impl IntoIterator<Item = (&'a mut Self, &'a [u32])>,
        cancel: &Cancel,
    ) -> Result<()> {
        let sessions: Vec<_> = sessions.into_iter().collect();
        // No session begins before all are checked.
        for (session, tokens) in &sessions {
            session.check_tokens(tokens, Phase::Decode)?;
            session.reserve(tokens.len())?;
        }
        let begin = |(session, tokens): (&'a mut Self, &'a [u32])| {
            let states = session.wanted_states(tokens.len());
            let what = (Phase::Decode, LogitsMode::All);
            let request = session.begin(tokens, what, states, cancel)?;
            Ok((session, request))
        };
        let begun: Vec<_> = sessions.into_iter().map(begin).collect::<Result<_>>()?;
        let Some((first, _)) = begun.first() else {
            return Ok(());
        };
        let engine = first.engine.clone();
        let requests: Vec<_> = begun
            .iter()
            .map(|(_, request)| Arc::clone(request))
            .collect();
        engine.shared().scheduler.submit(&requests);
        let ends = begun
            .into_iter()
            .map(|(session, request)| session.end(&request, cancel, &mut |_| {}));
        // Collects all results before the first error.
        ends.collect::<Vec<_>>().into_iter().collect()
    }
}

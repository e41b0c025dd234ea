//! A smaller model that proposes tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Proposal, Propose};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::kv::PrefixSalt;
use crate::model::Model;
use crate::pictures::is_of_picture;
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Session;

/// The number of missing tokens from which the draft model runs them as a prefill.
const PREFILLED: usize = 16;
/// Makes the random numbers differ from those of the model that the draft proposes for.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A smaller model with the same tokens, and its session. Clones share both: a conversation has one draft, and its next
/// answer computes nothing again.
#[derive(Clone)]
pub struct Draft {
    session: Arc<Mutex<Session>>,
    /// The model that the draft's tokens were compared with.
    model: Arc<Model>,
    is_sampled: bool,
}

impl Draft {
    /// Creates a draft that proposes to `model` the likeliest tokens of the session's model.
    ///
    /// # Errors
    /// If the two models do not have the same tokens.
    pub fn new(session: Session, model: &Arc<Model>) -> Result<Self> {
        check(session.model(), model)?;
        Ok(Self {
            session: Arc::new(Mutex::new(session)),
            model: Arc::clone(model),
            is_sampled: false,
        })
    }

    /// Draws proposals from a distribution, as the answer is. More of them are accepted at high temperatures, but the
    /// answer of a seed then depends on the number of proposals per step.
    #[must_use]
    pub fn sampled(self) -> Self {
        Self {
            is_sampled: true,
            ..self
        }
    }

    /// Creates a proposer for a session of `model` with this salt.
    pub(super) fn proposer(
        &self,
        model: &Arc<Model>,
        salt: PrefixSalt,
        options: &SamplerOptions,
    ) -> Result<DraftProposer> {
        if !Arc::ptr_eq(&self.model, model) {
            check(self.session().model(), model)?;
        }
        let temperature = if self.is_sampled {
            options.temperature
        } else {
            0.0
        };
        let sampler = Sampler::new(&SamplerOptions {
            temperature,
            seed: options.seed ^ SEED,
            ..options.clone()
        })?;
        Ok(DraftProposer {
            draft: self.clone(),
            salt,
            sampler,
            is_sampled: temperature > 0.0,
            has_pictures: false,
        })
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Draft")
            .field("is_sampled", &self.is_sampled)
            .finish_non_exhaustive()
    }
}

/// Checks that each token means the same in both models.
fn check(draft: &Model, model: &Model) -> Result<()> {
    let differ = |found, expected| Err(Error::Draft { found, expected });
    let (found, expected) = (draft.description().vocab, model.description().vocab);
    if found != expected {
        return differ(
            format!("a vocabulary of {found} tokens"),
            format!("one of {expected}"),
        );
    }
    let (found, expected) = (draft.tokenizer()?, model.tokenizer()?);
    let most = found.vocab_size().max(expected.vocab_size()) as u32;
    match (0..most).find(|token| found.piece(*token) != expected.piece(*token)) {
        Some(token) => differ(
            format!(
                "{:?} as token {token}",
                found.piece(token).unwrap_or_default()
            ),
            format!("{:?}", expected.piece(token).unwrap_or_default()),
        ),
        None => Ok(()),
    }
}

/// A draft model for one answer.
pub(super) struct DraftProposer {
    draft: Draft,
    /// The salt of the answer: the draft's session holds no prompt with another salt.
    salt: PrefixSalt,
    sampler: Sampler,
    is_sampled: bool,
    /// Whether the prompt has rows of pictures, which the draft model does not read: it then proposes nothing.
    has_pictures: bool,
}

/// Runs the `tokens` that `session` does not hold yet, so that its logits are those that follow `tokens`.
fn catch_up(session: &mut Session, tokens: &[u32], cancel: &Cancel) -> Result<()> {
    let held = session.reuse(tokens);
    let missing = &tokens[held..];
    if missing.len() < PREFILLED {
        session.decode_each(missing, cancel)?;
    } else {
        session.prefill(missing, cancel, |_| {})?;
    }
    Ok(())
}

impl Propose for DraftProposer {
    fn begin(&mut self, prompt: &[u32], cancel: &Cancel) -> Result<()> {
        self.sampler.begin_answer(prompt.len());
        let mut session = self.draft.session();
        session.set_salt(self.salt);
        self.has_pictures = prompt.iter().any(|token| is_of_picture(*token));
        if prompt.len() <= session.context() && !self.has_pictures {
            catch_up(&mut session, prompt, cancel)
        } else {
            Ok(())
        }
    }

    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        (!self.has_pictures && tokens.len() <= self.draft.session().context()).then_some(0)
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        cancel: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        let mut session = self
            .draft
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        catch_up(&mut session, tokens, cancel)?;
        // The last proposal is not run through the draft model.
        for left in (0..count.min(session.context() - tokens.len() + 1)).rev() {
            let (logits, seen) = (session.logits(), session.tokens());
            let (token, drawn_from) = if self.is_sampled {
                let distribution = self.sampler.distribution(logits, seen);
                (self.sampler.draw_from(&distribution), Some(distribution))
            } else {
                (self.sampler.sample(logits, seen), None)
            };
            proposals.push(Proposal { token, drawn_from });
            if left > 0 {
                session.decode(token, cancel)?;
            }
        }
        Ok(())
    }
}

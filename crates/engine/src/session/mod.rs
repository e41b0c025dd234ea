//! Sessions: one conversation with a model, with its tokens and its part of the KV cache.

mod follower;
mod phases;
mod pictures;
mod prompt_run;
mod resume;
mod saved;
mod states;
mod together;

use std::sync::{Arc, Mutex};

use triad_kernels::{Phase, lock};

use crate::adapter::Adapters;
use crate::batch::{LogitsMode, Outcome, Report, Request, RequestStates, SequenceId};
use crate::cancel::Cancel;
use crate::engine::{Engine, EngineOptions, SessionOptions};
use crate::error::{Error, Result};
use crate::forward::Buffers;
use crate::kv::{KvCache, PrefixSalt};
use crate::model::Model;
use crate::pictures::Held;
pub(crate) use follower::{Follower, PROMPT_ROWS, WAITING_ROWS};
use phases::Phases;

/// A sequence of tokens that an [`Engine`] computes: the tokens so far, and their keys and values.
///
/// Sessions of one engine may run concurrently, each from its own thread; their results do not depend on each other.
pub struct Session {
    engine: Engine,
    id: SequenceId,
    cache: Arc<KvCache>,
    tokens: Vec<u32>,
    /// How the tokens were computed: other sessions may reuse the leading ones that were computed as a prompt.
    phases: Phases,
    /// The logits of the latest request, `[rows, vocab]`.
    logits: Vec<f32>,
    /// The reports on the batches of the latest prompt.
    reports: Vec<Report>,
    /// The buffers of what runs on the model's threads alone.
    buffers: Option<Box<Buffers>>,
    /// Whether other sessions may find its prefixes.
    is_shared: bool,
    /// The pictures that its tokens may be rows of.
    pictures: Held,
    /// The head that follows it, if one does.
    follower: Option<Arc<Mutex<dyn Follower>>>,
    /// The hidden states of the last row of the latest request, in the session of a head.
    states: Vec<f32>,
}

impl Session {
    /// Returns an empty session of its own engine, on the model's threads.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(model: &Arc<Model>, options: &SessionOptions) -> Result<Self> {
        Ok(Engine::new(
            model,
            &EngineOptions {
                session: options.clone(),
                ..EngineOptions::default()
            },
        )?
        .session())
    }

    /// Returns an empty session of `engine`.
    pub(crate) fn empty(engine: &Engine) -> Self {
        let shared = engine.shared();
        Self {
            engine: engine.clone(),
            id: shared.next_sequence(),
            cache: Arc::new(KvCache::new(&shared.memory, Adapters::default())),
            tokens: Vec::with_capacity(shared.settings.context),
            phases: Phases::default(),
            logits: vec![0.0; shared.model().description().vocab],
            reports: Vec::new(),
            buffers: None,
            is_shared: false,
            pictures: Held::default(),
            follower: None,
            states: Vec::new(),
        }
    }

    /// Replaces the session's LoRA adapters; other sessions of the engine may have others. Forgets all tokens, unless
    /// the adapters are the same.
    ///
    /// The products of adapters are computed in float on the CPU threads of the processors. Where a device runs whole
    /// feed-forwards or the whole model, those threads compute the sessions with adapters instead.
    ///
    /// # Errors
    /// If an adapter was opened for another model.
    pub fn set_adapters(&mut self, adapters: &Adapters) -> Result<()> {
        adapters.check(self.model().description())?;
        if adapters != self.adapters() {
            self.restart(adapters.clone(), self.salt());
        }
        Ok(())
    }

    /// Replaces the salt: the session [reuses](Session::reuse) the prefixes of sessions with the same salt, and only
    /// these find its own. Forgets all tokens, unless the salt is the same.
    pub fn set_salt(&mut self, salt: PrefixSalt) {
        if salt != self.salt() {
            self.restart(self.adapters().clone(), salt);
        }
    }

    /// Returns the salt of its prefixes.
    pub fn salt(&self) -> PrefixSalt {
        self.cache.salt()
    }

    /// Forgets all tokens, and continues with these adapters and this salt.
    fn restart(&mut self, adapters: Adapters, salt: PrefixSalt) {
        self.share_prompt();
        self.renew();
        self.cache.truncate(0);
        self.cache = Arc::new(KvCache::new(&self.engine.shared().memory, adapters).with_salt(salt));
        self.truncate(0);
    }

    /// Returns its adapters.
    pub fn adapters(&self) -> &Adapters {
        self.cache.adapters()
    }

    /// Returns another session with the same tokens. They share keys and values until one of them continues.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut fork = Self::empty(&self.engine);
        fork.cache = Arc::new(self.cache.fork());
        // Pages that are reserved for later tokens are not copied: no reservation counts the memory of their copies.
        fork.cache.truncate(self.tokens.len());
        fork.tokens.extend_from_slice(&self.tokens);
        fork.phases = self.phases.clone();
        fork.is_shared = self.is_shared;
        fork.pictures = self.pictures.clone();
        let head = self.follower.as_ref();
        fork.follower = head.map(|head| lock(head).fork());
        fork.states.clone_from(&self.states);
        fork.logits.clone_from(&self.logits);
        fork
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    /// Returns the maximum tokens of the session.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Returns the tokens of prompts that go through the model in one chunk.
    pub fn chunk(&self) -> usize {
        self.engine.shared().settings.chunk
    }

    /// Returns the tokens so far, prompt and answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the logits `[vocab]` that follow the last token of the latest prefill or decode.
    pub fn logits(&self) -> &[f32] {
        &self.logits[self
            .logits
            .len()
            .saturating_sub(self.model().description().vocab)..]
    }

    /// Returns the number of pages of keys and values that it holds, and how many of them others hold, too.
    pub fn pages(&self) -> (usize, usize) {
        self.cache.count()
    }

    /// Returns what the executor recorded of the batches of the latest prompt that are over, as far as it is a `T`: for
    /// example [`LayerTimes`](crate::executor::LayerTimes).
    pub fn reports<T: 'static>(&self) -> impl Iterator<Item = &T> {
        self.reports
            .iter()
            .filter_map(|report| report.get()?.downcast_ref())
    }

    /// Forgets everything after the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.phases.truncate(self.tokens.len());
        self.cache.truncate(self.tokens.len());
        self.pictures.truncate(self.tokens.len());
        if let Some(head) = &self.follower {
            lock(head).truncate(length);
        }
    }

    /// Returns the logits `[rows, vocab]` of the latest request.
    pub(crate) fn logits_of_rows(&self) -> &[f32] {
        &self.logits
    }

    /// Forgets the last `rows` tokens of the latest [`Session::decode_each`], and their logits: [`Session::logits`]
    /// then returns those of the token before them.
    pub(crate) fn forget_rows(&mut self, rows: usize) {
        self.truncate(self.tokens.len() - rows);
        let vocab = self.model().description().vocab;
        self.logits.truncate(self.logits.len() - rows * vocab);
    }

    /// Makes the session hold the longest known prefix of `prompt`, from its own tokens or from those that other
    /// sessions of the engine have [shared](Session::share). Forgets all other tokens. Returns how many tokens need not
    /// be computed; the last one is never among them, since its logits are needed. The session no longer
    /// [holds](Session::hold) pictures that `prompt` does not have.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        self.pictures.retain(prompt);
        let most = self
            .pictures
            .known(prompt)
            .min(prompt.len().saturating_sub(1));
        let common = self
            .tokens
            .iter()
            .zip(&prompt[..most])
            .take_while(|(a, b)| a == b)
            .count();
        self.truncate(common);
        // The keys and values after decoded tokens depend on the arithmetic of decode, and are not shared.
        if self.phases.prefilled() == common {
            let held = self.cache.adopt(common, &prompt[..most]);
            if held > common {
                self.renew();
            }
            self.tokens.extend_from_slice(&prompt[common..held]);
            self.phases.extend(held, Phase::Prefill);
        }
        self.tokens.len()
    }

    /// Lets other sessions of the engine with the same adapters and salt find the prompt of this one: whole pages now,
    /// the last, partial page when the session is dropped.
    pub fn share(&mut self) {
        self.is_shared = true;
        let prefilled = self.phases.prefilled();
        let whole = prefilled - prefilled % triad_kernels::attention::PAGE;
        self.cache.share(&self.tokens[..whole]);
    }

    /// Runs `tokens` after those so far, chunk by chunk, and returns the logits `[vocab]` of the last one. `progress`
    /// is called with the number of finished `tokens` as chunks end, perhaps once for several chunks.
    ///
    /// # Errors
    /// If `tokens` is empty, does not fit, or holds one outside the vocabulary; if there is no memory for keys and
    /// values; if `cancel` is set. The session then still holds the finished chunks.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        cancel: &Cancel,
        mut progress: impl FnMut(usize),
    ) -> Result<&[f32]> {
        self.run(
            tokens,
            (Phase::Prefill, LogitsMode::Last),
            cancel,
            &mut progress,
        )?;
        Ok(&self.logits)
    }

    /// As [`Session::prefill`], but returns the logits `[tokens, vocab]` of every token.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_all_logits(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<Vec<f32>> {
        self.run(
            tokens,
            (Phase::Prefill, LogitsMode::All),
            cancel,
            &mut |_| {},
        )?;
        let last = self.logits().to_vec();
        Ok(std::mem::replace(&mut self.logits, last))
    }

    /// Runs one token of an answer. Returns the logits `[vocab]` that follow it.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32, cancel: &Cancel) -> Result<&[f32]> {
        self.decode_each(&[token], cancel)
    }

    /// Runs several tokens of an answer at once, with the same bits as one [`Session::decode`] after the other. Returns
    /// the logits `[tokens, vocab]` that follow each of them.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode_each(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<&[f32]> {
        self.run(
            tokens,
            (Phase::Decode, LogitsMode::All),
            cancel,
            &mut |_| {},
        )?;
        Ok(&self.logits)
    }

    /// Returns the session's keys and values, with pages for `tokens` more.
    pub(crate) fn reserve(&self, tokens: usize) -> Result<Arc<KvCache>> {
        self.cache
            .reserve(self.tokens.len(), self.tokens.len() + tokens)?;
        Ok(Arc::clone(&self.cache))
    }

    /// Returns the session's keys and values, whose pages are [reserved](Session::reserve).
    pub(crate) fn reserved(&self) -> Arc<KvCache> {
        Arc::clone(&self.cache)
    }

    /// Keeps the states of mixers after the tokens so far, whatever is computed next, or ends that.
    pub(crate) fn mark(&self, is_begin: bool) {
        self.cache.mark(self.tokens.len(), is_begin);
    }

    /// Checks that `tokens` can be run after those so far, and that the model writes text.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        self.model().check_writes()?;
        self.check_length(tokens)?;
        self.check_text(tokens)
    }

    /// Checks that all of `tokens` are in the vocabulary.
    ///
    /// # Errors
    /// [`Error::TokenOutOfVocabulary`] for the first that is not.
    pub fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.model().description().vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(Error::TokenOutOfVocabulary {
                token: *token,
                vocab,
            }),
            None => Ok(()),
        }
    }

    fn run(
        &mut self,
        tokens: &[u32],
        what: (Phase, LogitsMode),
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let states = self.wanted_states(tokens.len());
        self.run_with(tokens, what, states, cancel, progress)
    }

    fn run_with(
        &mut self,
        tokens: &[u32],
        what: (Phase, LogitsMode),
        states: RequestStates,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let request = self.begin(tokens, what, states, cancel)?;
        self.engine
            .shared()
            .scheduler
            .submit(std::slice::from_ref(&request));
        self.end(&request, cancel, progress)
    }

    /// Makes a request, which the caller submits.
    fn begin(
        &mut self,
        tokens: &[u32],
        what: (Phase, LogitsMode),
        states: RequestStates,
        cancel: &Cancel,
    ) -> Result<Arc<Request>> {
        cancel.check()?;
        self.check_tokens(tokens, what.0)?;
        if states.given.is_empty() && self.model().weights().joined_input.is_some() {
            return Err(Error::IsHead);
        }
        self.resume(cancel)?;
        let cache = self.reserve(tokens.len())?;
        let layout = self.layout(tokens);
        let (vocab, logits) = (
            self.model().description().vocab,
            std::mem::take(&mut self.logits),
        );
        Ok(Request::new(
            self.id,
            cache,
            (tokens.to_vec(), self.tokens.len(), layout),
            what,
            (vocab, logits),
            states,
            cancel,
        ))
    }

    /// Waits for a request, and takes over its result.
    fn end(
        &mut self,
        request: &Request,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let outcome = self
            .engine
            .shared()
            .scheduler
            .wait(request, cancel, progress);
        let Outcome {
            result,
            done,
            logits,
            states,
            reports,
            is_tainted,
        } = outcome;
        // If the model's file was truncated, its missing pages are read as zeros, and the results are wrong.
        let result = self.model().check_unchanged().and(result);
        self.logits = logits;
        if !reports.is_empty() {
            self.reports = reports;
        }
        if is_tainted {
            // A worker that hangs may still write to its pages: the session continues with a fork of them.
            self.cache = Arc::new(self.cache.fork());
        }
        self.extend(&request.tokens()[..done], request.phase());
        if result.is_ok() {
            self.keep_states(request.rows_with_states().len(), states);
        } else {
            // Releases the pages of tokens that were not computed.
            self.cache.truncate(self.tokens.len());
        }
        result
    }

    /// If the session is shared, lets others find its whole prompt, including the last page.
    fn share_prompt(&self) {
        if self.is_shared {
            self.cache.truncate(self.tokens.len());
            self.cache.share(&self.tokens[..self.phases.prefilled()]);
        }
    }

    /// Gives the session a new number, so that devices which keep the tokens of sequences read its pages again.
    fn renew(&mut self) {
        let shared = self.engine.shared();
        shared.scheduler.forget(self.id);
        let id = shared.next_sequence();
        self.id = id;
    }

    /// Adds tokens whose keys and values are in the cache.
    fn extend(&mut self, tokens: &[u32], phase: Phase) {
        self.tokens.extend_from_slice(tokens);
        if !tokens.is_empty() {
            self.phases.extend(self.tokens.len(), phase);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.shared().scheduler.forget(self.id);
        self.share_prompt();
        // Frees pages now: a pass keeps the caches of all its sequences until it is complete.
        self.cache.truncate(0);
    }
}

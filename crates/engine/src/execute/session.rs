//! One conversation with a model: what it has seen, and how it goes on.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use triad_kernels::Phase;

use super::{Engine, EngineOptions, Execution, Outcome, Request, SequenceId, Wanted};
use crate::adapter::Adapters;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

use crate::forward::{Buffers, Forward, Segment};
use crate::kv::{KvCache, KvFormat, PrefixSalt, save};
use crate::linear::Observer;
use crate::model::Model;

/// What the sessions of an engine have in common.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Tokens of prompt and answer together, at most.
    pub context: usize,
    /// Tokens of prompts that go through the model at once.
    pub chunk: usize,
    /// Number format of keys and values.
    pub kv_format: KvFormat,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            context: 4096,
            chunk: 256,
            kv_format: KvFormat::F16,
        }
    }
}

/// A sequence of tokens that an [`Engine`] computes: the tokens seen so far, and their keys and values.
///
/// Sessions of one engine may run at the same time, each from a thread of its own; what one computes does not depend on
/// the others.
pub struct Session {
    engine: Engine,
    id: SequenceId,
    cache: Arc<KvCache>,
    tokens: Vec<u32>,
    /// Leading tokens that were computed as a prompt: what another session may take over.
    prefilled: usize,
    /// Of the latest request, `[rows, vocab]`.
    logits: Vec<f32>,
    execution: Option<Arc<OnceLock<Execution>>>,
    /// Of what runs on the model's threads alone.
    buffers: Option<Box<Buffers>>,
    /// Whether others may find what it holds.
    is_shared: bool,
}

impl Session {
    /// An empty session of an engine of its own, on the model's threads.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(model: &Arc<Model>, options: &SessionOptions) -> Result<Self> {
        Ok(Engine::new(
            model,
            EngineOptions {
                session: options.clone(),
                ..EngineOptions::default()
            },
        )?
        .session())
    }

    /// An empty session of `engine`.
    pub(crate) fn of(engine: &Engine) -> Self {
        let shared = engine.shared();
        Self {
            engine: engine.clone(),
            id: shared.next_sequence(),
            cache: Arc::new(KvCache::new(&shared.memory, Adapters::default())),
            tokens: Vec::with_capacity(shared.settings.context),
            prefilled: 0,
            logits: vec![0.0; shared.model.description().vocab],
            execution: None,
            buffers: None,
            is_shared: false,
        }
    }

    /// Goes on with these LoRA adapters in place of those that it has, on the same engine as sessions with others. What it
    /// has seen so far is forgotten, unless they are the same.
    ///
    /// Adapters' products are computed in float on the CPU threads of the processors. Where a device runs whole feed-forwards
    /// or the whole model, sessions with adapters are computed by those threads in its place.
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

    /// Goes on with this salt: the session [reuses](Session::reuse) what sessions with the same one have shared, and is found
    /// by them alone. What it has seen so far is forgotten, unless the salt is the same.
    pub fn set_salt(&mut self, salt: PrefixSalt) {
        if salt != self.salt() {
            self.restart(self.adapters().clone(), salt);
        }
    }

    /// Returns the salt of its prefixes.
    pub fn salt(&self) -> PrefixSalt {
        self.cache.salt()
    }

    /// Forgets what it has seen, and goes on with these adapters and this salt.
    fn restart(&mut self, adapters: Adapters, salt: PrefixSalt) {
        self.share_prompt();
        self.renew();
        self.cache.truncate(0);
        self.cache = Arc::new(KvCache::new(&self.engine.shared().memory, adapters).with_salt(salt));
        self.truncate(0);
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        self.cache.adapters()
    }

    /// Another session that has seen the same. Keys and values are shared until one of the two goes on.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut fork = Self::of(&self.engine);
        fork.cache = Arc::new(self.cache.fork());
        // Pages that are reserved for what comes are no part of it: their copies would be counted by nobody beforehand.
        fork.cache.truncate(self.tokens.len());
        fork.tokens.extend_from_slice(&self.tokens);
        (fork.prefilled, fork.is_shared) = (self.prefilled, self.is_shared);
        fork.logits.clone_from(&self.logits);
        fork
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    /// Tokens that the session holds at most.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Tokens of prompts that go through the model at once.
    pub fn chunk(&self) -> usize {
        self.engine.shared().settings.chunk
    }

    /// Tokens seen so far, prompt and answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits `[vocab]` that follow the last token of the latest prefill or decode.
    pub fn logits(&self) -> &[f32] {
        &self.logits[self
            .logits
            .len()
            .saturating_sub(self.model().description().vocab)..]
    }

    /// Pages of keys and values that it holds, and how many of them others hold, too.
    pub fn pages(&self) -> (usize, usize) {
        self.cache.count()
    }

    /// How the latest prompt went, where it has been computed by the engine's processors.
    pub fn execution(&self) -> Option<&Execution> {
        self.execution.as_ref()?.get()
    }

    /// Forgets everything after the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.prefilled = self.prefilled.min(self.tokens.len());
        self.cache.truncate(self.tokens.len());
    }

    /// Logits `[rows, vocab]` of the latest request.
    pub(crate) fn logits_of_rows(&self) -> &[f32] {
        &self.logits
    }

    /// Forgets the last `rows` tokens of the latest [`Session::decode_each`], and their logits: [`Session::logits`] are
    /// those of the token before them.
    pub(crate) fn forget_rows(&mut self, rows: usize) {
        self.truncate(self.tokens.len() - rows);
        let vocab = self.model().description().vocab;
        self.logits.truncate(self.logits.len() - rows * vocab);
    }

    /// Makes the session hold as much of the beginning of `prompt` as is known: from itself, or from what other sessions
    /// of the engine have [shared](Session::share). Forgets all else. Returns how many tokens need not be computed; the
    /// last one is never among them, since its logits are needed.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let most = prompt.len().saturating_sub(1);
        let common = self
            .tokens
            .iter()
            .zip(&prompt[..most])
            .take_while(|(a, b)| a == b)
            .count();
        self.truncate(common);
        // What follows decoded tokens depends on their arithmetic, and is nobody else's.
        if self.prefilled == common {
            let held = self.cache.adopt(common, &prompt[..most]);
            if held > common {
                self.renew();
            }
            self.tokens.extend_from_slice(&prompt[common..held]);
            self.prefilled = held;
        }
        self.tokens.len()
    }

    /// Lets other sessions of the engine with the same adapters and salt find what this one computed as a prompt: whole pages at once, the last one when
    /// the session is dropped.
    pub fn share(&mut self) {
        self.is_shared = true;
        let whole = self.prefilled - self.prefilled % triad_kernels::attention::PAGE;
        self.cache.share(&self.tokens[..whole]);
    }

    /// Runs `tokens` behind those seen so far, chunk by chunk, and returns the logits `[vocab]` of the last
    /// one. `progress` is called with the number of `tokens` that are done, as chunks end; for several at once, perhaps.
    ///
    /// # Errors
    /// If `tokens` is empty, does not fit, or holds one outside the vocabulary; if there is no memory for keys and
    /// values; if `cancel` is set. The session then still holds the chunks that were finished.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        cancel: &Cancel,
        mut progress: impl FnMut(usize),
    ) -> Result<&[f32]> {
        self.run(
            tokens,
            (Phase::Prefill, Wanted::Last),
            cancel,
            &mut progress,
        )?;
        Ok(&self.logits)
    }

    /// As [`Session::prefill`], but with the logits `[tokens, vocab]` of every token.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_all_logits(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<Vec<f32>> {
        self.run(tokens, (Phase::Prefill, Wanted::All), cancel, &mut |_| {})?;
        let last = self.logits().to_vec();
        Ok(std::mem::replace(&mut self.logits, last))
    }

    /// Runs one token of an answer; the logits `[vocab]` that follow it.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32, cancel: &Cancel) -> Result<&[f32]> {
        self.decode_each(&[token], cancel)
    }

    /// Runs several tokens of an answer at once, each with the bits that it has after [`Session::decode`] of those before
    /// it; the logits `[tokens, vocab]` that follow each.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode_each(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<&[f32]> {
        self.run(tokens, (Phase::Decode, Wanted::All), cancel, &mut |_| {})?;
        Ok(&self.logits)
    }

    /// Runs some tokens of an answer in each of several sessions of one engine, all in one step where they fit it; then
    /// each has its [`logits`](Session::logits).
    ///
    /// # Errors
    /// The first of any session, as [`Session::prefill`]; the others may have gone on.
    pub fn decode_together<'a>(
        sessions: impl IntoIterator<Item = (&'a mut Self, &'a [u32])>,
        cancel: &Cancel,
    ) -> Result<()> {
        let sessions: Vec<_> = sessions.into_iter().collect();
        // Nobody begins before it is known that all can.
        for (session, tokens) in &sessions {
            session.check(tokens)?;
            session.reserve(tokens.len())?;
        }
        let begin = |(session, tokens): (&'a mut Self, &'a [u32])| {
            let request = session.begin(tokens, (Phase::Decode, Wanted::All), cancel)?;
            Ok((session, request))
        };
        let begun: Vec<_> = sessions.into_iter().map(begin).collect::<Result<_>>()?;
        let Some((first, _)) = begun.first() else {
            return Ok(());
        };
        let shared = Arc::clone(first.engine.shared());
        let requests: Vec<_> = begun
            .iter()
            .map(|(_, request)| Arc::clone(request))
            .collect();
        shared.submit(&requests);
        let ends = begun
            .into_iter()
            .map(|(session, request)| session.end(&request, cancel, &mut |_| {}));
        // All of them, before the first error.
        ends.collect::<Vec<_>>().into_iter().collect()
    }

    /// Runs `tokens` on the model's threads as [`Session::prefill`] does, without logits; `observer` is called with what
    /// every linear layer reads, in the order of the blocks and of [`LinearInput::ALL`](crate::LinearInput::ALL).
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn observe(&mut self, tokens: &[u32], cancel: &Cancel, observer: Observer) -> Result<()> {
        self.check(tokens)?;
        self.renew();
        let model = Arc::clone(self.model());
        for chunk in tokens.chunks(self.chunk()) {
            let cache = self.reserve(chunk.len())?;
            let segment = Segment {
                cache: &cache,
                rows: 0..chunk.len(),
                position: self.tokens.len(),
            };
            let forward = self.forward();
            let mut forward = Forward {
                observer: Some(&mut *observer),
                ..forward
            };
            model
                .pool()
                .install(|| forward.run(chunk, &[segment], cancel))?;
            model.check_unchanged()?;
            self.extend(chunk, Phase::Prefill);
        }
        Ok(())
    }

    /// Runs `tokens` on the model's threads as [`Session::prefill`] does, without logits. `visit` is called with the hidden
    /// states `[rows, hidden]` of each chunk: what the output matrix would read, behind the last norm.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn hidden_states(
        &mut self,
        tokens: &[u32],
        cancel: &Cancel,
        mut visit: impl FnMut(&[f32]),
    ) -> Result<()> {
        self.check(tokens)?;
        self.renew();
        let model = Arc::clone(self.model());
        for chunk in tokens.chunks(self.chunk()) {
            let cache = self.reserve(chunk.len())?;
            let segment = Segment {
                cache: &cache,
                rows: 0..chunk.len(),
                position: self.tokens.len(),
            };
            let mut forward = self.forward();
            let states = model.pool().install(|| {
                forward.run(chunk, &[segment], cancel)?;
                Ok::<_, Error>(forward.pass.hidden_states(forward.buffers, chunk.len()))
            })?;
            model.check_unchanged()?;
            self.extend(chunk, Phase::Prefill);
            visit(&states);
        }
        Ok(())
    }

    /// Writes what the session has seen, with its keys and values, to `path`, for [`Engine::restore`].
    ///
    /// # Errors
    /// If the file cannot be written, or the model's file has changed; what was there before then stays.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.model().check_unchanged()?;
        let header = save::Header {
            model: self.model().fingerprint(),
            format: self.engine.kv_format(),
            context: self.context(),
            is_little_endian: cfg!(target_endian = "little"),
            tokens: self.tokens.len(),
            prefilled: self.prefilled,
            adapters: self.adapters().key().text(),
        };
        save::save(path, &header, &self.tokens, &self.cache)
    }

    /// What was read from a file.
    pub(crate) fn restored(
        engine: &Engine,
        tokens: &[u32],
        prefilled: usize,
        cache: KvCache,
    ) -> Self {
        let mut session = Self::of(engine);
        session.cache = Arc::new(cache);
        session.tokens.extend_from_slice(tokens);
        session.prefilled = prefilled;
        session
    }

    /// A pass over prompts and this session's own buffers, ready to run chunks on the model's threads.
    pub(crate) fn forward(&mut self) -> Forward<'_> {
        let shared = self.engine.shared();
        let new = || {
            Box::new(Buffers::new(
                shared.model.description(),
                shared.settings.chunk,
                false,
            ))
        };
        let buffers = self.buffers.get_or_insert_with(new);
        Forward {
            pass: shared.pass(Phase::Prefill),
            buffers,
            observer: None,
        }
    }

    /// The session's keys and values, with pages for `tokens` more.
    pub(crate) fn reserve(&self, tokens: usize) -> Result<Arc<KvCache>> {
        self.cache
            .reserve(self.tokens.len(), self.tokens.len() + tokens)?;
        Ok(Arc::clone(&self.cache))
    }

    /// Whether `tokens` can be run behind those seen so far.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        let free = self.context() - self.tokens.len();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > free {
            return Err(Error::PromptTooLong {
                prompt: tokens.len(),
                free,
                context: self.context(),
            });
        }
        self.check_vocabulary(tokens)
    }

    /// Whether the model has all of `tokens`.
    pub(crate) fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
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
        what: (Phase, Wanted),
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let request = self.begin(tokens, what, cancel)?;
        self.engine.shared().submit(std::slice::from_ref(&request));
        self.end(&request, cancel, progress)
    }

    /// Makes a request that has to be handed in.
    fn begin(
        &mut self,
        tokens: &[u32],
        what: (Phase, Wanted),
        cancel: &Cancel,
    ) -> Result<Arc<Request>> {
        cancel.check()?;
        self.check(tokens)?;
        let cache = self.reserve(tokens.len())?;
        let (vocab, logits) = (
            self.model().description().vocab,
            std::mem::take(&mut self.logits),
        );
        Ok(Request::new(
            self.id,
            cache,
            (tokens.to_vec(), self.tokens.len()),
            what,
            vocab,
            logits,
        ))
    }

    /// Waits for a request, and takes what came of it.
    fn end(
        &mut self,
        request: &Request,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let outcome = request.wait(self.engine.shared(), cancel, progress);
        let Outcome {
            result,
            done,
            logits,
            execution,
            is_tainted,
        } = outcome;
        self.logits = logits;
        self.execution = execution.or_else(|| self.execution.take());
        if is_tainted {
            // A processor that hangs may still write to the pages that it had: these become a copy's.
            self.cache = Arc::new(self.cache.fork());
        }
        self.extend(&request.tokens()[..done], request.phase());
        if result.is_err() {
            // Others may need the pages of what was not computed.
            self.cache.truncate(self.tokens.len());
        }
        result
    }

    /// Lets others find all that was computed as a prompt, the last page too, if they may find anything.
    fn share_prompt(&self) {
        if self.is_shared {
            self.cache.truncate(self.tokens.len());
            self.cache.share(&self.tokens[..self.prefilled]);
        }
    }

    /// Becomes another sequence for devices that keep what sequences hold: its pages have what they did not compute.
    fn renew(&mut self) {
        let shared = self.engine.shared();
        shared.forget(self.id);
        let id = shared.next_sequence();
        self.id = id;
    }

    /// Tokens whose keys and values are in the cache.
    fn extend(&mut self, tokens: &[u32], phase: Phase) {
        if phase == Phase::Prefill && self.prefilled == self.tokens.len() {
            self.prefilled += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.shared().forget(self.id);
        self.share_prompt();
        // Not with the cache: what is computed together keeps the caches of all its sequences until all of it is.
        self.cache.truncate(0);
    }
}

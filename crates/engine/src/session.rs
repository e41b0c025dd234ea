//! One conversation with a model: what it has seen, and how it goes on.

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::execute::{Executor, Prompt};
use crate::forward::{Buffers, Forward, Pass, Rotation, Segment};
use crate::kv_cache::{KvCache, KvFormat};
use crate::linear::{Int8Statistics, Observer, Phase};
use crate::model::Model;

/// How a session is set up.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Tokens of prompt and answer together; the KV cache is allocated for all of them.
    pub context: usize,
    /// Tokens of the prompt that go through the model at once.
    pub chunk: usize,
    /// Number format of the KV cache.
    pub kv_format: KvFormat,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { context: 4096, chunk: 256, kv_format: KvFormat::F16 }
    }
}

/// A KV cache, buffers for one chunk, and the tokens seen so far.
pub struct Session {
    model: Arc<Model>,
    chunk: usize,
    cache: Arc<KvCache>,
    /// For each chunk that may be in flight; the first serves where chunks follow each other.
    buffers: Vec<Buffers>,
    rotation: Arc<Rotation>,
    executor: Option<Executor>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Session {
    /// An empty session. Everything that it will ever need is allocated here.
    ///
    /// # Errors
    /// If chunk or context is zero, or the context is longer than the model was made for.
    pub fn new(model: &Arc<Model>, options: &SessionOptions) -> Result<Self> {
        let description = model.description();
        for (name, value) in [("the context", options.context), ("the chunk length", options.chunk)] {
            if value == 0 {
                return Err(Error::Option { name, value: "0".into(), expected: "at least 1 token" });
            }
        }
        if options.context > description.context {
            return Err(Error::ContextTooLong { asked: options.context, longest: description.context });
        }
        let chunk = options.chunk.min(options.context);
        Ok(Self {
            model: Arc::clone(model),
            chunk,
            cache: Arc::new(KvCache::new(description, options.context, options.kv_format)),
            buffers: vec![Buffers::new(description, chunk)],
            rotation: Arc::new(Rotation::new(description, options.context)),
            executor: None,
            tokens: Vec::with_capacity(options.context),
            logits: vec![0.0; description.vocab],
        })
    }

    /// The same session with its prompts run by `executor`; buffers for all chunks in flight are allocated here. Tokens of
    /// an answer, and what is scored, run on the model's threads as before.
    pub fn with_executor(self, executor: Executor) -> Self {
        let mut session = Self { executor: Some(executor), ..self };
        session.fill_buffers();
        session
    }

    /// What runs its prompts, if not the model's threads alone.
    pub fn executor(&self) -> Option<&Executor> {
        self.executor.as_ref()
    }

    /// As [`Session::executor`], to change what it goes by.
    pub fn executor_mut(&mut self) -> Option<&mut Executor> {
        self.executor.as_mut()
    }

    /// One set of buffers for each chunk that may be in flight: what a run lost, it gets again.
    fn fill_buffers(&mut self) {
        let count = self.executor.as_ref().map_or(1, |executor| executor.chunks_in_flight(self.context(), self.chunk));
        let Self { model, buffers, chunk, .. } = self;
        buffers.resize_with(count, || Buffers::new(model.description(), *chunk));
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens that the session holds at most.
    pub fn context(&self) -> usize {
        self.cache.context
    }

    /// Tokens that go through the model at once.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Tokens seen so far, prompt and answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits `[vocab]` that follow the last token of the latest prefill or decode.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Forgets everything after the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
    }

    /// Runs `tokens` behind those seen so far, chunk by chunk, and returns the logits `[vocab]` of the last
    /// one. `progress` hears after each chunk how many of `tokens` are done.
    ///
    /// # Errors
    /// If `tokens` is empty, does not fit, or holds one outside the vocabulary; if `cancel` is set. The
    /// session then still holds the chunks that were finished.
    pub fn prefill(&mut self, tokens: &[u32], cancel: &Cancel, mut progress: impl FnMut(usize)) -> Result<&[f32]> {
        self.check(tokens)?;
        if self.executor.is_some() {
            self.execute(tokens, false, cancel, &mut progress)?;
            return Ok(&self.logits);
        }
        let mut done = 0;
        for chunk in tokens.chunks(self.chunk) {
            let last = done + chunk.len() == tokens.len();
            let Self { model, logits, .. } = self;
            let (model, mut out) = (Arc::clone(model), std::mem::take(logits));
            let rows = if last { chunk.len() - 1..chunk.len() } else { 0..0 };
            let result = model.pool().install(|| self.run(chunk, rows, &mut out, Phase::Prefill, cancel));
            self.logits = out;
            result?;
            done += chunk.len();
            progress(done);
        }
        Ok(&self.logits)
    }

    /// Runs one token; the logits `[vocab]` that follow it.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32, cancel: &Cancel) -> Result<&[f32]> {
        self.check(&[token])?;
        let Self { model, logits, .. } = self;
        let (model, mut out) = (Arc::clone(model), std::mem::take(logits));
        let result = model.pool().install(|| self.run(&[token], 0..1, &mut out, Phase::Decode, cancel));
        self.logits = out;
        result?;
        Ok(&self.logits)
    }

    /// Runs `tokens` on the model's threads as [`Session::prefill`] does, without logits; `observer` is called with what
    /// every linear layer reads, in the order of the blocks and of [`LinearInput::ALL`](crate::LinearInput::ALL).
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn observe(&mut self, tokens: &[u32], cancel: &Cancel, observer: Observer) -> Result<()> {
        self.check(tokens)?;
        let model = Arc::clone(&self.model);
        for chunk in tokens.chunks(self.chunk) {
            let segment = Segment { rows: 0..chunk.len(), position: self.tokens.len() };
            let forward = self.forward();
            let mut forward = Forward { observer: Some(&mut *observer), ..forward };
            model.pool().install(|| forward.run(chunk, &[segment], cancel))?;
            self.tokens.extend_from_slice(chunk);
        }
        Ok(())
    }

    /// Where the time of the INT8 layers went since the session began; nothing for a model in float.
    pub fn int8_statistics(&self) -> Int8Statistics {
        let of_each = self.buffers.iter().map(|buffers| buffers.quantizer.statistics);
        of_each.fold(Int8Statistics::default(), Int8Statistics::plus)
    }

    /// As [`Session::prefill`], but with the logits `[tokens, vocab]` of every token.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_all_logits(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<Vec<f32>> {
        self.check(tokens)?;
        if self.executor.is_some() {
            return self.execute(tokens, true, cancel, &mut |_| {});
        }
        let vocab = self.model.description().vocab;
        let mut logits = vec![0.0; tokens.len() * vocab];
        let model = Arc::clone(&self.model);
        for (chunk, out) in tokens.chunks(self.chunk).zip(logits.chunks_mut(self.chunk * vocab)) {
            model.pool().install(|| self.run(chunk, 0..chunk.len(), out, Phase::Prefill, cancel))?;
        }
        Ok(logits)
    }

    /// The model and this session's parts, ready to run chunks.
    pub(crate) fn forward(&mut self) -> Forward<'_> {
        // None is missing unless a panic took it.
        if self.buffers.is_empty() {
            self.fill_buffers();
        }
        let Self { model, rotation, cache, buffers, .. } = self;
        Forward { pass: pass(model, rotation), cache, buffers: &mut buffers[0], observer: None }
    }

    /// Whether `tokens` can be run behind those seen so far.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<()> {
        let free = self.context() - self.tokens.len();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > free {
            return Err(Error::PromptTooLong { prompt: tokens.len(), free, context: self.context() });
        }
        self.check_vocabulary(tokens)
    }

    /// Whether the model has all of `tokens`.
    pub(crate) fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.description().vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(Error::TokenOutOfVocabulary { token: *token, vocab }),
            None => Ok(()),
        }
    }

    /// Runs `tokens`, which have been checked, by the executor. Answers the logits of all tokens if they are wanted; without that
    /// the session has those of the last.
    fn execute(
        &mut self,
        tokens: &[u32],
        all_logits: bool,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<f32>> {
        self.fill_buffers();
        let Self { model, chunk, cache, buffers, rotation, executor, .. } = self;
        let prompt = Prompt {
            model: Arc::clone(model),
            rotation: Arc::clone(rotation),
            cache: Arc::clone(cache),
            tokens: tokens.to_vec(),
            position: self.tokens.len(),
            chunk: *chunk,
            all_logits,
            cancel: cancel.clone(),
        };
        let executor = executor.as_mut().expect("a session that executes has an executor");
        let (done, all) = executor.run(prompt, buffers, progress);
        self.tokens.extend_from_slice(&tokens[..done]);
        let all = all?.concat();
        if all_logits {
            return if rows_are_finite(&all) { Ok(all) } else { Err(Error::NotFinite) };
        }
        let last = (tokens.len() - 1) / *chunk;
        let rows = tokens.len() - last * *chunk;
        let slot = Executor::slot(last, buffers.len());
        let (buffers, logits, pass) = (&mut buffers[slot], &mut self.logits, pass(model, rotation));
        model.pool().install(|| {
            pass.end(rows, buffers);
            pass.logits(buffers, rows - 1..rows, logits);
        });
        if rows_are_finite(logits) { Ok(Vec::new()) } else { Err(Error::NotFinite) }
    }

    /// Runs one chunk and writes the logits of `rows` of it to `out`.
    fn run(
        &mut self,
        chunk: &[u32],
        rows: std::ops::Range<usize>,
        out: &mut [f32],
        phase: Phase,
        cancel: &Cancel,
    ) -> Result<()> {
        let segment = Segment { rows: 0..chunk.len(), position: self.tokens.len() };
        let mut forward = self.forward();
        forward.pass.phase = phase;
        forward.run(chunk, &[segment], cancel)?;
        if !rows.is_empty() {
            forward.pass.logits(forward.buffers, rows, out);
        }
        self.tokens.extend_from_slice(chunk);
        if !rows_are_finite(out) {
            return Err(Error::NotFinite);
        }
        Ok(())
    }
}

/// A pass over a prompt.
fn pass<'a>(model: &'a Model, rotation: &'a Rotation) -> Pass<'a> {
    Pass { description: model.description(), weights: model.weights(), rotation, phase: Phase::Prefill }
}

/// A sum is finite only if every summand is (and none so large as to be useless).
fn rows_are_finite(logits: &[f32]) -> bool {
    logits.iter().sum::<f32>().is_finite()
}

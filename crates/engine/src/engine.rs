//! The engine: runs many sequences of one model.
//!
//! An [`Engine`] owns all that its sessions share: the model, the memory of the KV cache, the
//! [scheduler](crate::scheduler) and the [executor](crate::executor) that computes its batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_kernels::lock;

use crate::batch::SequenceId;
use crate::error::{Error, NoHead, Result};
use crate::executor::{CpuExecutor, Executor, ProcessorUse};
use crate::forward::{Buffers, Forward};
use crate::kv::{KvFormat, KvMemory, KvUse};
use crate::model::Model;
use crate::scheduler::Scheduler;
use crate::statistics::Statistics;

/// Options that the sessions of an engine have in common.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Maximum tokens of prompt and answer together.
    pub context: usize,
    /// Tokens of prompts that go through the model in one chunk.
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

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Options that all its sessions have in common.
    pub session: SessionOptions,
    /// Maximum bytes of keys and values, of sessions and of prefixes that are kept for later sessions; `None` for the
    /// size of four sessions with the whole context. A head that follows sessions has its part of them.
    pub kv_memory: Option<usize>,
    /// The longest time that a sequence waits for its next decode step while prompts are computed; `None` for the time
    /// of two chunks.
    pub max_stall: Option<Duration>,
    /// Maximum rows that one step decodes.
    pub most_rows: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            kv_memory: None,
            max_stall: None,
            most_rows: 64,
        }
    }
}

/// The parts of an engine that its executor is made of.
pub struct ExecutorSetup {
    /// The parts that all forward passes share.
    pub forward: Arc<Forward>,
    /// Maximum tokens of a session.
    pub context: usize,
    /// Tokens of prompts that go through the model in one chunk.
    pub chunk: usize,
    /// Number format of keys and values.
    pub kv_format: KvFormat,
    /// The options of the engine.
    pub options: EngineOptions,
}

/// Runs sessions of one model. Clones share one engine.
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

/// The data that sessions share.
pub(crate) struct EngineInner {
    pub(crate) forward: Arc<Forward>,
    pub(crate) settings: Settings,
    pub(crate) memory: Arc<KvMemory>,
    pub(crate) scheduler: Arc<Scheduler>,
    sequences: AtomicU64,
    /// The engine of the heads that follow sessions, made for the first of them.
    mtp: OnceLock<Option<Engine>>,
    /// Maximum bytes of the keys and values of these heads.
    mtp_memory: usize,
    options: EngineOptions,
    /// The time in which texts were encoded, which no executor counts.
    pub(crate) encoded: Mutex<EncodedTime>,
}

/// The time in which at least one request encoded texts.
#[derive(Default)]
pub(crate) struct EncodedTime {
    total: Duration,
    running: usize,
    since: Option<Instant>,
}

impl EncodedTime {
    pub(crate) fn begin(&mut self) {
        self.running += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn end(&mut self) {
        self.running -= 1;
        if self.running == 0
            && let Some(since) = self.since.take()
        {
            self.total += since.elapsed();
        }
    }
}

/// The settings of an engine.
pub(crate) struct Settings {
    pub(crate) context: usize,
    pub(crate) chunk: usize,
}

/// The usage counters of an engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineUse {
    /// Usage of the KV cache.
    pub kv: KvUse,
    /// Usage of the KV cache of the heads that follow sessions.
    pub kv_of_heads: KvUse,
    /// Decode steps so far.
    pub steps: u64,
}

impl Engine {
    /// Creates an engine that computes on the threads of the model.
    ///
    /// # Errors
    /// If context, chunk or rows of a step are zero or too many.
    pub fn new(model: &Arc<Model>, options: &EngineOptions) -> Result<Self> {
        Self::with_executor(model, options, |setup| {
            Ok(Box::new(CpuExecutor::new(&setup.forward, setup.chunk)))
        })
    }

    /// Creates an engine with the executor that `make` returns.
    ///
    /// # Errors
    /// As [`Engine::new`], and the error of `make`.
    pub fn with_executor<E: From<Error>>(
        model: &Arc<Model>,
        options: &EngineOptions,
        make: impl FnOnce(&ExecutorSetup) -> Result<Box<dyn Executor>, E>,
    ) -> Result<Self, E> {
        check(model, options)?;
        let SessionOptions {
            context,
            chunk,
            kv_format,
        } = options.session;
        let description = model.description();
        let setup = ExecutorSetup {
            forward: Arc::new(Forward::new(model, context)),
            context,
            chunk: chunk.max(whole_rows(model)).min(context),
            kv_format,
            options: options.clone(),
        };
        let executor = make(&setup)?;
        let head = model.mtp().filter(|_| executor.gives_states());
        let [of_model, of_head] = [Some(model), head].map(|model| {
            model.map_or(0, |it| {
                KvMemory::bytes_of(it.description(), kv_format, context)
            })
        });
        let both = of_model + of_head;
        let all = options.kv_memory.unwrap_or(4 * both);
        let mtp_memory = (all as u128 * of_head as u128 / both.max(1) as u128) as usize;
        Ok(Self(Arc::new(EngineInner {
            memory: Arc::new(KvMemory::new(description, kv_format, all - mtp_memory)),
            scheduler: Scheduler::new(executor, options.max_stall, options.most_rows),
            settings: Settings {
                context,
                chunk: setup.chunk,
            },
            forward: setup.forward,
            sequences: AtomicU64::new(0),
            mtp: OnceLock::new(),
            mtp_memory,
            options: setup.options,
            encoded: Mutex::default(),
        })))
    }

    /// Returns the maximum tokens of a session, prompt and answer together.
    pub fn context(&self) -> usize {
        self.0.settings.context
    }

    /// Returns the tokens of prompts that go through the model in one chunk.
    pub fn chunk(&self) -> usize {
        self.0.settings.chunk
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.0.model()
    }

    /// Returns the executor.
    pub fn executor(&self) -> &dyn Executor {
        self.0.scheduler.executor()
    }

    /// Returns the processors that compute, and how long each has computed so far. The CPU encodes texts.
    pub fn processor_use(&self) -> Vec<ProcessorUse> {
        let mut processors = self.executor().processors();
        let encoded = lock(&self.0.encoded).total.as_secs_f64();
        let cpu = processors.iter_mut().find(|it| it.name.starts_with("cpu"));
        if let Some(cpu) = cpu {
            cpu.busy_seconds += encoded;
        }
        processors
    }

    /// Returns the number format of keys and values.
    pub fn kv_format(&self) -> KvFormat {
        self.0.memory.format()
    }

    /// Returns why no head that predicts one more token can follow the sessions, or `None` if one can.
    pub fn no_head(&self) -> Option<NoHead> {
        if self.model().mtp().is_none() {
            return Some(NoHead::OfModel);
        }
        (!self.executor().gives_states()).then_some(NoHead::OfProcessors)
    }

    /// Returns the usage of the KV cache and the number of steps so far.
    pub fn usage(&self) -> EngineUse {
        let heads = self.0.mtp.get().and_then(Option::as_ref);
        EngineUse {
            kv: self.0.memory.usage(),
            kv_of_heads: heads.map_or_else(
                || KvUse {
                    budget: self.0.mtp_memory,
                    ..KvUse::default()
                },
                |heads| heads.0.memory.usage(),
            ),
            steps: self.0.scheduler.steps(),
        }
    }

    /// Forgets all prefixes that no session holds.
    pub fn forget_prefixes(&self) {
        self.0.memory.clear();
    }

    /// Forgets prefixes that no session holds, the least recently used first, until keys and values have at most `keep`
    /// bytes, and frees the memory of pages that are not used. Returns the bytes that were freed.
    pub fn release(&self, keep: usize) -> usize {
        let of_heads = self.0.mtp.get().and_then(Option::as_ref);
        self.0.memory.release(keep) + of_heads.map_or(0, |heads| heads.release(0))
    }

    /// Turns the counting of operators on or off. It is off at first: counting reads the clock twice per operator, and
    /// the operator's sizes.
    pub fn count(&self, on: bool) {
        self.0.forward.counters().turn(on);
    }

    /// Returns the [counted](Engine::count) operators that this engine's processors ran with our own kernels, or with a
    /// device's programs for single subgraphs. Excludes devices that run the whole model, and products of decode steps
    /// that several processors share.
    pub fn statistics(&self) -> Statistics {
        self.0.forward.counters().statistics()
    }

    pub(crate) fn shared(&self) -> &EngineInner {
        &self.0
    }
}

impl EngineInner {
    pub(crate) fn model(&self) -> &Arc<Model> {
        self.forward.model()
    }

    /// Returns the engine of the heads that follow sessions, if the model has a head. It computes on the threads of the
    /// model.
    pub(crate) fn mtp(&self) -> Option<&Engine> {
        let make = || {
            let head = self.model().mtp()?;
            let session = SessionOptions {
                context: self.settings.context,
                chunk: self.settings.chunk,
                kv_format: self.memory.format(),
            };
            let options = EngineOptions {
                session,
                kv_memory: Some(self.mtp_memory),
                ..self.options.clone()
            };
            let engine = Engine::new(head, &options);
            let warn = |error: &Error| tracing::warn!("the model's MTP head is not used: {error}");
            engine.inspect_err(warn).ok()
        };
        self.mtp.get_or_init(make).as_ref()
    }

    /// Returns the number of a new sequence.
    pub(crate) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.sequences.fetch_add(1, Ordering::Relaxed))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("processors", &self.processor_use())
            .finish_non_exhaustive()
    }
}

/// Returns the rows that have to be in one chunk: those of a picture that read each other.
fn whole_rows(model: &Model) -> usize {
    model
        .vision()
        .map_or(0, |vision| vision.description().together_rows())
}

/// Checks the ranges of options.
fn check(model: &Model, options: &EngineOptions) -> Result<()> {
    let EngineOptions {
        session: SessionOptions { context, chunk, .. },
        most_rows,
        ..
    } = *options;
    let description = model.description();
    for (name, value, expected) in [
        ("the context", context, "at least 1 token"),
        ("the chunk length", chunk, "at least 1 token"),
        ("the number of rows in a step", most_rows, "at least 1"),
    ] {
        if value == 0 {
            return Err(Error::Option {
                name,
                value: "0".into(),
                expected,
            });
        }
    }
    if context > description.context {
        return Err(Error::ContextTooLong {
            asked: context,
            longest: description.context,
        });
    }
    let most = Buffers::most_rows(description);
    // An encoder reads a text as a whole.
    let whole = if description.is_encoder() { context } else { 0 };
    for (name, value) in [
        ("the context", whole),
        ("the chunk length", chunk.min(context)),
        (
            "the number of rows in a step",
            most_rows.checked_next_power_of_two().unwrap_or(usize::MAX),
        ),
    ] {
        if value > most {
            return Err(Error::Option {
                name,
                value: value.to_string(),
                expected: "at most as many as buffers of 2147483647 numbers hold",
            });
        }
    }
    Ok(())
}

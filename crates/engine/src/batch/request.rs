//! Requests of sessions to the engine.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use triad_kernels::{Phase, Together, lock};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::RowLayout;
use crate::kv::KvCache;
use crate::pictures::Layout;

/// The place for an executor's record of a batch, for example a timeline. It is set when the batch is over.
pub type Report = Arc<OnceLock<Box<dyn Any + Send + Sync>>>;

/// The number of a sequence in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) u64);

impl SequenceId {
    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The rows of a request whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsMode {
    /// The last row, from which the next token is sampled; in the arithmetic of decode, whatever the phase.
    Last,
    /// All rows, in the arithmetic of the phase.
    All,
}

/// Tokens to be computed, which follow those that a sequence holds.
pub struct Request {
    sequence: SequenceId,
    cache: Arc<KvCache>,
    tokens: Vec<u32>,
    /// Position of the first token.
    position: usize,
    /// Where pictures put the tokens.
    layout: Layout,
    phase: Phase,
    wanted: LogitsMode,
    arrived: Instant,
    /// The flag of the caller, which every thread that computes the request reads.
    cancel: Cancel,
    is_cancelled: AtomicBool,
    /// Whether all its tokens are through all layers.
    is_through: AtomicBool,
    is_tainted: AtomicBool,
    /// Whether it has a result, which the waiting thread may have taken.
    has_ended: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// The reports on its batches; only of prompts.
    reports: Mutex<Vec<Report>>,
    /// The hidden states that its rows read, `[rows, hidden]`, in a model that reads some.
    given: Vec<f32>,
    /// The number of its last rows whose hidden states are wanted.
    kept: usize,
}

/// The hidden states that go into a request and come out of it.
#[derive(Default)]
pub(crate) struct RequestStates {
    /// States that its rows read, `[rows, hidden]`; empty if the model reads none.
    pub(crate) given: Vec<f32>,
    /// The number of its last rows whose states are wanted.
    pub(crate) kept: usize,
}

struct Progress {
    /// Leading tokens that are through all layers.
    done: usize,
    /// Wanted rows whose logits are computed.
    logits_done: usize,
    /// `[wanted rows, vocab]`.
    logits: Vec<f32>,
    /// `[kept rows, hidden]`; empty until the first of them is written.
    states: Vec<f32>,
    /// Set once; nothing changes after it.
    result: Option<Result<()>>,
    /// Whether the waiting thread was asked to look for a batch.
    is_woken: bool,
}

/// The result of a request.
pub(crate) struct Outcome {
    /// Whether it was computed completely.
    pub(crate) result: Result<()>,
    /// Tokens whose keys and values are in the cache.
    pub(crate) done: usize,
    /// `[wanted rows, vocab]`; unspecified if `result` is an error.
    pub(crate) logits: Vec<f32>,
    /// `[kept rows, hidden]`; unspecified if `result` is an error.
    pub(crate) states: Vec<f32>,
    /// Whether a processor that hangs may still write to the cache.
    pub(crate) is_tainted: bool,
    /// The reports on its batches; only of prompts.
    pub(crate) reports: Vec<Report>,
}

impl Request {
    /// Returns a request. `logits` is a buffer that is reused and resized.
    pub(crate) fn new(
        sequence: SequenceId,
        cache: Arc<KvCache>,
        (tokens, position, layout): (Vec<u32>, usize, Layout),
        (phase, wanted): (Phase, LogitsMode),
        (vocab, mut logits): (usize, Vec<f32>),
        states: RequestStates,
        cancel: &Cancel,
    ) -> Arc<Self> {
        let rows = match wanted {
            LogitsMode::Last => 1,
            LogitsMode::All => tokens.len(),
        };
        let tokens_len = tokens.len();
        logits.resize(rows * vocab, 0.0);
        Arc::new(Self {
            sequence,
            cache,
            tokens,
            position,
            layout,
            phase,
            wanted,
            arrived: Instant::now(),
            cancel: cancel.clone(),
            is_cancelled: AtomicBool::new(false),
            is_through: AtomicBool::new(false),
            is_tainted: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                done: 0,
                logits_done: 0,
                logits,
                states: Vec::new(),
                result: None,
                is_woken: false,
            }),
            changed: Condvar::new(),
            reports: Mutex::default(),
            kept: states.kept.min(tokens_len),
            given: states.given,
        })
    }

    /// Returns the rows whose logits are wanted.
    pub fn wanted_rows(&self) -> std::ops::Range<usize> {
        match self.wanted {
            LogitsMode::Last => self.tokens.len() - 1..self.tokens.len(),
            LogitsMode::All => 0..self.tokens.len(),
        }
    }

    /// Returns the rows whose hidden states are wanted.
    pub fn rows_with_states(&self) -> std::ops::Range<usize> {
        self.tokens.len() - self.kept..self.tokens.len()
    }

    /// Returns the hidden states that some of its rows read, `[rows, hidden]`; empty if its rows read none.
    pub(crate) fn given(&self, rows: std::ops::Range<usize>) -> &[f32] {
        let hidden = self.given.len() / self.tokens.len().max(1);
        &self.given[rows.start * hidden..rows.end * hidden]
    }

    /// Writes the hidden states of `rows`, which are among [those that are wanted](Self::rows_with_states).
    pub fn write_states(&self, rows: std::ops::Range<usize>, states: &[f32]) {
        let hidden = states.len() / rows.len();
        let first = rows.start - self.rows_with_states().start;
        let mut progress = self.lock();
        progress.states.resize(self.kept * hidden, 0.0);
        progress.states[first * hidden..][..states.len()].copy_from_slice(states);
    }

    /// Returns the arithmetic of its logits.
    pub fn phase_of_logits(&self) -> Phase {
        match self.wanted {
            LogitsMode::Last => Phase::Decode,
            LogitsMode::All => self.phase,
        }
    }

    /// Returns whether its sequence has adapters.
    pub fn has_adapters(&self) -> bool {
        !self.cache.adapters().is_empty()
    }

    /// Returns the number of its sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Returns the keys and values of its sequence.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Returns the position of its first token.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns when it was made.
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Returns the layout of some of its rows.
    pub(crate) fn layout(&self, rows: std::ops::Range<usize>) -> RowLayout<'_> {
        RowLayout {
            axes: self.layout.axes.get(rows).unwrap_or_default(),
            together: Together {
                ranges: &self.layout.together,
                in_window: self.layout.in_windows,
            },
        }
    }

    /// Returns whether it has pictures whose rows read each other, which are in one batch each.
    pub fn has_whole_pictures(&self) -> bool {
        !self.layout.together.is_empty()
    }

    /// Returns the last row, at most `end`, before which its rows from `start` on can be divided: not within a picture whose
    /// rows read each other.
    pub(crate) fn dividable(&self, start: usize, end: usize) -> usize {
        if end == self.tokens.len() {
            return end;
        }
        let at = self.position + end;
        let within = |span: &&std::ops::Range<usize>| span.start < at && at < span.end;
        let span = self.layout.together.iter().find(within);
        span.map_or(end, |span| {
            span.start.max(self.position + start) - self.position
        })
    }

    /// Returns the tokens to be computed.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the phase that the tokens are part of.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Records that a worker hangs while it computes the request.
    pub fn taint(&self) {
        self.is_tainted.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was cancelled. Once all its tokens are through, only logits are missing, and it ends
    /// successfully.
    pub fn is_cancelled(&self) -> bool {
        if self.cancel.is_cancelled() {
            self.cancel();
        }
        self.is_cancelled.load(Ordering::SeqCst) && !self.is_through.load(Ordering::SeqCst)
    }

    /// Adds the report on a batch.
    pub(crate) fn add_report(&self, report: &Report) {
        lock(&self.reports).push(Arc::clone(report));
    }

    /// Wakes the thread that waits for it, so that it looks for a batch to run.
    pub(crate) fn wake(&self) {
        self.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// Records that the first `done` tokens are through all layers. Has no effect on a cancelled request, whose
    /// progress is unknown.
    pub fn advance(&self, done: usize) {
        let mut progress = self.lock();
        if done > progress.done && !self.is_cancelled() {
            progress.done = done;
            self.is_through
                .store(done == self.tokens.len(), Ordering::SeqCst);
            self.end_if_complete(&mut progress);
            self.changed.notify_all();
        }
    }

    /// As [`Request::write_logits`] with all wanted rows, but swaps the buffers.
    pub fn swap_logits(&self, logits: &mut Vec<f32>) {
        let mut progress = self.lock();
        // A thread that cancelled it has taken the buffer.
        if progress.logits.len() == logits.len() {
            std::mem::swap(&mut progress.logits, logits);
        }
    }

    /// Writes logits of `rows`, numbered from the first wanted row.
    pub fn write_logits(&self, rows: std::ops::Range<usize>, logits: &[f32]) {
        let mut progress = self.lock();
        let vocab = logits.len() / rows.len();
        // A thread that cancelled it has taken the buffer.
        if let Some(place) = progress
            .logits
            .get_mut(rows.start * vocab..rows.end * vocab)
        {
            place.copy_from_slice(logits);
        }
    }

    /// As [`Request::write_logits`], for some tokens of the vocabulary: `logits[rows, columns.len()]`.
    pub fn write_logits_part(
        &self,
        rows: std::ops::Range<usize>,
        (columns, vocab): (&std::ops::Range<usize>, usize),
        logits: &[f32],
    ) {
        let mut progress = self.lock();
        for (row, logits) in rows.zip(logits.chunks_exact(columns.len())) {
            // A thread that cancelled it has taken the buffer.
            if let Some(place) = progress
                .logits
                .get_mut(row * vocab + columns.start..row * vocab + columns.end)
            {
                place.copy_from_slice(logits);
            }
        }
    }

    /// Records that the logits of `rows` more rows are written. Ends the request successfully if that was all.
    pub fn complete_logits(&self, rows: usize) {
        let mut progress = self.lock();
        progress.logits_done += rows;
        self.end_if_complete(&mut progress);
    }

    /// The last chunk and its logits may be finished before an earlier chunk: the later event ends the request.
    fn end_if_complete(&self, progress: &mut Progress) {
        let is_complete =
            progress.done == self.tokens.len() && progress.logits_done == self.wanted_rows().len();
        if is_complete {
            self.end(progress, Ok(()));
        }
    }

    /// Ends it with an error, unless it has ended.
    pub fn fail(&self, error: Error) {
        self.end(&mut self.lock(), Err(error));
    }

    fn end(&self, progress: &mut Progress, result: Result<()>) {
        if !self.has_ended.swap(true, Ordering::SeqCst) {
            progress.result = Some(result);
            self.changed.notify_all();
        }
    }

    /// Asks for its cancellation.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
    }

    /// Returns whether it has a result.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Returns how many leading tokens are through all layers.
    pub(crate) fn done(&self) -> usize {
        self.lock().done
    }

    /// Returns whether it has ended, or more than `reported` tokens are done.
    pub(crate) fn has_new_work(&self, reported: usize) -> bool {
        let progress = self.lock();
        progress.result.is_some() || progress.done > reported
    }

    /// Sleeps until it has ended, more than `reported` tokens are done, [`Request::wake`] is called, or `time_out` is
    /// over. Returns whether the time is over.
    pub(crate) fn sleep(&self, reported: usize, time_out: Duration) -> bool {
        let mut progress = self.lock();
        let has_new_work = progress.result.is_some() || progress.done > reported;
        if has_new_work || std::mem::take(&mut progress.is_woken) {
            return false;
        }
        let (_progress, waited) = self
            .changed
            .wait_timeout(progress, time_out)
            .unwrap_or_else(PoisonError::into_inner);
        waited.timed_out()
    }

    /// Returns the result of a request that has ended.
    pub(crate) fn take_outcome(&self) -> Outcome {
        let mut progress = self.lock();
        Outcome {
            result: progress.result.take().expect("the request has ended"),
            done: progress.done,
            logits: std::mem::take(&mut progress.logits),
            states: std::mem::take(&mut progress.states),
            is_tainted: self.is_tainted.load(Ordering::Relaxed),
            reports: std::mem::take(&mut lock(&self.reports)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapters;
    use crate::kv::{KvFormat, KvMemory};

    #[test]
    fn a_request_ends_when_all_tokens_are_through_and_their_logits_computed_in_either_order() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let memory = Arc::new(KvMemory::new(&description, KvFormat::F16, 0));
        let request = || {
            let cache = Arc::new(KvCache::new(&memory, Adapters::default()));
            let what = (Phase::Prefill, LogitsMode::Last);
            Request::new(
                SequenceId(0),
                cache,
                (vec![1, 2, 3], 0, Layout::default()),
                what,
                (5, Vec::new()),
                RequestStates::default(),
                &Cancel::new(),
            )
        };
        let tokens_first = request();
        tokens_first.advance(3);
        assert!(!tokens_first.has_new_work(3), "logits are missing");
        tokens_first.complete_logits(1);
        assert!(tokens_first.has_new_work(3));
        // The last chunk was through before the previous one.
        let logits_first = request();
        logits_first.complete_logits(1);
        assert!(!logits_first.has_new_work(0), "tokens are missing");
        logits_first.advance(3);
        assert!(logits_first.has_new_work(3));
    }
}

//! Requests of sessions to the engine, and how a session's thread waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use triad_kernels::Phase;

use super::{EngineInner, Execution};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::kv::KvCache;

/// How often a waiting thread checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The number of a sequence in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SequenceId(pub(super) u64);

/// The rows of a request whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitsMode {
    /// The last row, from which the next token is sampled; in the arithmetic of decode, whatever the phase.
    Last,
    /// All rows, in the arithmetic of the phase.
    All,
}

/// Tokens to be computed, which follow those that a sequence holds.
pub(crate) struct Request {
    pub(super) sequence: SequenceId,
    pub(super) cache: Arc<KvCache>,
    pub(super) tokens: Vec<u32>,
    /// Position of the first token.
    pub(super) position: usize,
    pub(super) phase: Phase,
    pub(super) wanted: LogitsMode,
    pub(super) arrived: Instant,
    is_cancelled: AtomicBool,
    /// Whether all its tokens are through all blocks.
    is_through: AtomicBool,
    is_tainted: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// The execution of its pass, set when that is complete; only of prompts.
    execution: OnceLock<Arc<OnceLock<Execution>>>,
}

struct Progress {
    /// Leading tokens that are through all blocks.
    done: usize,
    /// LogitsMode rows whose logits are computed.
    logits_done: usize,
    /// `[wanted rows, vocab]`.
    logits: Vec<f32>,
    /// Set once; nothing changes after it.
    result: Option<Result<()>>,
}

/// The result of a request.
pub(crate) struct Outcome {
    /// Whether it was computed completely.
    pub(crate) result: Result<()>,
    /// Tokens whose keys and values are in the cache.
    pub(crate) done: usize,
    /// `[wanted rows, vocab]`; unspecified if `result` is an error.
    pub(crate) logits: Vec<f32>,
    /// Whether a processor that hangs may still write to the cache.
    pub(crate) is_tainted: bool,
    /// Set when the whole pass is complete; only of prompts.
    pub(crate) execution: Option<Arc<OnceLock<Execution>>>,
}

impl Request {
    /// Returns whether both may be computed in one pass. With adapters in a pass, devices do not run whole
    /// feed-forwards or the whole model, so that a request without adapters would be computed in another way than
    /// alone.
    pub(super) fn may_share_a_pass(&self, shared: &EngineInner, other: &Self) -> bool {
        let is_devices = shared
            .units
            .iter()
            .any(|unit| unit.whole.is_some() || unit.programs.is_some());
        !is_devices || self.has_adapters() == other.has_adapters()
    }

    /// Returns a request. `logits` is a buffer that is reused and resized.
    pub(crate) fn new(
        sequence: SequenceId,
        cache: Arc<KvCache>,
        (tokens, position): (Vec<u32>, usize),
        (phase, wanted): (Phase, LogitsMode),
        vocab: usize,
        mut logits: Vec<f32>,
    ) -> Arc<Self> {
        let rows = match wanted {
            LogitsMode::Last => 1,
            LogitsMode::All => tokens.len(),
        };
        logits.resize(rows * vocab, 0.0);
        Arc::new(Self {
            sequence,
            cache,
            tokens,
            position,
            phase,
            wanted,
            arrived: Instant::now(),
            is_cancelled: AtomicBool::new(false),
            is_through: AtomicBool::new(false),
            is_tainted: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                done: 0,
                logits_done: 0,
                logits,
                result: None,
            }),
            changed: Condvar::new(),
            execution: OnceLock::new(),
        })
    }

    /// Returns the rows whose logits are wanted.
    pub(super) fn wanted_rows(&self) -> std::ops::Range<usize> {
        match self.wanted {
            LogitsMode::Last => self.tokens.len() - 1..self.tokens.len(),
            LogitsMode::All => 0..self.tokens.len(),
        }
    }

    /// Returns the arithmetic of its logits.
    pub(super) fn phase_of_logits(&self) -> Phase {
        match self.wanted {
            LogitsMode::Last => Phase::Decode,
            LogitsMode::All => self.phase,
        }
    }

    /// Returns whether its sequence has adapters.
    pub(super) fn has_adapters(&self) -> bool {
        !self.cache.adapters().is_empty()
    }

    /// Returns the tokens to be computed.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the phase that the tokens are part of.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Records that a worker hangs while it computes the request.
    pub(super) fn taint(&self) {
        self.is_tainted.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was cancelled. Once all its tokens are through, only logits are missing, and it ends
    /// successfully.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst) && !self.is_through.load(Ordering::SeqCst)
    }

    pub(super) fn set_execution(&self, execution: &Arc<OnceLock<Execution>>) {
        // A request is part of only one pass, which sets it once.
        let _ = self.execution.set(Arc::clone(execution));
    }

    /// Records that the first `done` tokens are through all blocks. Has no effect on a cancelled request, whose
    /// progress is unknown.
    pub(super) fn advance(&self, done: usize) {
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
    pub(super) fn swap_logits(&self, logits: &mut Vec<f32>) {
        let mut progress = self.lock();
        // A thread that cancelled it has taken the buffer.
        if progress.logits.len() == logits.len() {
            std::mem::swap(&mut progress.logits, logits);
        }
    }

    /// Writes logits of `rows`, numbered from the first wanted row.
    pub(super) fn write_logits(&self, rows: std::ops::Range<usize>, logits: &[f32]) {
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
    pub(super) fn write_logits_part(
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
    pub(super) fn complete_logits(&self, rows: usize) {
        let mut progress = self.lock();
        progress.logits_done += rows;
        self.end_if_complete(&mut progress);
    }

    /// The last chunk and its logits may be finished before an earlier chunk: the later event ends the request.
    fn end_if_complete(&self, progress: &mut Progress) {
        let is_complete =
            progress.done == self.tokens.len() && progress.logits_done == self.wanted_rows().len();
        if is_complete && progress.result.is_none() {
            progress.result = Some(Ok(()));
            self.changed.notify_all();
        }
    }

    /// Ends it with an error, unless it has ended.
    pub(super) fn fail(&self, error: Error) {
        let mut progress = self.lock();
        if progress.result.is_none() {
            progress.result = Some(Err(error));
            self.changed.notify_all();
        }
    }

    /// Waits for its end; calls `on_progress` with the number of finished tokens whenever it has grown.
    pub(crate) fn wait(
        &self,
        shared: &EngineInner,
        cancel: &Cancel,
        on_progress: &mut dyn FnMut(usize),
    ) -> Outcome {
        // Even if `on_progress` panics, nothing writes to the pages of the sequence after this function.
        let guard = CancelOnDrop {
            request: self,
            shared,
        };
        let mut reported = 0;
        let mut progress = self.lock();
        while progress.result.is_none() {
            if progress.done > reported {
                reported = progress.done;
                drop(progress);
                on_progress(reported);
                progress = self.lock();
                continue;
            }
            if cancel.is_cancelled() && !self.is_cancelled.swap(true, Ordering::SeqCst) {
                drop(progress);
                shared.wake();
                progress = self.lock();
                continue;
            }
            drop(progress);
            let is_enough = || {
                self.has_new_work(reported)
                    || (cancel.is_cancelled() && !self.is_cancelled.load(Ordering::SeqCst))
            };
            let has_helped = shared.run_inline(&is_enough);
            progress = self.lock();
            if has_helped || progress.result.is_some() || progress.done > reported {
                continue;
            }
            let waited = self
                .changed
                .wait_timeout(progress, POLL_INTERVAL)
                .unwrap_or_else(PoisonError::into_inner);
            let timed_out = waited.1.timed_out();
            progress = waited.0;
            if timed_out && progress.result.is_none() {
                drop(progress);
                shared.watch();
                progress = self.lock();
            }
        }
        let result = progress.result.take().expect("the request has ended");
        let (done, logits) = (progress.done, std::mem::take(&mut progress.logits));
        drop(progress);
        std::mem::forget(guard);
        if done > reported {
            on_progress(done);
        }
        // On this thread, which no worker waits for.
        let vocab = logits.len() / self.wanted_rows().len();
        let are_finite = result.is_err() || logits.chunks_exact(vocab).all(is_finite);
        let result = if are_finite {
            result
        } else {
            Err(Error::NotFinite)
        };
        // If the model's file was truncated, its missing pages are read as zeros, and the results are wrong.
        let result = shared.model.check_unchanged().and(result);
        let is_tainted = self.is_tainted.load(Ordering::Relaxed);
        Outcome {
            result,
            done,
            logits,
            is_tainted,
            execution: self.execution.get().cloned(),
        }
    }

    /// Returns whether it has ended, or more than `reported` tokens are done.
    fn has_new_work(&self, reported: usize) -> bool {
        let progress = self.lock();
        progress.result.is_some() || progress.done > reported
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cancels a request if the thread that waits for it panics, and waits until no worker computes it.
struct CancelOnDrop<'a> {
    request: &'a Request,
    shared: &'a EngineInner,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.request.is_cancelled.store(true, Ordering::SeqCst);
        self.shared.wake();
        let mut progress = self.request.lock();
        while progress.result.is_none() {
            let waited = self.request.changed.wait_timeout(progress, POLL_INTERVAL);
            (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns whether all logits are finite: a sum is finite only if every summand is (and none is so large as to be
/// useless).
fn is_finite(logits: &[f32]) -> bool {
    logits.iter().sum::<f32>().is_finite()
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
                (vec![1, 2, 3], 0),
                what,
                5,
                Vec::new(),
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

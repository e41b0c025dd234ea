//! The scheduler: which requests are computed together, and which batch is next.
//!
//! Sessions submit requests. The scheduler forms [batches](Batch) of them and hands these to the [`Executor`]: rows of
//! prompts, in the order of arrival, or one decode step with the next rows of all sequences that wait for a token, so
//! that it reads the weights once for all of them.
//!
//! There is no thread of its own: a thread that waits for a request forms and runs batches meanwhile
//! ([`Scheduler::run`]). A decode step waits for prompts no longer than `max_stall`: an executor that computes one batch
//! at a time calls back between layers, and a step that is due then runs in between.
//!
//! The result of a request has the same bits alone and in any batch: its arithmetic depends on its phase, and each row
//! is computed independently.

#[cfg(test)]
mod tests;
mod wait;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use triad_kernels::{Phase, lock};

use crate::batch::{Batch, BatchObserver, BatchPart, Request, SequenceId};
use crate::error::Error;
use crate::executor::{Executor, Limits};

/// How long a step waits for the sequences of the previous step: a share of that step's time, and the maximum.
const PATIENCE: (f64, Duration) = (0.125, Duration::from_millis(4));
/// Expected seconds of a batch of prompts before any was measured.
const CHUNK_SECONDS: f64 = 0.1;
/// How many batches of prompts a step waits for, unless the user sets `max_stall`.
const CHUNKS_OF_STALL: f64 = 2.0;
/// The weight of the latest batch of prompts in the expected time of the next.
const LATEST: f64 = 0.5;
/// How long a waiting thread sleeps at least until it looks for batches again.
const MIN_LOOK: Duration = Duration::from_micros(50);

/// Waiting requests and running batches, under one lock.
pub(crate) struct Scheduler {
    executor: Box<dyn Executor>,
    limits: Limits,
    max_stall: Option<Duration>,
    /// Maximum rows of a decode step.
    most_rows: usize,
    queue: Mutex<Queue>,
    itself: Weak<Self>,
}

struct Queue {
    /// Rows of prompts that are in no batch yet, each request once.
    prompts: VecDeque<BatchPart>,
    /// Requests that decode and are in no batch yet.
    rows: VecDeque<Arc<Request>>,
    /// Batches of prompts that are being computed.
    running_prompts: usize,
    /// Heads that run now, on the threads of prompts: no batch of prompts begins meanwhile.
    heads: usize,
    /// Whether a decode step is being computed.
    is_stepping: bool,
    decode_group: DecodeGroup,
    /// Expected seconds of a batch of prompts.
    chunk_seconds: f64,
    /// Decode steps so far.
    steps: u64,
}

/// The sequences of the latest step. The next step waits a moment for those that are sampling, so that it reads the
/// weights once for all of them.
#[derive(Default)]
struct DecodeGroup {
    missing: Vec<SequenceId>,
    until: Option<Instant>,
}

impl Scheduler {
    pub(crate) fn new(
        executor: Box<dyn Executor>,
        max_stall: Option<Duration>,
        most_rows: usize,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            limits: executor.limits(),
            executor,
            max_stall,
            most_rows,
            queue: Mutex::new(Queue {
                prompts: VecDeque::new(),
                rows: VecDeque::new(),
                running_prompts: 0,
                heads: 0,
                is_stepping: false,
                decode_group: DecodeGroup::default(),
                chunk_seconds: CHUNK_SECONDS,
                steps: 0,
            }),
            itself: Weak::clone(itself),
        })
    }

    pub(crate) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// Returns the number of decode steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Lets a head run on the threads of the model: until the result is dropped, no batch of prompts begins. Returns
    /// `None` if a prompt waits or runs. The head would wait for a whole batch of it, longer than `max_stall`.
    pub(crate) fn hold_prompts(&self) -> Option<HeldPrompts<'_>> {
        let mut queue = self.lock();
        if queue.running_prompts > 0 || !queue.prompts.is_empty() {
            return None;
        }
        queue.heads += 1;
        Some(HeldPrompts(self))
    }

    /// Adds requests, all at once. The thread that [waits](Scheduler::wait) for one runs it.
    pub(crate) fn submit(&self, requests: &[Arc<Request>]) {
        let mut queue = self.lock();
        for request in requests {
            queue.forget(request.sequence());
            match request.phase() {
                Phase::Prefill => queue.prompts.push_back(BatchPart {
                    request: Arc::clone(request),
                    rows: 0..request.tokens().len(),
                }),
                Phase::Decode => queue.rows.push_back(Arc::clone(request)),
            }
        }
    }

    /// Removes a sequence: no step waits for it any more, and the executor drops what it keeps of it.
    pub(crate) fn forget(&self, sequence: SequenceId) {
        self.executor.forget(sequence);
        self.lock().forget(sequence);
        self.hand_over();
    }

    /// Runs batches on this thread, which waits for a request of `phase`, or starts them where the executor has threads
    /// of its own, until `is_enough` or until there is none. Returns whether there was one.
    pub(crate) fn run(&self, phase: Phase, is_enough: &dyn Fn() -> bool) -> bool {
        let mut has_run = false;
        while !is_enough()
            && let Some(batch) = self.next_batch(phase)
        {
            self.executor.execute(&batch, &|| self.run_due_step());
            has_run = true;
        }
        self.executor.run_inline(is_enough) || has_run
    }

    /// If no batch runs but requests wait, wakes the threads that wait for the first of each phase.
    pub(crate) fn hand_over(&self) {
        let queue = self.lock();
        if queue.running_prompts > 0 || queue.is_stepping {
            return;
        }
        let first = [
            queue.prompts.front().map(|part| Arc::clone(&part.request)),
            queue.rows.front().map(Arc::clone),
        ];
        drop(queue);
        first.iter().flatten().for_each(|request| request.wake());
    }

    /// Ends cancelled requests that are in no batch, and tells the executor that others may be cancelled.
    pub(crate) fn drop_cancelled(&self) {
        self.lock().drop_cancelled();
        self.executor.cancelled();
    }

    /// Returns after how long a waiting thread has to look for a batch again, without being woken.
    pub(crate) fn next_look(&self) -> Duration {
        let queue = self.lock();
        let has_step = !queue.rows.is_empty() && !self.is_busy(&queue);
        let until = queue.decode_group.until.filter(|_| has_step);
        until.map_or(Duration::MAX, |until| {
            until
                .saturating_duration_since(Instant::now())
                .max(MIN_LOOK)
        })
    }

    /// Forms the next batch for a thread that waits for a request of `phase`; `None` if no request waits, or others have
    /// to end first. A step goes before prompts if it has waited for `max_stall`. A thread that waits for a token does
    /// not begin prompts, since its token may be there long before their batch ends.
    fn next_batch(&self, phase: Phase) -> Option<Arc<Batch>> {
        let mut queue = self.lock();
        queue.drop_cancelled();
        if self.is_busy(&queue) {
            return None;
        }
        let takes_step_alone = phase == Phase::Decode && !self.limits.overlap;
        if takes_step_alone {
            return self.form_step(&mut queue);
        }
        let step_first = self.is_due(&queue);
        let early = step_first.then(|| self.form_step(&mut queue)).flatten();
        early
            .or_else(|| self.form_prompts(&mut queue))
            .or_else(|| self.form_step(&mut queue))
    }

    /// Returns whether a batch has to end before the next one begins.
    fn is_busy(&self, queue: &Queue) -> bool {
        !self.limits.overlap && (queue.is_stepping || queue.running_prompts > 0)
    }

    /// Runs the decode step if it has waited for `max_stall`, between two layers of prompts.
    fn run_due_step(&self) {
        let step = {
            let mut queue = self.lock();
            queue.drop_cancelled();
            if !self.is_due(&queue) {
                return;
            }
            self.form_step(&mut queue)
        };
        if let Some(step) = step {
            self.executor.execute(&step, &|| ());
        }
    }

    /// Returns whether a row has waited for `max_stall`.
    fn is_due(&self, queue: &Queue) -> bool {
        let stall = self.max_stall.map(|stall| stall.as_secs_f64());
        let stall = stall.unwrap_or(CHUNKS_OF_STALL * queue.chunk_seconds);
        let waited = |request: &Arc<Request>| request.arrived().elapsed().as_secs_f64();
        queue.rows.iter().any(|request| waited(request) >= stall)
    }

    /// Forms a step of as many waiting rows as allowed, unless one runs, or sequences of the latest one are missing.
    fn form_step(&self, queue: &mut Queue) -> Option<Arc<Batch>> {
        let is_whole = queue.decode_group.missing.is_empty()
            || queue
                .decode_group
                .until
                .is_none_or(|until| until <= Instant::now());
        if queue.is_stepping || !is_whole || queue.rows.is_empty() {
            return None;
        }
        queue.decode_group = DecodeGroup::default();
        let (mut parts, mut rows) = (Vec::<BatchPart>::new(), 0);
        while let Some(request) = queue.rows.front()
            && parts.first().is_none_or(|first| {
                rows + request.tokens().len() <= self.most_rows
                    && self.may_share(&first.request, request)
            })
        {
            rows += request.tokens().len();
            let request = queue.rows.pop_front().expect("the first one");
            let rows = 0..request.tokens().len();
            parts.push(BatchPart { request, rows });
        }
        queue.is_stepping = true;
        Some(Arc::new(Batch::new(parts, Phase::Decode, self.observer())))
    }

    /// Forms a batch of as many waiting rows of prompts as the executor takes. The rest of a prompt waits until the
    /// batch has ended.
    fn form_prompts(&self, queue: &mut Queue) -> Option<Arc<Batch>> {
        if queue.heads > 0
            || queue.running_prompts == self.limits.prompts
            || queue.prompts.is_empty()
        {
            return None;
        }
        let first = queue.prompts.front();
        let most = first.map_or(0, |first| self.most_rows(&first.request));
        let (mut parts, mut free) = (Vec::<BatchPart>::new(), most);
        while free > 0
            && let Some(next) = queue.prompts.front()
            && parts
                .first()
                .is_none_or(|first| self.may_share(&first.request, &next.request))
        {
            let end = next.rows.end.min(next.rows.start + free);
            let end = match next.request.dividable(next.rows.start, end) {
                // A picture that does not fit is in the next batch, which begins with it.
                whole if whole == next.rows.start && !parts.is_empty() => break,
                // A batch takes a whole picture.
                whole if whole == next.rows.start => end,
                whole => whole,
            };
            let mut part = queue.prompts.pop_front().expect("the first one");
            part.rows.end = end;
            free -= part.rows.len();
            parts.push(part);
        }
        queue.running_prompts += 1;
        let batch = Batch::new(parts, Phase::Prefill, self.observer());
        for part in batch.parts() {
            part.request.add_report(batch.report());
        }
        Some(Arc::new(batch))
    }

    fn may_share(&self, one: &Request, other: &Request) -> bool {
        self.most_rows(one) == self.most_rows(other)
            && (!self.limits.separate_adapters || one.has_adapters() == other.has_adapters())
    }

    /// Returns the maximum rows of a batch with rows of `request`.
    fn most_rows(&self, request: &Request) -> usize {
        match request.has_whole_pictures() {
            true => self.limits.picture_rows,
            false => self.limits.prompt_rows,
        }
    }

    fn observer(&self) -> Weak<dyn BatchObserver> {
        // Coerced from its own type.
        Weak::<Self>::clone(&self.itself)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

/// Holds prompts back until it is dropped.
pub(crate) struct HeldPrompts<'a>(&'a Scheduler);

impl Drop for HeldPrompts<'_> {
    fn drop(&mut self) {
        self.0.lock().heads -= 1;
        self.0.hand_over();
    }
}

impl BatchObserver for Scheduler {
    /// Records that a batch is over, and starts the next ones if the executor has threads of its own.
    fn ended(&self, batch: &Batch) {
        let seconds = batch.start().elapsed().as_secs_f64();
        {
            let mut queue = self.lock();
            match batch.phase() {
                Phase::Prefill => {
                    queue.running_prompts -= 1;
                    queue.chunk_seconds += LATEST * (seconds - queue.chunk_seconds);
                    let last = batch.parts().last();
                    if let Some(BatchPart { request, rows }) = last
                        && rows.end < request.tokens().len()
                        && !request.has_ended()
                    {
                        let has_had_a_turn = rows.len() == self.most_rows(request);
                        let rows = rows.end..request.tokens().len();
                        let request = Arc::clone(request);
                        let part = BatchPart { request, rows };
                        // In turns of a whole batch, so that a short prompt does not wait for the whole of a long one.
                        // After less than that a prompt goes on: others that wait gain nothing from its waiting.
                        if has_had_a_turn {
                            queue.prompts.push_back(part);
                        } else {
                            queue.prompts.push_front(part);
                        }
                        // If it was cancelled just now, its thread may not look at the queue again.
                        queue.drop_cancelled();
                    }
                }
                Phase::Decode => {
                    let patience = Duration::from_secs_f64(PATIENCE.0 * seconds).min(PATIENCE.1);
                    let sequences = batch.parts().iter().map(|part| part.request.sequence());
                    queue.is_stepping = false;
                    queue.steps += 1;
                    queue.decode_group = DecodeGroup {
                        missing: sequences.collect(),
                        until: Some(Instant::now() + patience),
                    };
                }
            }
        }
        if self.limits.overlap {
            while let Some(batch) = self.next_batch(batch.phase()) {
                self.executor.execute(&batch, &|| ());
            }
        }
    }
}

impl Queue {
    /// Removes a sequence from those that the next step waits for.
    fn forget(&mut self, sequence: SequenceId) {
        self.decode_group.missing.retain(|other| *other != sequence);
    }

    fn drop_cancelled(&mut self) {
        let is_wanted = |request: &Request| {
            let is_cancelled = request.is_cancelled();
            if is_cancelled {
                request.fail(Error::Cancelled);
            }
            !is_cancelled
        };
        self.prompts.retain(|part| is_wanted(&part.request));
        self.rows.retain(|request| is_wanted(request));
    }
}

//! Worker threads that drive a schedule in real time: each asks it for a task, runs that, and tells.
//!
//! All that is shared lies behind one lock, which nobody holds while a task runs. The buffers of a chunk go to whoever
//! runs a task of it, and come back with it: within a chunk tasks follow each other. A processor that panics, reports an
//! error or takes too long is lost; another one takes the chunk that it had, from its tokens on, since nobody knows what
//! its buffers hold. A thread that hangs keeps what it has, and is left alone: nothing here waits for it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use triad_plan::graph::{Graph, Task};
use triad_plan::processors::{ProcessorId, label};
use triad_plan::schedule::{Dag, Schedule};
use triad_plan::timeline::Event;

use super::{Cancel, KvCache, Loss, Model, Role, Rotation, Unit, lock};
use crate::error::{Error, Result};
use crate::forward::{Buffers, Pass, Segment};
use crate::linear::{Kernels, Multiplier, Phase};

/// How often a worker that waits looks whether it is to stop, or another one takes too long.
const LOOK: Duration = Duration::from_millis(20);

/// How long it looks without sleeping before that: falling asleep and waking up takes as long as a small task.
const SPIN: Duration = Duration::from_micros(500);

/// Hears which processor begins and ends which task, and may spoil where its tokens stand; what it answers or panics with
/// counts as the processor's.
pub(super) type Probe = Arc<dyn Fn(ProcessorId, Task, Moment, &mut Segment) -> Result<()> + Send + Sync>;

/// When a probe is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before a task.
    Before,
    /// Behind it, before anybody knows that it is done.
    Behind,
}

/// A prompt on its way.
pub(crate) struct Prompt {
    pub(crate) model: Arc<Model>,
    pub(crate) rotation: Arc<Rotation>,
    pub(crate) cache: Arc<KvCache>,
    pub(crate) tokens: Vec<u32>,
    /// Of the first token.
    pub(crate) position: usize,
    /// Tokens of a chunk.
    pub(crate) chunk: usize,
    /// Whether the logits of all tokens are wanted.
    pub(crate) all_logits: bool,
    pub(crate) cancel: Cancel,
}

/// A prompt, its processors, and how far they are.
pub(super) struct Run {
    prompt: Prompt,
    graph: Graph,
    units: Vec<Arc<Unit>>,
    time_out: Duration,
    probe: Option<Probe>,
    start: Instant,
    state: Mutex<State>,
    /// Told whenever something ends.
    news: Condvar,
    /// How often it was told.
    told: AtomicUsize,
}

/// What comes of a run.
pub(super) struct Ended {
    pub(super) result: Result<()>,
    /// Tokens that are through all blocks, with all before them.
    pub(super) done: usize,
    pub(super) events: Vec<Event>,
    pub(super) losses: Vec<Loss>,
    /// Of each chunk, where they were wanted.
    pub(super) logits: Vec<Vec<f32>>,
    /// In their order, without those that a lost processor keeps.
    pub(super) buffers: Vec<Buffers>,
}

struct State {
    schedule: Schedule<Dag>,
    /// `None` while a task has them.
    slots: Vec<Option<Slot>>,
    /// Since when each processor runs its task.
    since: Vec<Instant>,
    is_lost: Vec<bool>,
    /// Why the run ends before it is complete.
    stopped: Option<Error>,
    /// What came of it has been taken: a worker that starts late finds nothing to do.
    has_ended: bool,
    is_finished: Vec<bool>,
    events: Vec<Event>,
    losses: Vec<Loss>,
    logits: Vec<Vec<f32>>,
}

/// The buffers of a chunk.
struct Slot {
    buffers: Buffers,
    chunk: usize,
    /// Subgraphs that it has been through in these buffers.
    done: usize,
}

/// A task with all that it needs.
struct Job {
    number: usize,
    task: Task,
    slot: Slot,
    start: Instant,
}

impl Run {
    pub(super) fn new(
        prompt: Prompt,
        graph: Graph,
        schedule: Schedule<Dag>,
        buffers: Vec<Buffers>,
        units: Vec<Arc<Unit>>,
        time_out: Duration,
        probe: Option<Probe>,
    ) -> Self {
        let (chunks, start) = (graph.chunks().len(), Instant::now());
        let slot = |(chunk, buffers)| Some(Slot { buffers, chunk, done: 0 });
        let state = State {
            schedule,
            slots: buffers.into_iter().enumerate().map(slot).collect(),
            since: vec![start; units.len()],
            is_lost: vec![false; units.len()],
            stopped: None,
            has_ended: false,
            is_finished: vec![false; chunks],
            events: Vec::with_capacity(chunks * graph.subgraphs().len()),
            losses: Vec::new(),
            logits: vec![Vec::new(); if prompt.all_logits { chunks } else { 0 }],
        };
        Self {
            prompt,
            graph,
            units,
            time_out,
            probe,
            start,
            state: Mutex::new(state),
            news: Condvar::new(),
            told: AtomicUsize::new(0),
        }
    }

    pub(super) fn position(&self) -> usize {
        self.prompt.position
    }

    /// Runs all tasks, those of the first processor on this thread. `progress` hears how many tokens are done.
    pub(super) fn drive(this: &Arc<Self>, progress: &mut dyn FnMut(usize)) -> Ended {
        for (index, unit) in this.units.iter().enumerate() {
            if unit.is_away() {
                this.lock().lose(this, index, "it has not come back from an earlier prompt");
            }
        }
        // Whatever `progress` does, the others come to an end.
        let stop = StopOthers(this);
        for index in 1..this.units.len() {
            let run = Arc::clone(this);
            let name = format!("triad-{}", run.units[index].name);
            let spawned = std::thread::Builder::new().name(name).spawn(move || run.serve(index, &mut |_| {}));
            if let Err(error) = spawned {
                this.lock().lose(this, index, &format!("no thread can be started for it: {error}"));
            }
        }
        this.serve(0, progress);
        drop(stop);
        this.end()
    }

    /// The life of a worker.
    fn serve(&self, index: usize, progress: &mut dyn FnMut(usize)) {
        let unit = &self.units[index];
        if unit.is_away() {
            return self.watch(index, progress);
        }
        unit.pool.install(|| {
            let mut done = 0;
            while let Some(mut job) = self.take(index, &mut done, progress) {
                let outcome = catch_unwind(AssertUnwindSafe(|| match &unit.device {
                    Some(device) => {
                        let products = &mut **lock(&device.products);
                        self.perform(index, &mut job, Multiplier { products, beside: Some(&device.beside) })
                    }
                    None => {
                        let products = &mut Kernels(self.prompt.model.weights());
                        self.perform(index, &mut job, Multiplier { products, beside: None })
                    }
                }));
                let outcome = match outcome {
                    Ok(Ok(logits)) => Ok(logits),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(panic) => Err(format!("it panicked: {}", message(&*panic))),
                };
                self.give_back(index, job, outcome);
            }
        });
        unit.is_away.store(false, Ordering::Relaxed);
        self.watch(index, progress);
    }

    /// The next task; `None` if there is none any more.
    fn take(&self, index: usize, done: &mut usize, progress: &mut dyn FnMut(usize)) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if !state.goes_on(self) || state.is_lost[index] {
                return None;
            }
            let now_done = state.tokens_done(self);
            if now_done > *done {
                *done = now_done;
                drop(state);
                progress(now_done);
                state = self.lock();
                continue;
            }
            if let Some(number) = state.schedule.next(ProcessorId::new(index)) {
                let subgraphs = self.graph.subgraphs().len();
                let task = Task { chunk: number / subgraphs, subgraph: number % subgraphs, part: 0 };
                let start = Instant::now();
                state.since[index] = start;
                let slot = super::Executor::slot(task.chunk, state.slots.len());
                let slot = state.slots[slot].take().unwrap_or_else(|| Slot {
                    // A lost processor has those of this chunk.
                    buffers: Buffers::new(self.prompt.model.description(), self.prompt.chunk),
                    chunk: task.chunk,
                    done: 0,
                });
                return Some(Job { number, task, slot, start });
            }
            state = self.wait(state);
        }
    }

    /// Runs a task: its subgraph, and behind a loss all that its buffers lack. Answers the logits of a chunk at its end,
    /// where they are wanted.
    fn perform(&self, index: usize, job: &mut Job, mut multiplier: Multiplier) -> Result<Vec<f32>> {
        let Job { task, slot, .. } = job;
        let Prompt { model, rotation, cache, tokens, position, all_logits, .. } = &self.prompt;
        let probe = |moment, segment: &mut Segment| match &self.probe {
            Some(probe) => probe(ProcessorId::new(index), *task, moment, segment),
            None => Ok(()),
        };
        let pass = Pass { description: model.description(), weights: model.weights(), rotation, phase: Phase::Prefill };
        let tokens = &tokens[self.tokens_of(task.chunk)];
        let mut segments = [Segment { rows: 0..tokens.len(), position: position + self.tokens_of(task.chunk).start }];
        probe(Moment::Before, &mut segments[0])?;
        if slot.chunk != task.chunk {
            (slot.chunk, slot.done) = (task.chunk, 0);
        }
        if slot.done == 0 {
            pass.begin(tokens, &segments, &mut slot.buffers);
        }
        // Until it is through, nobody knows what the buffers hold.
        let first = std::mem::take(&mut slot.done);
        for subgraph in &self.graph.subgraphs()[first..=task.subgraph] {
            let (block, role): (usize, Role) = (subgraph.block, subgraph.role);
            pass.subgraph(block, role, &segments, cache, &mut slot.buffers, &mut multiplier, &mut None)?;
        }
        let mut logits = Vec::new();
        if *all_logits && self.is_last(*task) {
            pass.end(tokens.len(), &mut slot.buffers);
            logits = vec![0.0; tokens.len() * model.description().vocab];
            pass.logits(&mut slot.buffers, 0..tokens.len(), &mut logits);
        }
        probe(Moment::Behind, &mut segments[0])?;
        slot.done = task.subgraph + 1;
        Ok(logits)
    }

    /// Tells how a task ended.
    fn give_back(&self, index: usize, job: Job, outcome: Result<Vec<f32>, String>) {
        let Job { number, task, slot, start } = job;
        let (start, end) = (start.duration_since(self.start), self.start.elapsed());
        let mut state = self.lock();
        if state.is_lost[index] {
            // It took too long: somebody else has the chunk now.
            return;
        }
        let place = super::Executor::slot(task.chunk, state.slots.len());
        state.slots[place] = Some(slot);
        match outcome {
            Ok(logits) => {
                let (start, end) = (start.as_secs_f64(), end.as_secs_f64());
                state.schedule.complete(number);
                state.schedule.observe(number, end - start);
                state.events.push(Event { task: number, processor: ProcessorId::new(index), start, end });
                if self.is_last(task) {
                    state.is_finished[task.chunk] = true;
                    if self.prompt.all_logits {
                        state.logits[task.chunk] = logits;
                    }
                }
            }
            Err(reason) => state.lose(self, index, &reason),
        }
        self.tell();
    }

    /// Of a worker without work: looks after the others until the run is over. Only the caller's has to stay.
    fn watch(&self, index: usize, progress: &mut dyn FnMut(usize)) {
        if index > 0 {
            return;
        }
        let mut state = self.lock();
        while state.goes_on(self) {
            state = self.wait(state);
        }
        // Whoever is at a task when a run is stopped ends that one.
        while state.stopped.is_some() && self.units.iter().enumerate().any(|(other, _)| state.is_busy(other)) {
            state = self.wait(state);
        }
        let done = state.tokens_done(self);
        let is_complete = state.schedule.is_complete();
        drop(state);
        if is_complete {
            progress(done);
        }
    }

    /// Until something ends, and at times without that.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let told = self.told.load(Ordering::Relaxed);
        drop(state);
        let asleep = Instant::now() + SPIN;
        while self.told.load(Ordering::Relaxed) == told && Instant::now() < asleep {
            std::hint::spin_loop();
        }
        let mut state = self.lock();
        // It is told under the lock: nothing is missed in between.
        if self.told.load(Ordering::Relaxed) == told {
            (state, _) = self.news.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        for (index, unit) in self.units.iter().enumerate() {
            if state.is_busy(index) && state.since[index].elapsed() > self.time_out {
                unit.is_away.store(true, Ordering::Relaxed);
                let reason = format!("it did not end a task within {:.1} s", self.time_out.as_secs_f64());
                state.lose(self, index, &reason);
                self.tell();
            }
        }
        state
    }

    /// Wakes those that wait; called under the lock of the state.
    fn tell(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
        self.news.notify_all();
    }

    fn end(&self) -> Ended {
        let mut state = self.lock();
        state.has_ended = true;
        let done = state.tokens_done(self);
        // Whoever was at the last task when the run was to stop has ended it.
        let stopped = state.stopped.take().filter(|_| !state.schedule.is_complete());
        let result = stopped.map_or(Ok(()), Err);
        let slots = std::mem::take(&mut state.slots);
        Ended {
            result,
            done,
            events: std::mem::take(&mut state.events),
            losses: std::mem::take(&mut state.losses),
            logits: std::mem::take(&mut state.logits),
            buffers: slots.into_iter().flatten().map(|slot| slot.buffers).collect(),
        }
    }

    fn tokens_of(&self, chunk: usize) -> Range<usize> {
        self.graph.chunks()[chunk].clone()
    }

    fn is_last(&self, task: Task) -> bool {
        task.subgraph + 1 == self.graph.subgraphs().len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether there is something left to do, and no reason to stop.
    fn goes_on(&mut self, run: &Run) -> bool {
        if self.stopped.is_none() && run.prompt.cancel.is_cancelled() && !self.schedule.is_complete() {
            self.stopped = Some(Error::Cancelled);
            run.tell();
        }
        !self.has_ended && self.stopped.is_none() && !self.schedule.is_complete()
    }

    fn is_busy(&self, index: usize) -> bool {
        !self.is_lost[index] && self.schedule.running(ProcessorId::new(index)).is_some()
    }

    /// A processor failed: another one takes its tasks, or the run ends.
    fn lose(&mut self, run: &Run, index: usize, reason: &str) {
        let subgraphs = run.graph.subgraphs().len();
        let task = self.schedule.running(ProcessorId::new(index));
        let task = task.map(|number| Task { chunk: number / subgraphs, subgraph: number % subgraphs, part: 0 });
        let processor = run.units[index].name.clone();
        self.losses.push(Loss { processor, task, reason: reason.to_owned() });
        self.is_lost[index] = true;
        if !self.schedule.lose(ProcessorId::new(index)).orphans.is_empty() && self.stopped.is_none() {
            let reasons = self.losses.iter().map(|loss| format!("the {}: {}", label(&loss.processor), loss.reason));
            self.stopped = Some(Error::Processors { reason: reasons.collect::<Vec<_>>().join("; ") });
        }
    }

    /// Tokens of all chunks that are finished with all before them.
    fn tokens_done(&self, run: &Run) -> usize {
        let chunks = self.is_finished.iter().take_while(|finished| **finished).count();
        chunks.checked_sub(1).map_or(0, |last| run.tokens_of(last).end)
    }
}

/// Ends a run when the thread that drives it leaves, also by a panic.
struct StopOthers<'a>(&'a Run);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if !state.schedule.is_complete() && state.stopped.is_none() {
            state.stopped = Some(Error::Cancelled);
        }
        self.0.tell();
    }
}

/// What a panic says.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

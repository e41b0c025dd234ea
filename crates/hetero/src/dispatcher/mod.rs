//! The state that all workers share: batches, their graphs of tasks, and which worker may take which task.
//!
//! [`Dispatcher::next_task`] makes graphs of batches and returns a worker's next task; [`Dispatcher::complete_task`] records
//! its result. The lock is never held while a task runs. The tasks of a chunk share its buffers. If a worker hangs, it keeps the chunk's
//! buffers: other workers' results in them are discarded, and the chunk is restarted in new ones.

mod form;
mod lost;
mod plans;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use triad_plan::graph::Task;
use triad_plan::passes::{PassId, Passes};
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::{Dag, Policy};
use triad_plan::timeline::{Event, Timeline};

use triad_engine::batch::Batch;

use crate::costs::Costs;
use crate::execution::Execution;
use crate::failure::{FailureReason, ProcessorFailure};
use crate::joint::JointPlans;
use crate::machine::{Machine, Settings};
use crate::planned_orders::PlannedOrders;
use crate::steps::Steps;
use crate::task_graph::{ChunkBuffers, PendingLogits, Prompts, Step, TaskGraph, Work};
use crate::wait::WaitUse;

/// Expected seconds of a step and of a chunk before any was measured.
const STEP_SECONDS: f64 = 0.01;
const CHUNK_SECONDS: f64 = 0.1;
/// How many chunks a step waits for while prompts are computed, unless the user sets `max_stall`.
const CHUNKS_OF_STALL: f64 = 2.0;
/// Orders are planned for prompts of up to this many chunks as soon as task times are known.
const CHUNKS_AHEAD: usize = 8;
/// The weight of the latest chunk or step in the expected time of the next.
const LATEST: f64 = 0.5;

/// The state that the workers share.
pub(crate) struct Dispatcher {
    passes: Passes<Arc<Dag>>,
    live: Vec<ActiveGraph>,
    /// Batches that are in no graph yet.
    pending: VecDeque<Arc<Batch>>,
    /// Batches that are over, to be [ended](crate::shared::HeteroInner::end_batches).
    pub(crate) ended: Vec<Arc<Batch>>,
    /// Rows whose logits are in no graph yet.
    hidden: Vec<PendingLogits>,
    workers: Vec<WorkerState>,
    /// Unused buffers of chunks and of a step.
    pub(crate) spare: Vec<Arc<ChunkBuffers>>,
    pub(crate) spare_step: Option<Arc<ChunkBuffers>>,
    costs: Costs,
    joint: JointPlans,
    /// Planned orders of prompts, for [`Policy::Planned`].
    pub(crate) orders: PlannedOrders,
    policy: Policy,
    /// Expected seconds of a chunk and of a step.
    chunk_seconds: f64,
    step_seconds: f64,
    pub(crate) is_closing: bool,
    /// The time spent waiting, by processor.
    waits: Vec<WaitUse>,
    /// When workers were last notified.
    last_notified: Instant,
    /// Whether work has arrived since then for processors that had nothing to do.
    has_new_work: bool,
}

/// The state of a processor.
#[derive(Clone, Default)]
struct WorkerState {
    is_lost: bool,
    running: Option<(PassId, usize, Instant)>,
    /// The seconds of all its tasks.
    busy_seconds: f64,
}

/// A graph that is being computed.
struct ActiveGraph {
    id: PassId,
    pass: Arc<TaskGraph>,
    /// The buffers of its chunks; `None` before the first task, and after a worker hangs in them.
    slots: Vec<Option<Arc<ChunkBuffers>>>,
    /// By chunk, the number of unfinished tasks of its last subgraph.
    left: Vec<usize>,
    /// By processor, whether some tasks are placed on it.
    homes: Vec<bool>,
    /// By unfinished chunk, the rows whose logits are wanted.
    hidden: Vec<Vec<PendingLogits>>,
    events: Vec<Event>,
    failures: Vec<ProcessorFailure>,
    /// Whether some tasks have no processor left.
    is_orphaned: bool,
    /// Whether it has been the only live graph so far, except for those of logits.
    is_undisturbed: bool,
    /// The waiting times before it.
    waits: Vec<WaitUse>,
    /// The policy that selects its tasks.
    policy: Policy,
}

/// A task with its buffers.
pub(crate) struct TaskRun {
    id: PassId,
    pub(crate) number: usize,
    pub(crate) pass: Arc<TaskGraph>,
    pub(crate) slot: Option<Arc<ChunkBuffers>>,
    start: Instant,
}

impl Dispatcher {
    pub(crate) fn new(settings: &Settings, workers: usize) -> Self {
        Self {
            passes: Passes::new(workers, settings.policy, 0.0),
            live: Vec::new(),
            pending: VecDeque::new(),
            ended: Vec::new(),
            hidden: Vec::new(),
            workers: vec![WorkerState::default(); workers],
            spare: Vec::new(),
            spare_step: None,
            costs: Costs::default(),
            joint: JointPlans::default(),
            orders: PlannedOrders::default(),
            policy: settings.policy,
            chunk_seconds: CHUNK_SECONDS,
            step_seconds: STEP_SECONDS,
            is_closing: false,
            waits: vec![WaitUse::default(); workers],
            last_notified: Instant::now(),
            has_new_work: false,
        }
    }

    /// Returns the seconds that each processor has computed.
    pub(crate) fn busy_seconds(&self) -> impl Iterator<Item = f64> {
        self.workers.iter().map(|worker| worker.busy_seconds)
    }

    /// Returns whether no task of the live graphs is placed on a processor, and no batch waits.
    pub(crate) fn is_idle_for(&self, worker: usize) -> bool {
        let is_waiting = !(self.pending.is_empty() && self.hidden.is_empty());
        // Any other processor may take the tasks of a lost one.
        !is_waiting
            && self.live.iter().all(|live| !live.homes[worker])
            && !self.workers.iter().any(|worker| worker.is_lost)
    }

    /// Returns when the first of the other processors is expected to end its task; `None` if none runs one.
    pub(crate) fn next_end(&self, worker: usize) -> Option<Instant> {
        let others = self
            .workers
            .iter()
            .enumerate()
            .filter(|(other, state)| *other != worker && !state.is_lost);
        let ends = others.filter_map(|(_, state)| {
            let (id, number, since) = state.running?;
            let seconds = self.passes.schedule(id)?.expected(number);
            since.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
        });
        ends.min()
    }

    /// Records a notification. Returns whether processors that had nothing to do are to be woken, too.
    pub(crate) fn notify(&mut self) -> bool {
        self.last_notified = Instant::now();
        std::mem::take(&mut self.has_new_work) || self.is_closing
    }

    /// Adds the waiting times of a processor, which expected a notification at `expected` and may have received it.
    pub(crate) fn waited(&mut self, worker: usize, used: WaitUse, expected: Instant) {
        let apart =
            |one: Instant, other: Instant| one.saturating_duration_since(other).as_secs_f64();
        let (now, last_notified, waits) =
            (Instant::now(), self.last_notified, &mut self.waits[worker]);
        waits.waits += used.waits;
        waits.slept_seconds += used.slept_seconds;
        waits.polled_seconds += used.polled_seconds;
        waits.blocked_seconds += used.blocked_seconds;
        if used.waits > 0 {
            waits.late_seconds += apart(now, last_notified);
            waits.error_seconds += apart(last_notified, expected) + apart(expected, last_notified);
        }
    }

    /// Adds a batch.
    pub(crate) fn add_batch(&mut self, batch: &Arc<Batch>) {
        self.has_new_work = true;
        self.pending.push_back(Arc::clone(batch));
    }

    /// Returns whether there is work, but no processor runs any of it.
    pub(crate) fn is_stalled(&self) -> bool {
        let is_left = !(self.pending.is_empty() && self.hidden.is_empty() && self.live.is_empty());
        is_left
            && self
                .workers
                .iter()
                .all(|worker| worker.is_lost || worker.running.is_none())
    }

    /// Returns the next task of a processor; `None` if there is none for it now.
    pub(crate) fn next_task(&mut self, shared: &Machine, worker: usize) -> Option<TaskRun> {
        self.drop_abandoned(shared);
        if self.live.is_empty() {
            self.reset_failed(shared);
        }
        if self.is_closing || self.workers[worker].is_lost {
            return None;
        }
        self.form(shared);
        let start = Instant::now();
        let (id, number) = self
            .passes
            .next(ProcessorId::new(worker), shared.seconds(start))?;
        let live = self
            .live
            .iter_mut()
            .find(|live| live.id == id)
            .expect("passes that are scheduled are live");
        let pass = Arc::clone(&live.pass);
        let slot = pass.slot(number, live.slots.len()).map(|place| {
            let slot = live.slots[place].get_or_insert_with(|| {
                // The pass is new, or a worker hangs in the chunk's buffers.
                let is_step = matches!(pass.work, Work::Step(_));
                let spare = if is_step {
                    self.spare_step.take()
                } else {
                    self.spare.pop()
                };
                let spare = spare.filter(|slot| !is_step || slot.buffers.rows() >= pass.rows());
                let rows = if is_step {
                    pass.rows().next_power_of_two()
                } else {
                    shared.settings.chunk
                };
                let has_shadows = match is_step {
                    true => shared.steps.as_ref().is_some_and(Steps::has_shadows),
                    false => shared.tasks.has_shadows(),
                };
                let slot = spare.unwrap_or_else(|| {
                    let description = shared.forward.description();
                    Arc::new(ChunkBuffers::new(description, rows, has_shadows))
                });
                slot.reset(pass.chunk(number));
                slot
            });
            Arc::clone(slot)
        });
        self.workers[worker].running = Some((id, number, start));
        Some(TaskRun {
            id,
            number,
            pass,
            slot,
            start,
        })
    }

    /// Ends a task; `outcome` has the rows whose logits are computed next, or the reason of the failure.
    pub(crate) fn complete_task(
        &mut self,
        shared: &Machine,
        worker: usize,
        job: TaskRun,
        outcome: Result<Vec<PendingLogits>, FailureReason>,
    ) {
        // Under the lock, so that `reset_failed` keeps the processor lost until here and restores it afterwards.
        shared.workers[worker].set_away(false);
        if self.workers[worker].is_lost {
            // It exceeded the time limit, and another processor has the task now.
            return;
        }
        let whole = shared.workers[worker].whole.as_ref();
        let failure = whole.and_then(super::whole::WholeModel::take_failure);
        let failure = failure.map(|error| ProcessorFailure {
            processor: "npu".into(),
            task: None,
            reason: FailureReason::Error(Arc::new(error.into())),
        });
        if let Some(live) = self.live.iter_mut().find(|live| live.id == job.id) {
            live.failures.extend(failure);
        }
        let hidden = match outcome {
            Ok(hidden) => hidden,
            Err(reason) => return self.lose(shared, worker, reason),
        };
        let TaskRun {
            id,
            number,
            pass,
            start,
            ..
        } = job;
        let live = self
            .live
            .iter_mut()
            .find(|live| live.id == id)
            .expect("passes with running tasks are live");
        self.workers[worker].running = None;
        let (start, end) = (
            start.duration_since(pass.start).as_secs_f64(),
            pass.start.elapsed().as_secs_f64(),
        );
        live.events.push(Event {
            task: number,
            processor: ProcessorId::new(worker),
            start,
            end,
        });
        self.workers[worker].busy_seconds += end - start;
        let is_complete = self.passes.complete(id, number);
        // The tasks of a cut step keep their measured times; ranking them again takes as long as one of them.
        if !matches!(pass.work, Work::Step(Step::Cut(_))) {
            self.passes.observe(id, number, end - start);
        }
        let mut through = None;
        match &pass.work {
            Work::Prompts(prompts) => {
                let Prompts { graph, tasks, .. } = &**prompts;
                let Task {
                    chunk, subgraph, ..
                } = tasks.tasks[number].task;
                if subgraph + 1 == graph.subgraphs().len() {
                    if !hidden.is_empty() {
                        live.hidden[chunk] = hidden;
                    }
                    live.left[chunk] -= 1;
                    if live.left[chunk] == 0 {
                        self.hidden.append(&mut live.hidden[chunk]);
                        let chunks = live.left.iter().take_while(|left| **left == 0).count();
                        through = Some(
                            chunks
                                .checked_sub(1)
                                .map_or(0, |last| graph.chunks()[last].end),
                        );
                        let finished = live.left.iter().filter(|left| **left == 0).count();
                        self.chunk_seconds += LATEST * (end / finished as f64 - self.chunk_seconds);
                    }
                }
            }
            Work::Step(_) if is_complete => {
                let batch = pass.batch();
                batch.advance(batch.rows());
                for part in batch.parts() {
                    let rows = part.request.wanted_rows().len();
                    part.request.complete_logits(rows);
                }
            }
            Work::Step(_) => {}
            Work::Logits(hidden) => {
                hidden
                    .iter()
                    .for_each(|hidden| hidden.request.complete_logits(hidden.rows.len()));
            }
        }
        if is_complete {
            self.finish(shared, id);
        }
        // This may end requests: if the last chunk was finished before this one, their logits are already computed. It
        // comes after `finish`, so that their execution is known when they end.
        if let Some(rows) = through {
            pass.batch().advance(rows);
        }
        if is_complete && let Some(batch) = &pass.batch {
            self.ended.push(Arc::clone(batch));
        }
    }

    /// Ends a complete pass: frees its buffers and learns from its times.
    fn finish(&mut self, shared: &Machine, id: PassId) {
        let ActiveGraph {
            pass,
            events,
            failures,
            waits,
            policy,
            is_undisturbed,
            ..
        } = self.remove(shared, id);
        let seconds = pass.start.elapsed().as_secs_f64();
        match &pass.work {
            Work::Prompts(prompts) => {
                let Prompts {
                    graph,
                    tasks,
                    planned,
                    ..
                } = &**prompts;
                let batch = pass.batch();
                let position = batch.position();
                let waits = self
                    .waits
                    .iter()
                    .zip(waits)
                    .map(|(now, before)| now.since(before))
                    .collect();
                let timeline = Timeline::new(events, shared.workers.len());
                let (graph, tasks) = (graph.clone(), Arc::clone(tasks));
                let execution = Execution {
                    start: pass.start,
                    graph,
                    tasks,
                    position,
                    policy,
                    timeline,
                    waits,
                    failures,
                };
                // Otherwise some tasks were skipped, and others did the work of several.
                let is_whole = execution.failures.is_empty()
                    && !batch.parts().iter().any(|part| part.request.is_cancelled());
                let measured =
                    (is_whole && is_undisturbed && batch.is_one_prompt()).then_some(seconds);
                planned
                    .iter()
                    .for_each(|planned| self.joint.ran(planned, pass.rows(), measured));
                if is_whole {
                    self.costs.learn(&shared.processors, [&execution]);
                    if !execution.tasks.dag.has_one_home() {
                        self.want_order(shared, pass.rows(), position);
                    }
                }
                let _ = batch.report().set(Box::new(execution));
            }
            Work::Step(step) => {
                if failures.is_empty() {
                    step.observe(seconds);
                }
                self.step_seconds += LATEST * (seconds - self.step_seconds);
            }
            Work::Logits(_) => {}
        }
    }

    /// Removes a graph from the live ones, and makes its buffers available.
    fn remove(&mut self, shared: &Machine, id: PassId) -> ActiveGraph {
        let place = self
            .live
            .iter()
            .position(|live| live.id == id)
            .expect("the pass is live");
        let mut live = self.live.swap_remove(place);
        let is_step = matches!(live.pass.work, Work::Step(_));
        for slot in live.slots.iter_mut().filter_map(Option::take) {
            if is_step {
                self.spare_step = Some(slot);
            } else {
                self.spare.push(slot);
            }
        }
        shared
            .is_computing
            .store(!self.live.is_empty(), Ordering::Relaxed);
        live
    }

    fn is_running(&self, id: PassId) -> bool {
        self.workers.iter().any(|worker| {
            !worker.is_lost && worker.running.is_some_and(|(running, ..)| running == id)
        })
    }
}

//! What the workers of an engine share: who waits for what, what is being computed, and who may take which task.
//!
//! Everything here happens under one lock, which nobody holds while a task runs. Whoever runs a task of a chunk shares its
//! buffers; those of a chunk that a processor hangs with are left to it. Others that are at pieces in them end these, to no avail;
//! whoever takes the next task of the chunk gets other buffers, and begins it anew in them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use triad_kernels::Phase;
use triad_kernels::lock;
use triad_plan::graph::Task;
use triad_plan::joint::Kind;
use triad_plan::passes::{PassId, Passes, Urgency};
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::{Dag, Node, Policy};
use triad_plan::timeline::{Event, Timeline};

use super::joint::{JointPlans, Planned};
use super::orders::Orders;
use super::pass::{Hidden, Pass, Prompts, Slot, Step, Work};
use super::request::{Request, SequenceId};
use super::steps::Steps;
use super::wait::WaitUse;
use super::{Costs, Execution, Settings, Shared};
use crate::error::{Error, FailureReason, ProcessorFailure, ProcessorFailures, Result};

/// How long a step waits for the sequences of the one before it, as a part of what that took, and at most.
const PATIENCE: (f64, Duration) = (0.125, Duration::from_millis(4));
/// Seconds that a step and a chunk are expected to take before there was one.
const STEP_SECONDS: f64 = 0.01;
const CHUNK_SECONDS: f64 = 0.1;
/// Chunks whose time a step waits for beside prompts, unless the user gives the time.
const CHUNKS_OF_STALL: f64 = 2.0;
/// Prompts of up to so many chunks have their orders planned as soon as it is known what tasks take.
const CHUNKS_AHEAD: usize = 8;
/// How much the latest chunk or step counts for what is expected of the next.
const LATEST: f64 = 0.5;

/// What the workers share.
pub(super) struct State {
    passes: Passes<Arc<Dag>>,
    live: Vec<Live>,
    /// Requests that no pass has yet: of prompts, and of rows that decode.
    prompts: VecDeque<Arc<Request>>,
    rows: VecDeque<Arc<Request>>,
    /// Rows whose logits no pass has yet.
    hidden: Vec<Hidden>,
    gang: Gang,
    units: Vec<UnitState>,
    /// Buffers of chunks and of a step that nobody uses.
    pub(super) spare: Vec<Arc<Slot>>,
    pub(super) spare_step: Option<Arc<Slot>>,
    costs: Costs,
    joint: JointPlans,
    /// Of prompts, by [`Policy::Planned`].
    pub(super) orders: Orders,
    policy: Policy,
    /// Expected seconds of a chunk, and of a step.
    chunk_seconds: f64,
    step_seconds: f64,
    pub(super) steps: u64,
    pub(super) is_closing: bool,
    /// What waiting took, by processor.
    waits: Vec<WaitUse>,
    /// When something was told last.
    told: Instant,
    /// Something has come since then for processors that had nothing to do.
    has_news: bool,
}

/// What a processor is at.
#[derive(Clone, Default)]
struct UnitState {
    is_lost: bool,
    running: Option<(PassId, usize, Instant)>,
    /// What its tasks have taken in all.
    busy_seconds: f64,
}

/// A pass that is being computed.
struct Live {
    id: PassId,
    pass: Arc<Pass>,
    /// `None` before the first task, or when a processor hangs with them.
    slots: Vec<Option<Arc<Slot>>>,
    /// Of each chunk, the tasks of its last subgraph that are not done.
    left: Vec<usize>,
    /// Of each processor, whether some of its tasks are for it.
    homes: Vec<bool>,
    /// Of each chunk that is not through, rows whose logits are wanted.
    hidden: Vec<Vec<Hidden>>,
    events: Vec<Event>,
    failures: Vec<ProcessorFailure>,
    /// Some of its tasks are for no processor that is left.
    is_orphaned: bool,
    /// No other pass but of logits has been live since it is.
    is_undisturbed: bool,
    /// What waiting had taken before it.
    waits: Vec<WaitUse>,
    /// What decides between its tasks.
    policy: Policy,
}

/// The sequences of the latest step: the next one waits a moment for those that are sampling, so that weights are read
/// once for all of them.
#[derive(Default)]
struct Gang {
    missing: Vec<SequenceId>,
    until: Option<Instant>,
}

/// A task with all that it needs.
pub(super) struct Job {
    id: PassId,
    pub(super) number: usize,
    pub(super) pass: Arc<Pass>,
    pub(super) slot: Option<Arc<Slot>>,
    start: Instant,
}

impl State {
    pub(super) fn new(shared: &Settings, units: usize) -> Self {
        Self {
            passes: Passes::new(units, shared.policy, 0.0),
            live: Vec::new(),
            prompts: VecDeque::new(),
            rows: VecDeque::new(),
            hidden: Vec::new(),
            gang: Gang::default(),
            units: vec![UnitState::default(); units],
            spare: Vec::new(),
            spare_step: None,
            costs: Costs::default(),
            joint: JointPlans::default(),
            orders: Orders::default(),
            policy: shared.policy,
            chunk_seconds: CHUNK_SECONDS,
            step_seconds: STEP_SECONDS,
            steps: 0,
            is_closing: false,
            waits: vec![WaitUse::default(); units],
            told: Instant::now(),
            has_news: false,
        }
    }

    /// Seconds that each processor has computed.
    pub(super) fn busy_seconds(&self) -> impl Iterator<Item = f64> {
        self.units.iter().map(|unit| unit.busy_seconds)
    }

    /// Whether no task of what is being computed is for a processor, and nothing waits that could be.
    pub(super) fn has_nothing_for(&self, unit: usize) -> bool {
        let is_waiting =
            !(self.prompts.is_empty() && self.rows.is_empty() && self.hidden.is_empty());
        // The tasks of a processor that is lost may be for any other one.
        !is_waiting
            && self.live.iter().all(|live| !live.homes[unit])
            && !self.units.iter().any(|unit| unit.is_lost)
    }

    /// When the first task that another processor runs is expected to end; `None` where no other one runs any.
    pub(super) fn next_end(&self, unit: usize) -> Option<Instant> {
        let others = self
            .units
            .iter()
            .enumerate()
            .filter(|(other, state)| *other != unit && !state.is_lost);
        let ends = others.filter_map(|(_, state)| {
            let (id, number, since) = state.running?;
            let seconds = self.passes.schedule(id)?.expected(number);
            since.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
        });
        ends.min()
    }

    /// Something is told now. Returns whether it is news for processors that had nothing to do, too.
    pub(super) fn tell(&mut self) -> bool {
        self.told = Instant::now();
        std::mem::take(&mut self.has_news) || self.is_closing
    }

    /// A processor has waited for something that was expected at a time, and been told or not.
    pub(super) fn waited(&mut self, unit: usize, used: WaitUse, expected: Instant) {
        let apart =
            |one: Instant, other: Instant| one.saturating_duration_since(other).as_secs_f64();
        let (now, told, waits) = (Instant::now(), self.told, &mut self.waits[unit]);
        waits.waits += used.waits;
        waits.slept_seconds += used.slept_seconds;
        waits.polled_seconds += used.polled_seconds;
        waits.blocked_seconds += used.blocked_seconds;
        if used.waits > 0 {
            waits.late_seconds += apart(now, told);
            waits.error_seconds += apart(told, expected) + apart(expected, told);
        }
    }

    /// Takes a request.
    pub(super) fn submit(&mut self, request: &Arc<Request>) {
        self.forget(request.sequence);
        self.has_news = true;
        match request.phase {
            Phase::Prefill => self.prompts.push_back(Arc::clone(request)),
            Phase::Decode => self.rows.push_back(Arc::clone(request)),
        }
    }

    /// No step waits for this sequence.
    pub(super) fn forget(&mut self, sequence: SequenceId) {
        self.gang.missing.retain(|other| *other != sequence);
    }

    /// Whether something is to be done that no processor is at.
    pub(super) fn is_left_alone(&self) -> bool {
        let is_left = !(self.prompts.is_empty()
            && self.rows.is_empty()
            && self.hidden.is_empty()
            && self.live.is_empty());
        is_left
            && self
                .units
                .iter()
                .all(|unit| unit.is_lost || unit.running.is_none())
    }

    /// When somebody has to look again though nothing has happened.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.gang.until.filter(|_| !self.rows.is_empty())
    }

    /// The next task of a processor; `None` if there is none for it now.
    pub(super) fn take(&mut self, shared: &Shared, unit: usize) -> Option<Job> {
        self.drop_abandoned(shared);
        if self.live.is_empty() {
            self.begin_anew(shared);
        }
        if self.is_closing || self.units[unit].is_lost {
            return None;
        }
        self.form(shared);
        let start = Instant::now();
        let (id, number) = self
            .passes
            .next(ProcessorId::new(unit), shared.seconds(start))?;
        let live = self
            .live
            .iter_mut()
            .find(|live| live.id == id)
            .expect("passes that are scheduled are live");
        let pass = Arc::clone(&live.pass);
        let slot = pass.slot(number, live.slots.len()).map(|place| {
            let slot = live.slots[place].get_or_insert_with(|| {
                // A new pass, or a processor hangs with those of this chunk.
                let is_step = matches!(pass.work, Work::Step(_));
                let spare = if is_step {
                    self.spare_step.take()
                } else {
                    self.spare.pop()
                };
                let spare = spare.filter(|slot| !is_step || slot.buffers.rows >= pass.rows());
                let rows = if is_step {
                    pass.rows().next_power_of_two()
                } else {
                    shared.settings.chunk
                };
                let has_shadows = match is_step {
                    true => shared.steps.as_ref().is_some_and(Steps::has_shadows),
                    false => shared.tasks.has_shadows(),
                };
                let slot = spare.unwrap_or_else(|| Arc::new(Slot::new(shared, rows, has_shadows)));
                slot.reset(pass.chunk(number));
                slot
            });
            Arc::clone(slot)
        });
        self.units[unit].running = Some((id, number, start));
        Some(Job {
            id,
            number,
            pass,
            slot,
            start,
        })
    }

    /// A job has ended; `outcome` is what it returned, or why it failed.
    pub(super) fn give_back(
        &mut self,
        shared: &Shared,
        unit: usize,
        job: Job,
        outcome: Result<Vec<Hidden>, FailureReason>,
    ) {
        // Under the lock: until here it stays lost, whoever begins anew, and it is not lost behind this.
        shared.units[unit].set_away(false);
        if self.units[unit].is_lost {
            // It took too long: somebody else has the task now.
            return;
        }
        let hidden = match outcome {
            Ok(hidden) => hidden,
            Err(reason) => return self.lose(shared, unit, reason),
        };
        let Job {
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
        self.units[unit].running = None;
        let (start, end) = (
            start.duration_since(pass.start).as_secs_f64(),
            pass.start.elapsed().as_secs_f64(),
        );
        live.events.push(Event {
            task: number,
            processor: ProcessorId::new(unit),
            start,
            end,
        });
        self.units[unit].busy_seconds += end - start;
        let is_complete = self.passes.complete(id, number);
        // The tasks of a cut step are expected to take what was measured; to rank them anew takes as long as one of them.
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
                pass.advance(pass.rows());
                pass.requests
                    .iter()
                    .for_each(|request| request.complete_logits(request.wanted_rows().len()));
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
        // This may end requests, whose logits are computed already where the last chunk was through before this one; by
        // then it is known how they were computed.
        if let Some(rows) = through {
            pass.advance(rows);
        }
        if is_complete {
            // Behind the advance, which one that was cancelled just before does not take: nobody else ends it.
            for request in pass
                .requests
                .iter()
                .filter(|request| request.is_cancelled())
            {
                request.fail(Error::Cancelled);
            }
        }
    }

    /// A pass is complete: its buffers are free, and what was seen of it is kept.
    fn finish(&mut self, shared: &Shared, id: PassId) {
        let Live {
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
                let position = pass.requests.first().map_or(0, |request| request.position);
                let waits = self
                    .waits
                    .iter()
                    .zip(waits)
                    .map(|(now, before)| now.since(before))
                    .collect();
                let timeline = Timeline::new(events, shared.units.len());
                let (graph, tasks) = (graph.clone(), Arc::clone(tasks));
                let execution = Execution {
                    graph,
                    tasks,
                    position,
                    policy,
                    timeline,
                    waits,
                    failures,
                };
                // Otherwise some tasks were skipped, and others took the time of more than themselves.
                let is_whole = execution.failures.is_empty()
                    && !pass.requests.iter().any(|one| one.is_cancelled());
                let measured =
                    (is_whole && is_undisturbed && pass.is_one_prompt()).then_some(seconds);
                planned
                    .iter()
                    .for_each(|planned| self.joint.ran(planned, pass.rows(), measured));
                if is_whole {
                    self.costs.learn(&shared.processors, [&execution]);
                    if !execution.tasks.dag.has_one_home() {
                        self.want_order(shared, pass.rows(), position);
                    }
                }
                let _ = pass.execution.set(execution);
            }
            Work::Step(step) => {
                if failures.is_empty() {
                    step.observe(seconds);
                }
                self.steps += 1;
                self.step_seconds += LATEST * (seconds - self.step_seconds);
                let patience = Duration::from_secs_f64(PATIENCE.0 * seconds).min(PATIENCE.1);
                let missing = pass
                    .requests
                    .iter()
                    .map(|request| request.sequence)
                    .collect();
                self.gang = Gang {
                    missing,
                    until: Some(Instant::now() + patience),
                };
            }
            Work::Logits(_) => {}
        }
    }

    /// Takes a pass from the live ones; its buffers can be used again.
    fn remove(&mut self, shared: &Shared, id: PassId) -> Live {
        let place = self
            .live
            .iter()
            .position(|live| live.id == id)
            .expect("it is live");
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

    /// Ends what nobody waits for any more, and what no processor is left for.
    fn drop_abandoned(&mut self, shared: &Shared) {
        for queue in [&mut self.prompts, &mut self.rows] {
            queue.retain(|request| {
                let is_cancelled = request.is_cancelled();
                if is_cancelled {
                    request.fail(Error::Cancelled);
                }
                !is_cancelled
            });
        }
        for live in &mut self.live {
            live.is_orphaned |= !self.passes.orphans(live.id).is_empty();
        }
        let abandoned = self
            .live
            .iter()
            .filter(|live| live.is_orphaned || live.pass.is_abandoned());
        for id in abandoned.map(|live| live.id).collect::<Vec<_>>() {
            self.passes.cancel(id);
            // Whoever is at a task of it ends that one.
            if !self.is_running(id) {
                let live = self.remove(shared, id);
                for request in &live.pass.requests {
                    let is_cancelled = !live.is_orphaned || request.is_cancelled();
                    request.fail(if is_cancelled {
                        Error::Cancelled
                    } else {
                        live.error()
                    });
                }
                self.hidden.retain(|hidden| !hidden.request.is_cancelled());
            }
        }
    }

    fn is_running(&self, id: PassId) -> bool {
        self.units
            .iter()
            .any(|unit| !unit.is_lost && unit.running.is_some_and(|(running, ..)| running == id))
    }

    /// Where nothing is being computed, processors that failed are tried again.
    fn begin_anew(&mut self, shared: &Shared) {
        let was_lost = self.units.iter().any(|unit| unit.is_lost);
        let is_away = |unit: usize| shared.units[unit].is_away();
        if was_lost || self.passes.policy() != self.policy {
            self.passes = Passes::new(self.units.len(), self.policy, 0.0);
            for unit in 0..self.units.len() {
                let state = &mut self.units[unit];
                (state.is_lost, state.running) = (is_away(unit), None);
                if is_away(unit) {
                    self.passes.lose(ProcessorId::new(unit));
                }
            }
        }
    }

    /// Makes passes of what waits.
    fn form(&mut self, shared: &Shared) {
        if self.prompts.is_empty() && self.rows.is_empty() && self.hidden.is_empty() {
            return;
        }
        let stall = shared.settings.max_stall.map(|stall| stall.as_secs_f64());
        self.passes
            .set_max_stall(stall.unwrap_or(CHUNKS_OF_STALL * self.chunk_seconds));
        self.form_logits(shared);
        self.form_step(shared);
        self.form_prompts(shared);
    }

    /// The logits of all rows that have been through all blocks.
    fn form_logits(&mut self, shared: &Shared) {
        if self.hidden.is_empty() {
            return;
        }
        let hidden = std::mem::take(&mut self.hidden);
        let dag = self.chain(shared, 1, 0.1 * self.step_seconds);
        let pass = Pass::new(Vec::new(), |_, _| Work::Logits(hidden));
        self.add(
            shared,
            pass,
            (dag, self.policy),
            0,
            Urgency::Decode { since: f64::MIN },
        );
    }

    /// A step of as many waiting rows as one may have, unless there is one, or sequences of the latest one are missing.
    fn form_step(&mut self, shared: &Shared) {
        let now = Instant::now();
        let is_stepping = self
            .live
            .iter()
            .any(|live| matches!(live.pass.work, Work::Step(_)));
        let is_whole =
            self.gang.missing.is_empty() || self.gang.until.is_none_or(|until| until <= now);
        if is_stepping || !is_whole || self.rows.is_empty() {
            return;
        }
        self.gang = Gang::default();
        let (mut requests, mut rows) = (Vec::<Arc<Request>>::new(), 0);
        while let Some(request) = self.rows.front()
            && requests.first().is_none_or(|first| {
                rows + request.tokens.len() <= shared.settings.most_rows
                    && first.may_share_a_pass(shared, request)
            })
        {
            rows += request.tokens.len();
            requests.extend(self.rows.pop_front());
        }
        let since = requests
            .iter()
            .map(|request| request.arrived)
            .min()
            .unwrap_or(now);
        // Beside prompts, each part would wait for a task of theirs.
        let is_alone = self.live.is_empty()
            && self.prompts.is_empty()
            && !self.units.iter().any(|unit| unit.is_lost);
        let cut = shared.steps.as_ref().filter(|_| is_alone);
        let cut =
            cut.and_then(|steps| steps.of(shared.model.description(), &shared.processors, rows));
        let (step, dag) = match cut {
            Some(cut) if lock(&cut.trial).next_is_cut() => {
                (Step::Cut(Arc::clone(&cut)), Arc::clone(&cut.dag))
            }
            in_place_of => {
                // Where others can run in between, they may.
                let tasks = if shared.units.len() > 1 {
                    shared.model.description().blocks.len()
                } else {
                    1
                };
                (
                    Step::Blocks { tasks, in_place_of },
                    self.chain(shared, tasks, self.step_seconds / tasks as f64),
                )
            }
        };
        let pass = Pass::new(requests, |_, _| Work::Step(step));
        self.add(
            shared,
            pass,
            (dag, self.policy),
            1,
            Urgency::Decode {
                since: shared.seconds(since),
            },
        );
    }

    /// All prompts that wait. A second pass can begin where the first one's last chunks leave a processor idle.
    fn form_prompts(&mut self, shared: &Shared) {
        let most = shared.units.len().min(2);
        let live = self
            .live
            .iter()
            .filter(|live| matches!(live.pass.work, Work::Prompts(_)))
            .count();
        let is_cut = |live: &Live| matches!(live.pass.work, Work::Step(Step::Cut(_)));
        if live >= most || self.prompts.is_empty() || self.live.iter().any(is_cut) {
            return;
        }
        let mut requests: Vec<_> = self.prompts.drain(..).collect();
        let others = requests
            .iter()
            .position(|request| !request.may_share_a_pass(shared, &requests[0]));
        self.prompts.extend(
            requests
                .drain(others.unwrap_or(requests.len())..)
                .collect::<Vec<_>>(),
        );
        let pass = Pass::new(requests, |rows, position| {
            Work::Prompts(Box::new(self.plan(shared, rows, position)))
        });
        for request in &pass.requests {
            request.set_execution(&pass.execution);
        }
        let Work::Prompts(prompts) = &pass.work else {
            unreachable!("prompts were planned")
        };
        let (dag, policy) = self.scheduled(prompts.tasks.dag.clone(), self.policy);
        if policy != self.policy && !dag.has_one_home() {
            self.want_order(shared, pass.rows(), pass.requests[0].position);
        }
        let slots = prompts.slots;
        self.add(
            shared,
            pass,
            (Arc::new(dag), policy),
            slots,
            Urgency::Prefill,
        );
    }

    /// The tasks of a prompt with their order, where one is followed and planned, and the policy by which they run: until
    /// there is an order, and where one processor computes all of it, the one that a schedule falls back to.
    pub(super) fn scheduled(&self, dag: Dag, policy: Policy) -> (Dag, Policy) {
        match policy {
            Policy::Planned if dag.has_one_home() => (dag, Policy::CriticalPath),
            Policy::Planned => match self.orders.of(&dag) {
                Some(order) => (dag.with_plan(order, 0.0), policy),
                None => (dag, Policy::CriticalPath),
            },
            policy => (dag, policy),
        }
    }

    fn add(
        &mut self,
        shared: &Shared,
        pass: Pass,
        (dag, policy): (Arc<Dag>, Policy),
        slots: usize,
        urgency: Urgency,
    ) {
        let left: Vec<_> = match &pass.work {
            Work::Prompts(prompts) => {
                let Prompts { graph, tasks, .. } = &**prompts;
                let last = graph.subgraphs().len() - 1;
                (0..graph.chunks().len())
                    .map(|chunk| tasks.pieces(chunk, last).len())
                    .collect()
            }
            Work::Step(_) | Work::Logits(_) => Vec::new(),
        };
        let mut homes = vec![false; self.units.len()];
        (0..dag.len()).for_each(|task| homes[dag.home(task).index()] = true);
        let id = self.passes.add(dag, urgency);
        self.has_news = true;
        let away = (0..self.units.len()).filter(|unit| self.units[*unit].is_lost);
        let failures = away.map(|unit| ProcessorFailure {
            processor: shared.units[unit].name.clone(),
            task: None,
            reason: FailureReason::Away,
        });
        let is_undisturbed = self.live.iter().all(|live| live.pass.is_logits());
        self.live
            .iter_mut()
            .for_each(|live| live.is_undisturbed &= pass.is_logits());
        self.live.push(Live {
            id,
            pass: Arc::new(pass),
            slots: vec![None; slots],
            hidden: left.iter().map(|_| Vec::new()).collect(),
            left,
            homes,
            events: Vec::new(),
            failures: failures.collect(),
            is_orphaned: false,
            is_undisturbed,
            waits: self.waits.clone(),
            policy,
        });
        shared.is_computing.store(true, Ordering::Relaxed);
    }

    /// `tasks` tasks one after the other, on the processor that computes in float.
    fn chain(&self, shared: &Shared, tasks: usize, seconds: f64) -> Arc<Dag> {
        let seconds = vec![Some(seconds); self.units.len()];
        let node = |task: usize| Node {
            home: shared.float_unit,
            seconds: seconds.clone(),
            predecessors: task.checked_sub(1).into_iter().collect(),
            kind: 0,
        };
        Arc::new(Dag::from_nodes(self.units.len(), (0..tasks).map(node)))
    }

    /// Goes on with what tasks take from an earlier run.
    pub(super) fn set_costs(&mut self, shared: &Shared, costs: Costs) {
        self.costs = costs;
        self.joint.clear();
        self.want_orders(shared);
    }

    /// Another policy, as soon as nothing is being computed.
    pub(super) fn set_policy(&mut self, shared: &Shared, policy: Policy) {
        if self.policy != policy {
            self.policy = policy;
            self.want_orders(shared);
        }
    }

    /// Has orders planned for prompts of few whole chunks, where what they take is known and who computes them does not
    /// depend on the prompt.
    fn want_orders(&mut self, shared: &Shared) {
        let Settings { context, chunk, .. } = shared.settings;
        if shared.tasks.joint.is_none() && self.costs.seen().next().is_some() {
            (2..=(context / chunk).min(CHUNKS_AHEAD))
                .for_each(|chunks| self.want_order(shared, chunks * chunk, 0));
        }
    }

    /// Has an order planned for prompts of so many rows at a position, if there is none; nothing where none are followed.
    pub(super) fn want_order(&mut self, shared: &Shared, rows: usize, position: usize) {
        if self.policy == Policy::Planned && self.units.len() > 1 {
            self.orders.want(rows, position);
            shared.planning.notify_all();
        }
    }

    /// What tasks have taken.
    pub(super) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The plan of a prompt, where prompts are planned.
    pub(super) fn joint_plan(
        &mut self,
        shared: &Shared,
        rows: usize,
        position: usize,
    ) -> Option<Planned> {
        self.joint
            .plan(shared, &self.costs, self.policy, (rows, position))
    }

    /// The kind of plans of prompts from now on, or the fastest.
    pub(super) fn set_plan_kind(&mut self, kind: Option<Kind>) {
        self.joint.set_kind(kind);
    }

    /// What is to be done for prompts of so many rows, the first of them at `position`.
    pub(super) fn plan(&mut self, shared: &Shared, rows: usize, position: usize) -> Prompts {
        let planned = self.joint_plan(shared, rows, position);
        Prompts::new(shared, &self.costs, planned.as_ref(), (rows, position))
    }

    /// A processor failed: others take its tasks, or all that is being computed ends.
    fn lose(&mut self, shared: &Shared, unit: usize, reason: FailureReason) {
        let running = self.units[unit].running.take();
        self.units[unit].is_lost = true;
        self.has_news = true;
        for live in &mut self.live {
            let task = running
                .filter(|(id, ..)| *id == live.id)
                .and_then(|(_, number, _)| match &live.pass.work {
                    Work::Prompts(prompts) => Some(prompts.tasks.tasks[number].task),
                    Work::Step(_) | Work::Logits(_) => None,
                });
            let processor = shared.units[unit].name.clone();
            live.failures.push(ProcessorFailure {
                processor,
                task,
                reason: reason.clone(),
            });
        }
        self.passes.lose(ProcessorId::new(unit));
        if self.units.iter().all(|unit| unit.is_lost) {
            let ids: Vec<_> = self.live.iter().map(|live| live.id).collect();
            for id in ids {
                let live = self.remove(shared, id);
                let of_logits = if let Work::Logits(hidden) = &live.pass.work {
                    &hidden[..]
                } else {
                    &[]
                };
                let requests = live
                    .pass
                    .requests
                    .iter()
                    .chain(of_logits.iter().map(|hidden| &hidden.request));
                requests.for_each(|request| request.fail(live.error()));
            }
            let failure = ProcessorFailure {
                processor: shared.units[unit].name.clone(),
                task: None,
                reason,
            };
            for hidden in self.hidden.drain(..) {
                hidden.request.fail(Error::Processors {
                    failures: ProcessorFailures(vec![failure.clone()]),
                });
            }
        }
    }

    /// Loses every processor that has been at a task for longer than `time_out`. Returns whether there was one.
    pub(super) fn lose_hung(&mut self, shared: &Shared) -> bool {
        let time_out = shared.settings.time_out;
        let hung = (0..self.units.len()).filter(|unit| {
            let UnitState {
                is_lost, running, ..
            } = &self.units[*unit];
            !is_lost && running.is_some_and(|(.., since)| since.elapsed() > time_out)
        });
        let hung: Vec<_> = hung.collect();
        for unit in &hung {
            shared.units[*unit].set_away(true);
            if let Some((id, number, _)) = self.units[*unit].running
                && let Some(live) = self.live.iter_mut().find(|live| live.id == id)
            {
                live.pass
                    .requests
                    .iter()
                    .for_each(|request| request.taint());
                if let Some(place) = live.pass.slot(number, live.slots.len()) {
                    live.slots[place] = None;
                }
            }
            self.lose(shared, *unit, FailureReason::TimeOut(time_out));
        }
        !hung.is_empty()
    }

    /// Ends what waits where every processor hangs: nobody else would.
    pub(super) fn fail_unserved(&mut self, shared: &Shared) {
        if shared.units.iter().all(super::Unit::is_away) {
            for request in self.prompts.drain(..).chain(self.rows.drain(..)) {
                let all = shared.units.iter().map(|unit| ProcessorFailure {
                    processor: unit.name.clone(),
                    task: None,
                    reason: FailureReason::Away,
                });
                request.fail(Error::Processors {
                    failures: ProcessorFailures(all.collect()),
                });
            }
        }
    }
}

impl Live {
    /// What happened to each processor that was lost.
    fn error(&self) -> Error {
        Error::Processors {
            failures: ProcessorFailures(self.failures.clone()),
        }
    }
}

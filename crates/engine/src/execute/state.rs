//! What the workers of an engine share: who waits for what, what is being computed, and who may take which task.
//!
//! Everything here happens under one lock, which nobody holds while a task runs. The buffers of a chunk go to whoever
//! runs a task of it, and come back with it: within a chunk tasks follow each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use triad_kernels::Phase;
use triad_plan::graph::{Graph, Task};
use triad_plan::passes::{PassId, Passes, Urgency};
use triad_plan::placement::Placement;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::{Dag, Node};
use triad_plan::timeline::{Event, Timeline};

use super::pass::{Hidden, Pass, Slot, Work};
use super::request::{Request, SequenceId};
use super::{Costs, Execution, Loss, Shared, costs};
use crate::error::{Error, Result};

/// How long a step waits for the sequences of the one before it, as a part of what that took, and at most.
const PATIENCE: (f64, Duration) = (0.125, Duration::from_millis(4));
/// Seconds that a step and a chunk are expected to take before there was one.
const STEP_SECONDS: f64 = 0.01;
const CHUNK_SECONDS: f64 = 0.1;
/// Chunks whose time a step waits for beside prompts, unless the user gives the time.
const CHUNKS_OF_STALL: f64 = 2.0;
/// How much the latest chunk or step counts for what is expected of the next.
const LATEST: f64 = 0.5;

/// What the workers share.
pub(super) struct State {
    passes: Passes<Dag>,
    live: Vec<Live>,
    /// Requests that no pass has yet: of prompts, and of rows that decode.
    prompts: VecDeque<Arc<Request>>,
    rows: VecDeque<Arc<Request>>,
    /// Rows whose logits no pass has yet.
    hidden: Vec<Hidden>,
    gang: Gang,
    units: Vec<UnitState>,
    /// Buffers of chunks and of a step that nobody uses.
    pub(super) spare: Vec<Slot>,
    pub(super) spare_step: Option<Slot>,
    pub(super) costs: Costs,
    pub(super) policy: triad_plan::schedule::Policy,
    /// Expected seconds of a chunk, and of a step.
    chunk_seconds: f64,
    step_seconds: f64,
    pub(super) steps: u64,
    pub(super) is_closing: bool,
}

/// What a processor is at.
#[derive(Clone, Default)]
struct UnitState {
    is_lost: bool,
    running: Option<(PassId, usize, Instant)>,
}

/// A pass that is being computed.
struct Live {
    id: PassId,
    pass: Arc<Pass>,
    dag: Dag,
    /// `None` while a task has them, or before the first one.
    slots: Vec<Option<Slot>>,
    /// Chunks that are through.
    is_finished: Vec<bool>,
    events: Vec<Event>,
    losses: Vec<Loss>,
    /// Some of its tasks are for no processor that is left.
    is_orphaned: bool,
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
    pub(super) slot: Option<Slot>,
    start: Instant,
}

impl State {
    pub(super) fn new(shared: &super::Settings, units: usize) -> Self {
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
            policy: shared.policy,
            chunk_seconds: CHUNK_SECONDS,
            step_seconds: STEP_SECONDS,
            steps: 0,
            is_closing: false,
        }
    }

    /// Takes a request.
    pub(super) fn submit(&mut self, request: &Arc<Request>) {
        self.forget(request.sequence);
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
        let is_left =
            !(self.prompts.is_empty() && self.rows.is_empty() && self.hidden.is_empty() && self.live.is_empty());
        is_left && self.units.iter().all(|unit| unit.is_lost || unit.running.is_none())
    }

    /// When somebody has to look again though nothing has happened.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.gang.until.filter(|_| !self.rows.is_empty())
    }

    /// The next task of a processor; `None` if there is none for it now.
    pub(super) fn take(&mut self, shared: &Shared, unit: usize) -> Option<Job> {
        self.drop_abandoned();
        if self.live.is_empty() {
            self.begin_anew(shared);
        }
        if self.is_closing || self.units[unit].is_lost {
            return None;
        }
        self.form(shared);
        let start = Instant::now();
        let (id, number) = self.passes.next(ProcessorId::new(unit), shared.seconds(start))?;
        let live = self.live.iter_mut().find(|live| live.id == id).expect("passes that are scheduled are live");
        let pass = Arc::clone(&live.pass);
        let slot = pass.slot(number, live.slots.len()).map(|place| {
            live.slots[place].take().unwrap_or_else(|| {
                // A new pass, or a lost processor has those of this chunk.
                let is_step = matches!(pass.work, Work::Step(_));
                let spare = if is_step { self.spare_step.take() } else { self.spare.pop() };
                let spare =
                    spare.filter(|slot| !is_step || slot.buffers.rows(shared.model.description()) >= pass.rows());
                let rows = if is_step { pass.rows().next_power_of_two() } else { shared.settings.chunk };
                let mut slot = spare.unwrap_or_else(|| Slot::new(shared, rows));
                slot.reset(pass.chunk(number));
                slot
            })
        });
        self.units[unit].running = Some((id, number, start));
        Some(Job { id, number, pass, slot, start })
    }

    /// A job has ended; `outcome` is what it returned, or why it failed.
    pub(super) fn give_back(&mut self, shared: &Shared, unit: usize, job: Job, outcome: Result<Vec<Hidden>, String>) {
        // Under the lock: until here it stays lost, whoever begins anew, and it is not lost behind this.
        shared.units[unit].set_away(false);
        if self.units[unit].is_lost {
            // It took too long: somebody else has the task now.
            return;
        }
        let Job { id, number, pass, slot, start } = job;
        let live = self.live.iter_mut().find(|live| live.id == id).expect("passes with running tasks are live");
        if let (Some(slot), Some(place)) = (slot, pass.slot(number, live.slots.len())) {
            live.slots[place] = Some(slot);
        }
        let hidden = match outcome {
            Ok(hidden) => hidden,
            Err(reason) => return self.lose(shared, unit, &reason),
        };
        self.units[unit].running = None;
        let (start, end) = (start.duration_since(pass.start).as_secs_f64(), pass.start.elapsed().as_secs_f64());
        live.events.push(Event { task: number, processor: ProcessorId::new(unit), start, end });
        self.hidden.extend(hidden);
        self.passes.observe(id, number, end - start);
        let is_complete = self.passes.complete(id, number);
        match &pass.work {
            Work::Prompts(graph) => {
                let Task { chunk, subgraph, .. } = Pass::task(graph, number);
                if subgraph + 1 == graph.subgraphs().len() {
                    live.is_finished[chunk] = true;
                    let chunks = live.is_finished.iter().take_while(|finished| **finished).count();
                    pass.advance(chunks.checked_sub(1).map_or(0, |last| graph.chunks()[last].end));
                    let finished = live.is_finished.iter().filter(|finished| **finished).count();
                    self.chunk_seconds += LATEST * (end / finished as f64 - self.chunk_seconds);
                }
            }
            Work::Step(_) if is_complete => {
                pass.advance(pass.rows());
                pass.requests.iter().for_each(|request| request.complete_logits(request.wanted_rows().len()));
            }
            Work::Step(_) => {}
            Work::Logits(hidden) => {
                hidden.iter().for_each(|hidden| hidden.request.complete_logits(hidden.rows.len()));
            }
        }
        if is_complete {
            self.finish(shared, id);
        }
    }

    /// A pass is complete: its buffers are free, and what was seen of it is kept.
    fn finish(&mut self, shared: &Shared, id: PassId) {
        let live = self.remove(id);
        let Live { pass, dag, events, losses, .. } = live;
        let seconds = pass.start.elapsed().as_secs_f64();
        for request in pass.requests.iter().filter(|request| request.is_cancelled()) {
            request.fail(Error::Cancelled);
        }
        match &pass.work {
            Work::Prompts(graph) => {
                let timeline = Timeline::new(events, shared.units.len());
                let position = pass.requests.first().map_or(0, |request| request.position);
                self.costs.learn(&shared.processors, [(graph, position, &timeline)]);
                let (graph, policy) = (graph.clone(), self.policy);
                let _ = pass.execution.set(Execution { graph, dag, policy, timeline, losses });
            }
            Work::Step(_) => {
                self.steps += 1;
                self.step_seconds += LATEST * (seconds - self.step_seconds);
                let patience = Duration::from_secs_f64(PATIENCE.0 * seconds).min(PATIENCE.1);
                let missing = pass.requests.iter().map(|request| request.sequence).collect();
                self.gang = Gang { missing, until: Some(Instant::now() + patience) };
            }
            Work::Logits(_) => {}
        }
    }

    /// Takes a pass from the live ones; its buffers can be used again.
    fn remove(&mut self, id: PassId) -> Live {
        let place = self.live.iter().position(|live| live.id == id).expect("it is live");
        let mut live = self.live.swap_remove(place);
        let is_step = matches!(live.pass.work, Work::Step(_));
        for slot in live.slots.iter_mut().filter_map(Option::take) {
            if is_step {
                self.spare_step = Some(slot);
            } else {
                self.spare.push(slot);
            }
        }
        live
    }

    /// Ends what nobody waits for any more, and what no processor is left for.
    fn drop_abandoned(&mut self) {
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
        let abandoned = self.live.iter().filter(|live| live.is_orphaned || live.pass.is_abandoned());
        for id in abandoned.map(|live| live.id).collect::<Vec<_>>() {
            self.passes.cancel(id);
            // Whoever is at a task of it ends that one.
            if !self.is_running(id) {
                let live = self.remove(id);
                for request in &live.pass.requests {
                    let is_cancelled = !live.is_orphaned || request.is_cancelled();
                    request.fail(if is_cancelled { Error::Cancelled } else { live.error() });
                }
                self.hidden.retain(|hidden| !hidden.request.is_cancelled());
            }
        }
    }

    fn is_running(&self, id: PassId) -> bool {
        self.units.iter().any(|unit| !unit.is_lost && unit.running.is_some_and(|(running, ..)| running == id))
    }

    /// Where nothing is being computed, processors that failed are tried again.
    fn begin_anew(&mut self, shared: &Shared) {
        let was_lost = self.units.iter().any(|unit| unit.is_lost);
        let is_away = |unit: usize| shared.units[unit].is_away();
        if was_lost || self.passes.policy() != self.policy {
            self.passes = Passes::new(self.units.len(), self.policy, 0.0);
            for unit in 0..self.units.len() {
                self.units[unit] = UnitState { is_lost: is_away(unit), running: None };
                if is_away(unit) {
                    self.passes.lose(ProcessorId::new(unit));
                }
            }
        }
    }

    /// Makes passes of what waits.
    fn form(&mut self, shared: &Shared) {
        let now = Instant::now();
        if self.prompts.is_empty() && self.rows.is_empty() && self.hidden.is_empty() {
            return;
        }
        let stall = shared.settings.max_stall.map(|stall| stall.as_secs_f64());
        self.passes.set_max_stall(stall.unwrap_or(CHUNKS_OF_STALL * self.chunk_seconds));
        if !self.hidden.is_empty() {
            let hidden = std::mem::take(&mut self.hidden);
            let dag = self.chain(shared, 1, 0.1 * self.step_seconds);
            self.add(
                shared,
                Pass::new(Vec::new(), |_| Work::Logits(hidden)),
                dag,
                0,
                Urgency::Decode { since: f64::MIN },
            );
        }
        let is_stepping = self.live.iter().any(|live| matches!(live.pass.work, Work::Step(_)));
        let is_whole = self.gang.missing.is_empty() || self.gang.until.is_none_or(|until| until <= now);
        if !is_stepping && is_whole && !self.rows.is_empty() {
            self.gang = Gang::default();
            let (mut requests, mut rows) = (Vec::new(), 0);
            while let Some(request) = self.rows.front()
                && (requests.is_empty() || rows + request.tokens.len() <= shared.settings.most_rows)
            {
                rows += request.tokens.len();
                requests.extend(self.rows.pop_front());
            }
            let since = requests.iter().map(|request| request.arrived).min().unwrap_or(now);
            // Where others can run in between, they may.
            let tasks = if shared.units.len() > 1 { shared.model.description().blocks.len() } else { 1 };
            let dag = self.chain(shared, tasks, self.step_seconds / tasks as f64);
            let pass = Pass::new(requests, |_| Work::Step(tasks));
            self.add(shared, pass, dag, 1, Urgency::Decode { since: shared.seconds(since) });
        }
        // Another one can begin where the first one's last chunks leave a processor idle.
        let most = shared.units.len().min(2);
        let prompts = self.live.iter().filter(|live| matches!(live.pass.work, Work::Prompts(_))).count();
        if prompts < most && !self.prompts.is_empty() {
            let requests: Vec<_> = self.prompts.drain(..).collect();
            let (description, chunk) = (shared.model.description(), shared.settings.chunk);
            let pass = Pass::new(requests, |rows| Work::Prompts(Graph::new(description, rows, chunk)));
            match self.plan(shared, &pass) {
                Ok(dag) => {
                    for request in &pass.requests {
                        request.set_execution(&pass.execution);
                    }
                    let slots = shared.settings.chunks_in_flight;
                    self.add(shared, pass, dag, slots, Urgency::Prefill);
                }
                Err(error) => {
                    let reason = error.to_string();
                    for request in pass.requests {
                        request.fail(Error::Processors { reason: reason.clone() });
                    }
                }
            }
        }
    }

    fn add(&mut self, shared: &Shared, pass: Pass, dag: Dag, slots: usize, urgency: Urgency) {
        let chunks = if let Work::Prompts(graph) = &pass.work { graph.chunks().len() } else { 0 };
        let id = self.passes.add(dag.clone(), urgency);
        let away = (0..self.units.len()).filter(|unit| self.units[*unit].is_lost);
        let losses = away.map(|unit| Loss {
            processor: shared.units[unit].name.clone(),
            task: None,
            reason: "it has not come back from an earlier prompt".to_owned(),
        });
        self.live.push(Live {
            id,
            pass: Arc::new(pass),
            dag,
            slots: (0..slots).map(|_| None).collect(),
            is_finished: vec![false; chunks],
            events: Vec::new(),
            losses: losses.collect(),
            is_orphaned: false,
        });
    }

    /// `tasks` tasks one after the other, on the processor that computes in float.
    fn chain(&self, shared: &Shared, tasks: usize, seconds: f64) -> Dag {
        let seconds = vec![Some(seconds); self.units.len()];
        let node = |task: usize| Node {
            home: shared.float_unit,
            seconds: seconds.clone(),
            predecessors: task.checked_sub(1).into_iter().collect(),
            kind: 0,
        };
        Dag::from_nodes(self.units.len(), (0..tasks).map(node))
    }

    /// What is to be done for prompts.
    fn plan(&self, shared: &Shared, pass: &Pass) -> Result<Dag, triad_plan::placement::PlacementError> {
        let Work::Prompts(graph) = &pass.work else { unreachable!("only prompts are planned") };
        let position = pass.requests.first().map_or(0, |request| request.position);
        let expected = |task: Task, processor| {
            let processor = &shared.processors[processor].name;
            let tokens = &graph.chunks()[task.chunk];
            let role = graph.subgraphs()[task.subgraph].role;
            let seconds = self.costs.seconds(processor, role, tokens.len(), position + tokens.start);
            seconds.unwrap_or_else(|| costs::guess(graph, task))
        };
        let first = |subgraph, processor| expected(Task { chunk: 0, subgraph, part: 0 }, processor);
        let placement = Placement::new(graph, &shared.processors, first)?;
        let in_flight = shared.settings.chunks_in_flight;
        Ok(Dag::of_prefill_in_flight(graph, &shared.processors, &placement, in_flight, expected))
    }

    /// A processor failed: others take its tasks, or all that is being computed ends.
    fn lose(&mut self, shared: &Shared, unit: usize, reason: &str) {
        let running = self.units[unit].running.take();
        self.units[unit].is_lost = true;
        for live in &mut self.live {
            let task = running.filter(|(id, ..)| *id == live.id).and_then(|(_, number, _)| match &live.pass.work {
                Work::Prompts(graph) => Some(Pass::task(graph, number)),
                Work::Step(_) | Work::Logits(_) => None,
            });
            let processor = shared.units[unit].name.clone();
            live.losses.push(Loss { processor, task, reason: reason.to_owned() });
        }
        self.passes.lose(ProcessorId::new(unit));
        if self.units.iter().all(|unit| unit.is_lost) {
            let ids: Vec<_> = self.live.iter().map(|live| live.id).collect();
            for id in ids {
                let live = self.remove(id);
                let of_logits = if let Work::Logits(hidden) = &live.pass.work { &hidden[..] } else { &[] };
                let requests = live.pass.requests.iter().chain(of_logits.iter().map(|hidden| &hidden.request));
                requests.for_each(|request| request.fail(live.error()));
            }
            for hidden in self.hidden.drain(..) {
                hidden.request.fail(Error::Processors { reason: reason.to_owned() });
            }
        }
    }

    /// Loses every processor that has been at a task for longer than `time_out`. Returns whether there was one.
    pub(super) fn lose_hung(&mut self, shared: &Shared) -> bool {
        let time_out = shared.settings.time_out;
        let hung = (0..self.units.len()).filter(|unit| {
            let UnitState { is_lost, running } = &self.units[*unit];
            !is_lost && running.is_some_and(|(.., since)| since.elapsed() > time_out)
        });
        let hung: Vec<_> = hung.collect();
        for unit in &hung {
            shared.units[*unit].set_away(true);
            let running = self.units[*unit].running.map(|(id, ..)| id);
            let pass = self.live.iter().find(|live| Some(live.id) == running);
            pass.iter().flat_map(|live| &live.pass.requests).for_each(|request| request.taint());
            let reason = format!("it did not end a task within {:.1} s", time_out.as_secs_f64());
            self.lose(shared, *unit, &reason);
        }
        !hung.is_empty()
    }

    /// Ends what waits where every processor hangs: nobody else would.
    pub(super) fn fail_unserved(&mut self, shared: &Shared) {
        if shared.units.iter().all(super::Unit::is_away) {
            for request in self.prompts.drain(..).chain(self.rows.drain(..)) {
                request.fail(Error::Processors { reason: "all of them hang".to_owned() });
            }
        }
    }
}

impl Live {
    /// What happened to each processor that was lost.
    fn error(&self) -> Error {
        let reasons = self.losses.iter().map(|loss| format!("the {}: {}", loss.label(), loss.reason));
        Error::Processors { reason: reasons.collect::<Vec<_>>().join("; ") }
    }
}

//! What is computed together: the prompts of some sequences, a step of sequences that decode, or logits.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use smallvec::SmallVec;
use triad_kernels::Phase;
use triad_kernels::activation::soft_cap;
use triad_kernels::lock;
use triad_plan::graph::{Graph, Role, Subgraph};
use triad_plan::tasks::{Operation, PrefillTask, PrefillTasks, Shadow};

use super::joint::Planned;
use super::request::Request;
use super::steps::CutStep;
use super::whole::{Rows, WholeModel};
use super::{Costs, Execution, Shared, costs};
use crate::error::Result;
use crate::forward::{self, Buffers, Chunk, Multiplier, Segment};
use crate::linear::{Backend, OwnKernels, Shadows};

/// Sequences of one chunk or step whose segments take no allocation.
const SEGMENTS: usize = 16;

/// Requests that are computed together, cut into tasks.
pub(super) struct Pass {
    pub(super) start: Instant,
    pub(super) requests: Vec<Arc<Request>>,
    /// Where the rows of each request begin among all rows.
    firsts: Vec<usize>,
    /// Of all rows.
    tokens: Vec<u32>,
    pub(super) work: Work,
    pub(super) execution: Arc<OnceLock<Execution>>,
}

/// What is computed of them.
pub(super) enum Work {
    /// Prompts, one behind the other in chunks; a chunk may have rows of several.
    Prompts(Box<Prompts>),
    /// Rows that decode, one step of all of them.
    Step(Step),
    /// Logits of rows that have been through all blocks.
    Logits(Vec<Hidden>),
}

/// How a step is made of tasks.
pub(super) enum Step {
    /// Tasks of some blocks each, one behind the other.
    Blocks {
        tasks: usize,
        /// The step that it is compared with.
        in_place_of: Option<Arc<CutStep>>,
    },
    /// Its products are cut.
    Cut(Arc<CutStep>),
}

impl Step {
    /// It took so many seconds, which decides whether the next ones are cut.
    pub(super) fn observe(&self, seconds: f64) {
        if let Self::Blocks {
            in_place_of: Some(cut),
            ..
        }
        | Self::Cut(cut) = self
        {
            lock(&cut.trial).observe(matches!(self, Self::Cut(_)), seconds);
        }
    }
}

/// The chunks, subgraphs and tasks of prompts.
pub(super) struct Prompts {
    pub(super) graph: Graph,
    pub(super) tasks: Arc<PrefillTasks>,
    /// By subgraph, the shadow that is a task of its own; subgraphs behind the last have none.
    pub(super) shadows: Vec<Option<Shadow>>,
    /// Chunks that have buffers at once.
    pub(super) slots: usize,
    /// By which they are computed, where prompts are planned.
    pub(super) planned: Option<Planned>,
}

impl Prompts {
    /// Those of so many rows, the first of them at a position: as their plan has it, if there is one. Their tasks are
    /// expected to take what `costs` has, and planned parts on processors with static shapes what was measured of them.
    pub(super) fn new(
        shared: &Shared,
        costs: &Costs,
        planned: Option<&Planned>,
        (rows, position): (usize, usize),
    ) -> Self {
        let graph = shared
            .tasks
            .graph(shared.model.description(), rows, planned);
        let tasks = {
            let of_part = shared
                .tasks
                .planned_seconds(shared.model.description(), &graph, planned);
            let expected = |task: &PrefillTask, processor| {
                let of_like =
                    || costs.seconds(&shared.processors[processor].name, &graph, task, position);
                of_part(task, processor)
                    .or_else(of_like)
                    .unwrap_or_else(|| costs::guess(&graph, task))
            };
            let tasks = shared
                .tasks
                .tasks(&graph, &shared.processors, planned, expected);
            tasks.expect("what is cut was cut when the engine was made")
        };
        let (shadows, slots) = (
            shared.tasks.shadows(planned),
            shared.tasks.chunks_in_flight(planned),
        );
        Self {
            graph,
            tasks: Arc::new(tasks),
            shadows,
            slots,
            planned: planned.cloned(),
        }
    }
}

/// The residual stream behind the last block, of rows whose logits are wanted.
pub(super) struct Hidden {
    pub(super) request: Arc<Request>,
    /// Which of the wanted rows they are.
    pub(super) rows: Range<usize>,
    /// `[rows, hidden]`.
    pub(super) x: Vec<f32>,
}

/// Buffers of a chunk or step, which all that work on it share, and how far it is in them.
pub(super) struct Slot {
    pub(super) buffers: Buffers,
    progress: Mutex<Progress>,
    /// Room for the logits of parts of the output matrix, where nobody is at them.
    rooms: Mutex<Vec<Vec<f32>>>,
}

/// How far a chunk or step is in its buffers.
///
/// Three things change it. A *piece*, a part of a product or a shadow, changes nothing that others read: the lock is free
/// while it runs, and it joins `pieces`. Any other task takes `done` while it runs, under the lock, so that `done` is `Some`
/// only where the buffers hold exactly that much. And whoever finds less than its task needs, since the rest was in
/// buffers that a lost processor kept or spoiled, *catches up*: it runs all up to its subgraph, whole, under the lock; tasks
/// of that subgraph that come later find it done.
#[derive(Default)]
struct Progress {
    chunk: usize,
    /// Subgraphs, or tasks of a step, that it has been through in these buffers; `None` where it has not begun, or where
    /// nobody knows what the buffers hold.
    done: Option<usize>,
    /// Pieces of the subgraph behind these that are done.
    pieces: SmallVec<[usize; 4]>,
    /// Of a step, `[rows, vocab]`.
    logits: Vec<f32>,
}

impl Slot {
    pub(super) fn new(shared: &Shared, rows: usize, has_shadows: bool) -> Self {
        let buffers = Buffers::new(shared.model.description(), rows, has_shadows);
        Self {
            buffers,
            progress: Mutex::default(),
            rooms: Mutex::default(),
        }
    }

    /// Takes a chunk of another pass.
    pub(super) fn reset(&self, chunk: usize) {
        self.progress().reset(chunk);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }
}

impl Progress {
    fn reset(&mut self, chunk: usize) {
        (self.chunk, self.done) = (chunk, None);
        self.pieces.clear();
    }
}

impl Pass {
    /// `work` returns what is computed of so many rows, the first of them at a position.
    pub(super) fn new(
        requests: Vec<Arc<Request>>,
        work: impl FnOnce(usize, usize) -> Work,
    ) -> Self {
        let (mut firsts, mut tokens) = (Vec::with_capacity(requests.len()), Vec::new());
        for request in &requests {
            firsts.push(tokens.len());
            tokens.extend_from_slice(&request.tokens);
        }
        let position = requests.first().map_or(0, |request| request.position);
        let (work, execution) = (work(tokens.len(), position), Arc::default());
        Self {
            start: Instant::now(),
            requests,
            firsts,
            tokens,
            work,
            execution,
        }
    }

    /// Rows of all requests.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it is the prompt of one sequence without adapters, which plans are made for.
    pub(super) fn is_one_prompt(&self) -> bool {
        self.requests.len() == 1 && !self.has_adapters()
    }

    /// Whether it is logits alone: little work, and maybe that of a prompt whose other chunks are still computed.
    pub(super) fn is_logits(&self) -> bool {
        matches!(self.work, Work::Logits(_))
    }

    /// Whether sequences of it have adapters, which a device that runs the model whole does not compute.
    pub(super) fn has_adapters(&self) -> bool {
        self.requests.iter().any(|request| request.has_adapters())
    }

    /// Which slot of `slots` a task takes.
    pub(super) fn slot(&self, task: usize, slots: usize) -> Option<usize> {
        match &self.work {
            Work::Prompts(_) => Some(self.chunk(task) % slots),
            Work::Step(_) => Some(0),
            Work::Logits(_) => None,
        }
    }

    /// The chunk of a task.
    pub(super) fn chunk(&self, task: usize) -> usize {
        match &self.work {
            Work::Prompts(prompts) => prompts.tasks.tasks[task].task.chunk,
            Work::Step(_) | Work::Logits(_) => 0,
        }
    }

    /// Whether everybody who asked for it has gone.
    pub(super) fn is_abandoned(&self) -> bool {
        !self.requests.is_empty() && self.requests.iter().all(|request| request.is_cancelled())
    }

    /// Requests with rows among `rows`, and which of their own rows these are.
    fn requests_in(
        &self,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = (&Arc<Request>, Range<usize>)> {
        let requests = self.requests.iter().zip(&self.firsts);
        requests.filter_map(move |(request, first)| {
            let own = rows.start.max(*first)..rows.end.min(first + request.tokens.len());
            (!own.is_empty()).then(|| (request, own.start - first..own.end - first))
        })
    }

    /// The segments of `rows`, counted from the first of these.
    fn segments(&self, rows: &Range<usize>) -> SmallVec<[Segment<'_>; SEGMENTS]> {
        let mut segments = SmallVec::new();
        let mut at = 0;
        for (request, own) in self.requests_in(rows) {
            let rows = at..at + own.len();
            at = rows.end;
            segments.push(Segment {
                cache: &request.cache,
                rows,
                position: request.position + own.start,
            });
        }
        segments
    }

    /// Marks what is through when the first `rows` rows are.
    pub(super) fn advance(&self, rows: usize) {
        for (request, first) in self.requests.iter().zip(&self.firsts) {
            request.advance(rows.saturating_sub(*first).min(request.tokens.len()));
        }
    }

    /// Runs a task, and behind a failure all that its buffers lack. Returns the rows whose logits are to be computed next.
    ///
    /// # Errors
    /// If the products fail.
    pub(super) fn perform(
        &self,
        shared: &Shared,
        number: usize,
        slot: Option<&Slot>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<Hidden>> {
        match (&self.work, slot) {
            (Work::Prompts(prompts), Some(slot)) => {
                self.prompt_task(shared, prompts, number, slot, backend)
            }
            (Work::Step(Step::Blocks { tasks, .. }), Some(slot)) => {
                self.step(shared, number, *tasks, slot).map(|()| Vec::new())
            }
            (Work::Step(Step::Cut(cut)), Some(slot)) => self
                .cut_step(shared, cut, number, slot, backend)
                .map(|()| Vec::new()),
            (Work::Logits(hidden), _) => {
                logits(shared, hidden);
                Ok(Vec::new())
            }
            (_, None) => unreachable!("prompts and steps have slots"),
        }
    }

    /// The same where a device runs the model whole: a chunk at once, with the last of its tasks.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn perform_whole(
        &self,
        shared: &Shared,
        number: usize,
        whole: &WholeModel,
    ) -> Result<Vec<Hidden>> {
        match &self.work {
            Work::Prompts(prompts) => {
                let Prompts { graph, tasks, .. } = &**prompts;
                let task = tasks.tasks[number].task;
                let is_last = task.subgraph + 1 == graph.subgraphs().len();
                let rows = graph.chunks()[task.chunk].clone();
                if !is_last
                    || self
                        .requests_in(&rows)
                        .all(|(request, _)| request.is_cancelled())
                {
                    return Ok(Vec::new());
                }
                let parts: Vec<_> = self
                    .requests_in(&rows)
                    .map(|(request, own)| Rows::new(request, own))
                    .collect();
                let pass = shared.pass(Phase::Prefill);
                let values = whole.run(&pass, &parts, false)?;
                let (mut values, mut all) = (&values[..], Vec::new());
                for ((request, own), part) in self.requests_in(&rows).zip(parts) {
                    let x = values.split_off(..part.wanted.len() * pass.description.hidden);
                    let x = x.expect("rows of all requests").to_vec();
                    if !part.wanted.is_empty() && !request.is_cancelled() {
                        let first = own.start + part.wanted.start - request.wanted_rows().start;
                        let rows = first..first + part.wanted.len();
                        all.push(Hidden {
                            request: Arc::clone(request),
                            rows,
                            x,
                        });
                    }
                }
                Ok(all)
            }
            Work::Step(_) => {
                let parts: Vec<_> = self
                    .requests
                    .iter()
                    .map(|request| Rows::new(request, 0..request.tokens.len()))
                    .collect();
                let pass = shared.pass(Phase::Decode);
                let mut logits = whole.run(&pass, &parts, true)?;
                if let Some(cap) = pass.description.logit_soft_cap {
                    soft_cap(&mut logits, cap);
                }
                self.write_logits(&logits, pass.description.vocab);
                Ok(Vec::new())
            }
            Work::Logits(hidden) => {
                logits(shared, hidden);
                Ok(Vec::new())
            }
        }
    }

    fn prompt_task(
        &self,
        shared: &Shared,
        prompts: &Prompts,
        number: usize,
        slot: &Slot,
        backend: &mut dyn Backend,
    ) -> Result<Vec<Hidden>> {
        let Prompts {
            graph,
            tasks,
            shadows,
            ..
        } = prompts;
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let rows = graph.chunks()[task.chunk].clone();
        // A chunk that nobody waits for any more.
        if self
            .requests_in(&rows)
            .all(|(request, _)| request.is_cancelled())
        {
            return Ok(Vec::new());
        }
        let segments = self.segments(&rows);
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        // Shadows of one processor alone are computed behind their products, with the weights of these.
        let hot_rows = shared.hot_rows.as_ref().filter(|_| !shadows.is_empty());
        let pass = forward::Pass {
            hot_rows,
            ..shared.pass(Phase::Prefill)
        };
        let run = ChunkRun {
            pass,
            graph,
            tokens: &self.tokens[rows.clone()],
            chunk,
            shadows,
        };
        if !Self::chunk_task(&run, (number, tasks), slot, backend)? {
            return Ok(Vec::new());
        }
        Ok(self.hidden(&rows, &slot.buffers, run.pass.description.hidden))
    }

    /// Runs a task of a chunk, and behind a failure all that its buffers lack. Returns whether the chunk is through all
    /// blocks.
    fn chunk_task(
        run: &ChunkRun,
        (number, tasks): (usize, &PrefillTasks),
        slot: &Slot,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let mut progress = slot.progress();
        if progress.chunk != task.chunk {
            progress.reset(task.chunk);
        }
        match progress.done {
            // Whoever caught up has computed it, or who failed behind it.
            Some(done) if done > task.subgraph || progress.pieces.contains(&number) => {}
            None if task.subgraph > 0 => run.catch_up(&mut progress, task.subgraph, backend)?,
            Some(done) if done < task.subgraph => {
                run.catch_up(&mut progress, task.subgraph, backend)?
            }
            _ => {
                drop(progress);
                run.task(slot, (number, tasks), backend)?;
                progress = slot.progress();
            }
        }
        Ok(progress.done == Some(run.graph.subgraphs().len()))
    }

    /// A task of a step whose products are cut.
    fn cut_step(
        &self,
        shared: &Shared,
        cut: &CutStep,
        number: usize,
        slot: &Slot,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        // A step that nobody waits for any more.
        if self.is_abandoned() {
            return Ok(());
        }
        let CutStep {
            graph,
            tasks,
            options,
            outputs,
            ..
        } = cut;
        let segments = self.segments(&(0..self.rows()));
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        let run = ChunkRun {
            pass: shared.pass(Phase::Decode),
            graph,
            tokens: &self.tokens,
            chunk,
            shadows: &options.shadows,
        };
        let Some(output) = number.checked_sub(tasks.tasks.len()) else {
            return Self::chunk_task(&run, (number, tasks), slot, backend).map(|_| ());
        };
        let last = graph.subgraphs().len() - 1;
        let mut progress = slot.progress();
        if progress.done != Some(last + 1) {
            run.catch_up(&mut progress, last, backend)?;
        }
        drop(progress);
        self.output_part(&run.pass, &outputs[output], slot);
        Ok(())
    }

    /// The logits of some tokens of the vocabulary.
    fn output_part(&self, pass: &forward::Pass, columns: &Range<usize>, slot: &Slot) {
        let (hidden, vocab) = (pass.description.hidden, pass.description.vocab);
        let rows = || self.requests.iter().map(|request| request.wanted_rows());
        let count: usize = rows().map(|rows| rows.len()).sum();
        let mut room = lock(&slot.rooms).pop().unwrap_or_default();
        // What follows each other: logits, the residual stream, its norm.
        let (width, x_width) = (count * columns.len(), count * hidden);
        room.resize(width + 2 * x_width, 0.0);
        let (logits, x) = room.split_at_mut(width);
        let (x, normed) = x.split_at_mut(x_width);
        let mut left = &mut x[..];
        for (rows, first) in rows().zip(&self.firsts) {
            let of_request = left
                .split_off_mut(..rows.len() * hidden)
                .expect("rows of all requests");
            of_request.copy_from_slice(
                &slot
                    .buffers
                    .residual(first + rows.start..first + rows.end, hidden),
            );
        }
        pass.logits_part_of(x, normed, Phase::Decode, columns.clone(), logits);
        let mut left = &logits[..];
        for request in &self.requests {
            let rows = 0..request.wanted_rows().len();
            let of_request = left
                .split_off(..rows.len() * columns.len())
                .expect("rows of all requests");
            request.write_logits_part(rows, (columns, vocab), of_request);
        }
        lock(&slot.rooms).push(room);
    }

    /// The residual stream of those of `rows` whose logits are wanted.
    fn hidden(&self, rows: &Range<usize>, buffers: &Buffers, hidden: usize) -> Vec<Hidden> {
        let mut at = 0;
        let mut all = Vec::new();
        for (request, own) in self.requests_in(rows) {
            let wanted = request.wanted_rows();
            let mine = own.start.max(wanted.start)..own.end.min(wanted.end);
            if !mine.is_empty() && !request.is_cancelled() {
                let first = at + mine.start - own.start;
                let x = buffers.residual(first..first + mine.len(), hidden).to_vec();
                let rows = mine.start - wanted.start..mine.end - wanted.start;
                all.push(Hidden {
                    request: Arc::clone(request),
                    rows,
                    x,
                });
            }
            at += own.len();
        }
        all
    }

    /// One of `tasks` tasks of a step: some blocks, and behind the last one the logits.
    fn step(&self, shared: &Shared, number: usize, tasks: usize, slot: &Slot) -> Result<()> {
        let (pass, segments) = (shared.pass(Phase::Decode), self.segments(&(0..self.rows())));
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        let mut progress = slot.progress();
        // Until it is through, nobody knows what the buffers hold.
        let done = progress.done.take().filter(|done| *done <= number);
        if done.is_none() {
            pass.begin(&self.tokens, chunk);
        }
        let blocks = pass.description.blocks.len();
        let mut kernels = OwnKernels(pass.weights);
        let mut multiplier = Multiplier::new(&mut kernels);
        for block in done.unwrap_or(0) * blocks / tasks..(number + 1) * blocks / tasks {
            for role in Role::of_block(false) {
                pass.subgraph(block, role, chunk, &mut multiplier)?;
            }
        }
        if number + 1 == tasks {
            pass.end(chunk);
            self.step_logits(&pass, &slot.buffers, &mut progress.logits);
        }
        progress.done = Some(number + 1);
        Ok(())
    }

    fn step_logits(&self, pass: &forward::Pass, buffers: &Buffers, logits: &mut Vec<f32>) {
        let vocab = pass.description.vocab;
        let rows = self
            .requests
            .iter()
            .zip(&self.firsts)
            .flat_map(|(request, first)| {
                let wanted = request.wanted_rows();
                first + wanted.start..first + wanted.end
            });
        let rows: SmallVec<[usize; SEGMENTS]> = rows.collect();
        logits.resize(rows.len() * vocab, 0.0);
        pass.logits(buffers, rows.into_iter(), Phase::Decode, logits);
        // A large vocabulary takes a while to copy.
        match &self.requests[..] {
            [request] => request.swap_logits(logits),
            _ => self.write_logits(logits, vocab),
        }
    }

    /// Gives each request the logits of its wanted rows, `[rows of all, vocab]`.
    fn write_logits(&self, mut logits: &[f32], vocab: usize) {
        for request in &self.requests {
            let rows = request.wanted_rows().len();
            let of_request = logits
                .split_off(..rows * vocab)
                .expect("rows of all requests");
            request.write_logits(0..rows, of_request);
        }
    }
}

/// A chunk of prompts with all that its subgraphs need.
struct ChunkRun<'a> {
    pass: forward::Pass<'a>,
    graph: &'a Graph,
    tokens: &'a [u32],
    chunk: Chunk<'a>,
    shadows: &'a [Option<Shadow>],
}

impl ChunkRun<'_> {
    /// Runs one task of the subgraph that is next in the buffers; others may run other tasks of it meanwhile.
    fn task(
        &self,
        slot: &Slot,
        (number, tasks): (usize, &PrefillTasks),
        backend: &mut dyn Backend,
    ) -> Result<()> {
        let PrefillTask {
            task,
            operation,
            part,
        } = &tasks.tasks[number];
        let Subgraph { block, role, .. } = self.graph.subgraphs()[task.subgraph];
        let is_apart = self.shadows.get(task.subgraph).is_some_and(Option::is_some);
        let shadows = if is_apart {
            Shadows::Apart
        } else {
            Shadows::Inline
        };
        let mut multiplier = Multiplier {
            shadows,
            ..Multiplier::new(backend)
        };
        match operation {
            Operation::Compute if role.is_product() => {
                self.pass
                    .products((block, role), self.chunk, part, &mut multiplier)?;
            }
            Operation::Compute => {
                let mut progress = slot.progress();
                // Until it is through, nobody knows what the buffers hold.
                if progress.done.take().is_none() {
                    self.pass.begin(self.tokens, self.chunk);
                }
                self.pass
                    .subgraph(block, role, self.chunk, &mut multiplier)?;
                progress.done = Some(task.subgraph);
            }
            Operation::Shadow => self.pass.shadow(block, role, self.chunk),
        }
        let mut progress = slot.progress();
        progress.pieces.push(number);
        if progress.pieces.len() == tasks.pieces(task.chunk, task.subgraph).len() {
            self.complete(&mut progress, task.subgraph);
        }
        Ok(())
    }

    /// Runs all that the buffers lack up to `subgraph`, whole: others were lost with what they had.
    fn catch_up(
        &self,
        progress: &mut Progress,
        subgraph: usize,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        debug_assert!(
            progress.pieces.is_empty(),
            "of the subgraph that is next alone"
        );
        let done = progress.done.take();
        if done.is_none() {
            self.pass.begin(self.tokens, self.chunk);
        }
        let mut multiplier = Multiplier::new(backend);
        for Subgraph { block, role, .. } in &self.graph.subgraphs()[done.unwrap_or(0)..=subgraph] {
            self.pass
                .subgraph(*block, *role, self.chunk, &mut multiplier)?;
        }
        self.complete(progress, subgraph);
        Ok(())
    }

    /// A subgraph is complete in the buffers.
    fn complete(&self, progress: &mut Progress, subgraph: usize) {
        progress.pieces.clear();
        progress.done = None;
        if subgraph + 1 == self.graph.subgraphs().len() {
            self.pass.end(self.chunk);
        }
        progress.done = Some(subgraph + 1);
    }
}

/// Logits of rows that have been through all blocks, those of one arithmetic at once.
fn logits(shared: &Shared, hidden: &[Hidden]) {
    let pass = shared.pass(Phase::Prefill);
    let vocab = pass.description.vocab;
    for phase in [Phase::Prefill, Phase::Decode] {
        let of_phase = || {
            hidden
                .iter()
                .filter(|hidden| hidden.request.phase_of_logits() == phase)
        };
        let x: Vec<f32> = of_phase()
            .flat_map(|hidden| hidden.x.iter().copied())
            .collect();
        if x.is_empty() {
            continue;
        }
        let mut logits = vec![0.0; x.len() / pass.description.hidden * vocab];
        pass.logits_of(&x, &mut vec![0.0; x.len()], phase, &mut logits);
        let mut logits = &logits[..];
        for Hidden { request, rows, .. } in of_phase() {
            let of_request = logits
                .split_off(..rows.len() * vocab)
                .expect("rows of all requests");
            request.write_logits(rows.clone(), of_request);
        }
    }
}

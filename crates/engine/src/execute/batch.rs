//! A pass: requests that are computed together. It computes the prompts of some sequences, a decode step, or logits.

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
use super::{Costs, EngineInner, Execution, costs};
use crate::error::Result;
use crate::forward::{self, Buffers, Chunk, MatmulContext, Segment};
use crate::linear::{Backend, CpuBackend, Shadows};

/// Segments of a chunk or step that need no allocation.
const SEGMENTS: usize = 16;

/// A pass, cut into tasks.
pub(super) struct Batch {
    pub(super) start: Instant,
    pub(super) requests: Vec<Arc<Request>>,
    /// Index of each request's first row among the rows of all requests.
    firsts: Vec<usize>,
    /// The tokens of all requests.
    tokens: Vec<u32>,
    pub(super) work: Work,
    pub(super) execution: Arc<OnceLock<Execution>>,
}

/// The kind of a pass.
pub(super) enum Work {
    /// Prompts, one after the other in chunks; a chunk may have rows of several.
    Prompts(Box<Prompts>),
    /// A decode step of all requests.
    Step(Step),
    /// Logits of rows that have been through all blocks.
    Logits(Vec<PendingLogits>),
}

/// The tasks of a step.
pub(super) enum Step {
    /// Tasks of some blocks each, in sequence.
    Blocks {
        tasks: usize,
        /// The cut step that it is compared with.
        in_place_of: Option<Arc<CutStep>>,
    },
    /// A step whose products are cut.
    Cut(Arc<CutStep>),
}

impl Step {
    /// Records the seconds of the step, which decide whether later ones are cut.
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
    /// By subgraph, the shadow that is a separate task. The list may be shorter than that of the subgraphs.
    pub(super) shadows: Vec<Option<Shadow>>,
    /// Maximum chunks with buffers at a time.
    pub(super) slots: usize,
    /// The plan of the prompts, if they are planned.
    pub(super) planned: Option<Planned>,
}

impl Prompts {
    /// Returns the tasks of `rows` rows, the first of them at a position, by their plan if there is one. Their expected
    /// times are those of `costs`, and the measured ones for planned parts on processors with static shapes.
    pub(super) fn new(
        shared: &EngineInner,
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
            tasks.expect("all cuts were checked when the engine was made")
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

/// The residual stream after the last block, of rows whose logits are wanted.
pub(super) struct PendingLogits {
    pub(super) request: Arc<Request>,
    /// Their range among the wanted rows of the request.
    pub(super) rows: Range<usize>,
    /// `[rows, hidden]`.
    pub(super) x: Vec<f32>,
}

/// The shared buffers of a chunk or step, and its progress in them.
pub(super) struct ChunkBuffers {
    pub(super) buffers: Buffers,
    progress: Mutex<Progress>,
    /// Unused scratch buffers for the logits of parts of the output matrix.
    logits_scratch: Mutex<Vec<Vec<f32>>>,
}

/// The progress of a chunk or step in its buffers.
///
/// A *piece*, a part of a product or a shadow, changes nothing that others read: it runs without the lock and is then
/// added to `pieces`. Any other task takes `done` and runs under the lock, so that `done` is `Some` only if the buffers
/// hold exactly that much. If a lost processor kept or spoiled the rest of the buffers, a worker finds less than its
/// task needs. It then *catches up*: it runs everything up to its subgraph, whole, under the lock. Later tasks of that
/// subgraph find it done.
#[derive(Default)]
struct Progress {
    chunk: usize,
    /// The number of finished subgraphs, or tasks of a step, in these buffers; `None` before the first, or if the
    /// contents of the buffers are unknown.
    done: Option<usize>,
    /// The finished pieces of the next subgraph.
    pieces: SmallVec<[usize; 4]>,
    /// The logits of a step, `[rows, vocab]`.
    logits: Vec<f32>,
}

impl ChunkBuffers {
    pub(super) fn new(shared: &EngineInner, rows: usize, has_shadows: bool) -> Self {
        let buffers = Buffers::new(shared.model.description(), rows, has_shadows);
        Self {
            buffers,
            progress: Mutex::default(),
            logits_scratch: Mutex::default(),
        }
    }

    /// Assigns the buffers to a chunk of another pass.
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

impl Batch {
    /// Returns a pass of `requests`. `work` is called with the number of rows and the position of the first.
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

    /// Returns the number of rows of all requests.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether it is the prompt of one sequence without adapters, the case that is planned.
    pub(super) fn is_one_prompt(&self) -> bool {
        self.requests.len() == 1 && !self.has_adapters()
    }

    /// Returns whether it computes only logits: little work, maybe of a prompt whose other chunks are still computed.
    pub(super) fn is_logits(&self) -> bool {
        matches!(self.work, Work::Logits(_))
    }

    /// Returns whether any sequence has adapters, which a device that runs the model whole does not support.
    pub(super) fn has_adapters(&self) -> bool {
        self.requests.iter().any(|request| request.has_adapters())
    }

    /// Returns the index of a task's buffers among `slots`.
    pub(super) fn slot(&self, task: usize, slots: usize) -> Option<usize> {
        match &self.work {
            Work::Prompts(_) => Some(self.chunk(task) % slots),
            Work::Step(_) => Some(0),
            Work::Logits(_) => None,
        }
    }

    /// Returns the chunk of a task.
    pub(super) fn chunk(&self, task: usize) -> usize {
        match &self.work {
            Work::Prompts(prompts) => prompts.tasks.tasks[task].task.chunk,
            Work::Step(_) | Work::Logits(_) => 0,
        }
    }

    /// Returns whether all its requests are cancelled.
    pub(super) fn is_abandoned(&self) -> bool {
        !self.requests.is_empty() && self.requests.iter().all(|request| request.is_cancelled())
    }

    /// Returns the requests with rows among `rows`, and their own numbers of these rows.
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

    /// Returns the segments of `rows`, numbered from the first of these.
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

    /// Records that the first `rows` rows are through all blocks.
    pub(super) fn advance(&self, rows: usize) {
        for (request, first) in self.requests.iter().zip(&self.firsts) {
            request.advance(rows.saturating_sub(*first).min(request.tokens.len()));
        }
    }

    /// Runs a task, and after a failure all that its buffers lack. Returns the rows whose logits are computed next.
    ///
    /// # Errors
    /// If a device or a layer fails.
    pub(super) fn perform(
        &self,
        shared: &EngineInner,
        number: usize,
        slot: Option<&ChunkBuffers>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<PendingLogits>> {
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

    /// As [`Batch::perform`], on a device that runs the model whole: the last task of a chunk runs the chunk, the others
    /// do nothing.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn perform_whole(
        &self,
        shared: &EngineInner,
        number: usize,
        whole: &WholeModel,
    ) -> Result<Vec<PendingLogits>> {
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
                    let x = x.expect("values of all requests").to_vec();
                    if !part.wanted.is_empty() && !request.is_cancelled() {
                        let first = own.start + part.wanted.start - request.wanted_rows().start;
                        let rows = first..first + part.wanted.len();
                        all.push(PendingLogits {
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
        shared: &EngineInner,
        prompts: &Prompts,
        number: usize,
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<Vec<PendingLogits>> {
        let Prompts {
            graph,
            tasks,
            shadows,
            ..
        } = prompts;
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let rows = graph.chunks()[task.chunk].clone();
        // All requests of the chunk are cancelled.
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
        // A processor that computes alone runs shadows after their products, with the weights of these.
        let hot_rows = shared.hot_rows.as_ref().filter(|_| !shadows.is_empty());
        let pass = forward::ForwardContext {
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

    /// Runs a task of a chunk, and after a failure all that its buffers lack. Returns whether the chunk is through all
    /// blocks.
    fn chunk_task(
        run: &ChunkRun,
        (number, tasks): (usize, &PrefillTasks),
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let mut progress = slot.progress();
        if progress.chunk != task.chunk {
            progress.reset(task.chunk);
        }
        match progress.done {
            // Done by a worker that caught up, or that failed after it had finished the task.
            Some(done) if done > task.subgraph || progress.pieces.contains(&number) => {}
            None if task.subgraph > 0 => run.catch_up(&mut progress, task.subgraph, backend)?,
            Some(done) if done < task.subgraph => {
                run.catch_up(&mut progress, task.subgraph, backend)?;
            }
            _ => {
                drop(progress);
                run.task(slot, (number, tasks), backend)?;
                progress = slot.progress();
            }
        }
        Ok(progress.done == Some(run.graph.subgraphs().len()))
    }

    /// Runs a task of a step whose products are cut.
    fn cut_step(
        &self,
        shared: &EngineInner,
        cut: &CutStep,
        number: usize,
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<()> {
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

    /// Computes the logits of some tokens of the vocabulary.
    fn output_part(
        &self,
        pass: &forward::ForwardContext,
        columns: &Range<usize>,
        slot: &ChunkBuffers,
    ) {
        let (hidden, vocab) = (pass.description.hidden, pass.description.vocab);
        let rows = || self.requests.iter().map(|request| request.wanted_rows());
        let count: usize = rows().map(|rows| rows.len()).sum();
        let mut room = lock(&slot.logits_scratch).pop().unwrap_or_default();
        // The layout: logits, the residual stream, its norm.
        let (width, x_width) = (count * columns.len(), count * hidden);
        room.resize(width + 2 * x_width, 0.0);
        let (logits, x) = room.split_at_mut(width);
        let (x, normed) = x.split_at_mut(x_width);
        let mut left = &mut x[..];
        for (rows, first) in rows().zip(&self.firsts) {
            let of_request = left
                .split_off_mut(..rows.len() * hidden)
                .expect("values of all requests");
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
                .expect("values of all requests");
            request.write_logits_part(rows, (columns, vocab), of_request);
        }
        lock(&slot.logits_scratch).push(room);
    }

    /// Returns the residual stream of those of `rows` whose logits are wanted.
    fn hidden(&self, rows: &Range<usize>, buffers: &Buffers, hidden: usize) -> Vec<PendingLogits> {
        let mut at = 0;
        let mut all = Vec::new();
        for (request, own) in self.requests_in(rows) {
            let wanted = request.wanted_rows();
            let mine = own.start.max(wanted.start)..own.end.min(wanted.end);
            if !mine.is_empty() && !request.is_cancelled() {
                let first = at + mine.start - own.start;
                let x = buffers.residual(first..first + mine.len(), hidden).to_vec();
                let rows = mine.start - wanted.start..mine.end - wanted.start;
                all.push(PendingLogits {
                    request: Arc::clone(request),
                    rows,
                    x,
                });
            }
            at += own.len();
        }
        all
    }

    /// Runs one of `tasks` tasks of a step: some blocks, and after the last one the logits.
    fn step(
        &self,
        shared: &EngineInner,
        number: usize,
        tasks: usize,
        slot: &ChunkBuffers,
    ) -> Result<()> {
        let (pass, segments) = (shared.pass(Phase::Decode), self.segments(&(0..self.rows())));
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        let mut progress = slot.progress();
        // Until the task ends, the contents of the buffers are unknown.
        let done = progress.done.take().filter(|done| *done <= number);
        if done.is_none() {
            pass.begin(&self.tokens, chunk);
        }
        let blocks = pass.description.blocks.len();
        let mut kernels = CpuBackend(pass.weights);
        let mut multiplier = MatmulContext::new(&mut kernels);
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

    fn step_logits(
        &self,
        pass: &forward::ForwardContext,
        buffers: &Buffers,
        logits: &mut Vec<f32>,
    ) {
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
        // Copying the logits of a large vocabulary takes a while.
        match &self.requests[..] {
            [request] => request.swap_logits(logits),
            _ => self.write_logits(logits, vocab),
        }
    }

    /// Copies the logits `[rows of all, vocab]` to the requests.
    fn write_logits(&self, mut logits: &[f32], vocab: usize) {
        for request in &self.requests {
            let rows = request.wanted_rows().len();
            let of_request = logits
                .split_off(..rows * vocab)
                .expect("values of all requests");
            request.write_logits(0..rows, of_request);
        }
    }
}

/// A chunk with all that its subgraphs need.
struct ChunkRun<'a> {
    pass: forward::ForwardContext<'a>,
    graph: &'a Graph,
    tokens: &'a [u32],
    chunk: Chunk<'a>,
    shadows: &'a [Option<Shadow>],
}

impl ChunkRun<'_> {
    /// Runs one task of the next subgraph; other workers may run other tasks of it concurrently.
    fn task(
        &self,
        slot: &ChunkBuffers,
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
        let mut multiplier = MatmulContext {
            shadows,
            ..MatmulContext::new(backend)
        };
        match operation {
            Operation::Compute if role.is_product() => {
                self.pass
                    .products((block, role), self.chunk, part, &mut multiplier)?;
            }
            Operation::Compute => {
                let mut progress = slot.progress();
                // Until the task ends, the contents of the buffers are unknown.
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

    /// Runs all whole subgraphs that the buffers lack, up to `subgraph`: results of lost processors are missing.
    fn catch_up(
        &self,
        progress: &mut Progress,
        subgraph: usize,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        debug_assert!(
            progress.pieces.is_empty(),
            "only the next subgraph has pieces"
        );
        let done = progress.done.take();
        if done.is_none() {
            self.pass.begin(self.tokens, self.chunk);
        }
        let mut multiplier = MatmulContext::new(backend);
        for Subgraph { block, role, .. } in &self.graph.subgraphs()[done.unwrap_or(0)..=subgraph] {
            self.pass
                .subgraph(*block, *role, self.chunk, &mut multiplier)?;
        }
        self.complete(progress, subgraph);
        Ok(())
    }

    /// Records that a subgraph is complete in the buffers.
    fn complete(&self, progress: &mut Progress, subgraph: usize) {
        progress.pieces.clear();
        progress.done = None;
        if subgraph + 1 == self.graph.subgraphs().len() {
            self.pass.end(self.chunk);
        }
        progress.done = Some(subgraph + 1);
    }
}

/// Computes the logits of rows that have been through all blocks, one batch for each arithmetic.
fn logits(shared: &EngineInner, hidden: &[PendingLogits]) {
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
        for PendingLogits { request, rows, .. } in of_phase() {
            let of_request = logits
                .split_off(..rows.len() * vocab)
                .expect("values of all requests");
            request.write_logits(rows.clone(), of_request);
        }
    }
}

//! A pass: requests that are computed together. It computes the prompts of some sequences, a decode step, or logits.

mod chunk;
mod perform;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use smallvec::SmallVec;
use triad_kernels::lock;
use triad_plan::graph::Graph;
use triad_plan::tasks::{PrefillTask, PrefillTasks, Shadow};

use super::joint::Planned;
use super::request::Request;
use super::steps::CutStep;
use super::{Costs, EngineInner, Execution, costs};
use crate::forward::{Buffers, Segment};

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
}

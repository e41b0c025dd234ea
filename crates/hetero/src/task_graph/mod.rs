//! A batch as a graph of tasks: the prompts of some sequences, a decode step, or logits.

mod chunk;
mod perform;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use smallvec::SmallVec;
use triad_engine::batch::{Batch, Request};
use triad_engine::forward::Buffers;
use triad_kernels::lock;
use triad_model::description::ModelDescription;
use triad_plan::graph::Graph;
use triad_plan::tasks::{PrefillTask, PrefillTasks, Shadow};

use crate::costs::{self, Costs};
use crate::machine::Machine;
use crate::planned::Planned;
use crate::steps::CutStep;

/// A batch, cut into tasks.
pub(crate) struct TaskGraph {
    pub(crate) start: Instant,
    /// The batch; `None` for logits, whose rows may be of several.
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) work: Work,
}

/// The work of a graph.
pub(crate) enum Work {
    /// Prompts, one after the other in chunks; a chunk may have rows of several.
    Prompts(Box<Prompts>),
    /// A decode step of all requests.
    Step(Step),
    /// Logits of rows that have been through all blocks.
    Logits(Vec<PendingLogits>),
}

/// The tasks of a decode step.
pub(crate) enum Step {
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
    pub(crate) fn observe(&self, seconds: f64) {
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
pub(crate) struct Prompts {
    pub(crate) graph: Graph,
    pub(crate) tasks: Arc<PrefillTasks>,
    /// By subgraph, the shadow that is a separate task. The list may be shorter than that of the subgraphs.
    pub(crate) shadows: Vec<Option<Shadow>>,
    /// Maximum chunks with buffers at a time.
    pub(crate) slots: usize,
    /// The plan of the prompts, if they are planned.
    pub(crate) planned: Option<Planned>,
}

impl Prompts {
    /// Returns the tasks of `rows` rows, the first of them at a position, by their plan if there is one. Their expected
    /// times are those of `costs`, and the measured ones for planned parts on processors with static shapes.
    pub(crate) fn new(
        shared: &Machine,
        costs: &Costs,
        planned: Option<&Planned>,
        (rows, position): (usize, usize),
    ) -> Self {
        let graph = shared
            .tasks
            .graph(shared.forward.description(), rows, planned);
        let tasks = {
            let of_part =
                shared
                    .tasks
                    .planned_seconds(shared.forward.description(), &graph, planned);
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
pub(crate) struct PendingLogits {
    pub(crate) request: Arc<Request>,
    /// Their range among the wanted rows of the request.
    pub(crate) rows: Range<usize>,
    /// `[rows, hidden]`.
    pub(crate) x: Vec<f32>,
}

/// The shared buffers of a chunk or step, and its progress in them.
pub(crate) struct ChunkBuffers {
    pub(crate) buffers: Buffers,
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
    pub(crate) fn new(description: &ModelDescription, rows: usize, has_shadows: bool) -> Self {
        let buffers = Buffers::new(description, rows, has_shadows);
        Self {
            buffers,
            progress: Mutex::default(),
            logits_scratch: Mutex::default(),
        }
    }

    /// Assigns the buffers to a chunk of another pass.
    pub(crate) fn reset(&self, chunk: usize) {
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

impl TaskGraph {
    /// Returns the graph of a batch.
    pub(crate) fn new(batch: Option<Arc<Batch>>, work: Work) -> Self {
        Self {
            start: Instant::now(),
            batch,
            work,
        }
    }

    /// Returns the batch of prompts or of a step.
    pub(crate) fn batch(&self) -> &Arc<Batch> {
        self.batch.as_ref().expect("prompts and steps are batches")
    }

    /// Returns the number of rows of all requests.
    pub(crate) fn rows(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.rows())
    }

    /// Returns whether it computes only logits: little work, maybe of a prompt whose other chunks are still computed.
    pub(crate) fn is_logits(&self) -> bool {
        matches!(self.work, Work::Logits(_))
    }

    /// Returns whether any sequence has adapters, which a device that runs the model whole does not support.
    pub(crate) fn has_adapters(&self) -> bool {
        self.batch
            .as_ref()
            .is_some_and(|batch| batch.has_adapters())
    }

    /// Returns the index of a task's buffers among `slots`.
    pub(crate) fn slot(&self, task: usize, slots: usize) -> Option<usize> {
        match &self.work {
            Work::Prompts(_) => Some(self.chunk(task) % slots),
            Work::Step(_) => Some(0),
            Work::Logits(_) => None,
        }
    }

    /// Returns the chunk of a task.
    pub(crate) fn chunk(&self, task: usize) -> usize {
        match &self.work {
            Work::Prompts(prompts) => prompts.tasks.tasks[task].task.chunk,
            Work::Step(_) | Work::Logits(_) => 0,
        }
    }

    /// Returns whether all its requests are cancelled.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.batch
            .as_ref()
            .is_some_and(|batch| batch.is_abandoned())
    }
}

//! A prefill on several processors at once, out of order (llm.npu, §3.4).
//!
//! [`Executor`] is what a session keeps: who runs, by which policy, and how long tasks took so far ([`costs`]). Each
//! prompt becomes a [`Graph`] of chunks and subgraphs and a [`Schedule`] that worker threads ask for their next task
//! ([`run`]). What comes of it is what the sequential pass computes, bit for bit, as long as all processors multiply with
//! the same kernels: tasks are the same functions, and a task waits for all that it reads. What tasks take can be measured
//! beforehand and kept ([`profile`]).

mod costs;
mod profile;
mod programs;
mod run;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use triad_kernels::pool::Pool;
use triad_model::description::ModelDescription;
use triad_plan::graph::{Graph, Role, Task};
use triad_plan::placement::{Placement, Processor};
use triad_plan::schedule::{Dag, Policy, Schedule};
use triad_plan::timeline::Timeline;

pub use crate::linear::{Output, Products};
pub use costs::{Cost, Costs, Seen};
pub use profile::{CostTable, profile};
pub use programs::Programs;
pub use verify::{Comparison, Verification, lengths, verify};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::{Buffers, Rotation};
use crate::kv_cache::KvCache;
use crate::model::Model;
use crate::threads::Threads;
pub(crate) use run::Prompt;
use run::Run;

/// Who runs a prompt, and how.
pub struct ExecutorOptions {
    /// Threads of the processor that computes in float, and the shadows of what it multiplies.
    pub cpu: Threads,
    /// The processor that multiplies INT8; without one the CPU does.
    pub npu: Option<Int8Processor>,
    /// What decides which task is next.
    pub policy: Policy,
    /// Chunks that are on their way at once, at most; each takes buffers of its own.
    pub chunks_in_flight: usize,
    /// A processor that takes longer than this for one task is lost.
    pub time_out: Duration,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        Self {
            cpu: Threads::Automatic,
            npu: None,
            policy: Policy::CriticalPath,
            chunks_in_flight: 4,
            time_out: Duration::from_secs(60),
        }
    }
}

/// What multiplies INT8 beside the CPU.
pub enum Int8Processor {
    /// Our own kernels, on cores of their own in place of an NPU.
    Kernels(Threads),
    /// The programs of a device. What stands between its products is computed by the threads that drive it, its shadows
    /// while it multiplies by one more.
    Programs {
        /// They drive it.
        threads: Threads,
        /// They multiply.
        products: Box<dyn Products>,
    },
}

/// A processor as a run sees it.
struct Unit {
    processor: Processor,
    pool: Pool,
    /// `None`: our own kernels.
    device: Option<Device>,
    /// It was lost to a time-out, and is still at that task.
    is_away: AtomicBool,
}

/// What multiplies without the threads that drive it.
struct Device {
    products: Mutex<Box<dyn Products>>,
    /// The thread that waits for the device, and one that computes shadows meanwhile (llm.npu, §3.3).
    beside: Pool,
}

/// Runs prompts on several processors: [`Session::with_executor`](crate::Session::with_executor).
pub struct Executor {
    units: Vec<Arc<Unit>>,
    policy: Policy,
    chunks_in_flight: usize,
    time_out: Duration,
    costs: Costs,
    latest: Option<Execution>,
    probe: Option<run::Probe>,
}

/// What happened to a prompt.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// What its tasks waited for.
    pub dag: Dag,
    /// What decided.
    pub policy: Policy,
    /// Which task ran where and when, by its place in [`Graph::tasks`].
    pub timeline: Timeline,
    /// Processors that failed on the way.
    pub losses: Vec<Loss>,
}

/// A processor that failed: another one took over its tasks, and the answer is the same.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// Which one.
    pub processor: Processor,
    /// What it ran; `None` if it was still away when the prompt began.
    pub task: Option<Task>,
    /// What happened.
    pub reason: String,
}

impl Executor {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there are none, or the system refuses them; if no chunk may be in flight.
    pub fn new(options: ExecutorOptions) -> Result<Self> {
        if options.chunks_in_flight == 0 {
            let name = "the number of chunks in flight";
            return Err(Error::Option { name, value: "0".into(), expected: "at least 1" });
        }
        let unit = |processor, threads: &Threads, products: Option<Box<dyn Products>>| {
            let device = products.map(Device::new).transpose()?;
            Ok::<_, Error>(Arc::new(Unit {
                processor,
                pool: threads.start()?,
                device,
                is_away: AtomicBool::new(false),
            }))
        };
        let mut units = vec![unit(Processor::Cpu, &options.cpu, None)?];
        match options.npu {
            None => {}
            Some(Int8Processor::Kernels(threads)) => units.push(unit(Processor::Npu, &threads, None)?),
            Some(Int8Processor::Programs { threads, products }) => {
                units.push(unit(Processor::Npu, &threads, Some(products))?);
            }
        }
        let ExecutorOptions { policy, chunks_in_flight, time_out, .. } = options;
        let costs = Costs::default();
        Ok(Self { units, policy, chunks_in_flight, time_out, costs, latest: None, probe: None })
    }

    /// How the latest prompt went, if one ended.
    pub fn latest(&self) -> Option<&Execution> {
        self.latest.as_ref()
    }

    /// What tasks are expected to take.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Begins with expectations from an earlier run.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// Another policy from the next prompt on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Chunks of `chunk` tokens that are in flight at most in a context of `context`.
    pub(crate) fn chunks_in_flight(&self, context: usize, chunk: usize) -> usize {
        self.chunks_in_flight.min(context.div_ceil(chunk))
    }

    /// What is to be done, for a prompt that begins at `position`.
    fn plan(&self, description: &ModelDescription, tokens: usize, chunk: usize, position: usize) -> (Graph, Dag) {
        let graph = Graph::new(description, tokens, chunk);
        let window = if self.units.len() > 1 { usize::MAX } else { 0 };
        let placement = Placement::new(&graph, window);
        let expected = |task: Task, processor| {
            let tokens = &graph.chunks()[task.chunk];
            let role = graph.subgraphs()[task.subgraph].role;
            self.costs
                .seconds(processor, role, tokens.len(), position + tokens.start)
                .unwrap_or_else(|| costs::guess(&graph, task))
        };
        let dag = Dag::of_prefill_in_flight(&graph, &placement, self.chunks_in_flight, expected);
        (graph, dag)
    }

    /// Runs a prompt. `buffers` are as many as chunks can be in flight, and are so again behind it.
    ///
    /// Answers how many tokens are through all blocks, with all before them, and for each chunk its logits if all were
    /// wanted. The last chunk is in `buffers` at [`Executor::slot`], before [`Pass::end`](crate::forward::Pass::end).
    ///
    /// # Errors
    /// If `cancel` is set, or no processor is left.
    pub(crate) fn run(
        &mut self,
        prompt: Prompt,
        buffers: &mut Vec<Buffers>,
        progress: &mut dyn FnMut(usize),
    ) -> (usize, Result<Vec<Vec<f32>>>) {
        let (description, rows) = (prompt.model.description().clone(), prompt.chunk);
        let (graph, dag) = self.plan(&description, prompt.tokens.len(), prompt.chunk, prompt.position);
        let slots = buffers.len();
        let schedule = Schedule::new(dag.clone(), self.policy);
        let mine = std::mem::take(buffers);
        let run =
            Run::new(prompt, graph.clone(), schedule, mine, self.units.clone(), self.time_out, self.probe.clone());
        let run = Arc::new(run);
        let ended = Run::drive(&run, progress);
        buffers.extend(ended.buffers);
        // Those that a lost processor still holds stay with it.
        buffers.resize_with(slots, || Buffers::new(&description, rows));
        let timeline = Timeline::new(ended.events, self.units.len());
        self.costs.learn([(&graph, run.position(), &timeline)]);
        let (policy, losses) = (self.policy, ended.losses);
        self.latest = Some(Execution { graph, dag, policy, timeline, losses });
        (ended.done, ended.result.map(|()| ended.logits))
    }

    /// Which of `slots` buffers a chunk takes.
    pub(crate) fn slot(chunk: usize, slots: usize) -> usize {
        chunk % slots
    }
}

impl Device {
    fn new(products: Box<dyn Products>) -> Result<Self> {
        const THREADS: usize = 2;
        let beside = Pool::anywhere(THREADS);
        let beside = beside.map_err(|source| Error::Threads { threads: THREADS, source })?;
        Ok(Self { products: Mutex::new(products), beside })
    }
}

impl Unit {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Executor").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Tokens of a prompt without meaning, in a vocabulary of `vocab`.
fn any_tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|index| (index.wrapping_mul(7919) % vocab) as u32).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

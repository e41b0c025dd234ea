//! The engine: runs many sequences of one model on one or several processors.
//!
//! An [`Engine`] owns one worker thread per processor and all that its sessions share: the model, the programs that
//! devices prepared for it, buffers, and the memory of the KV cache. Sessions submit requests ([`request`]). Under one
//! lock ([`scheduler`]) the workers ([`worker`]) form passes from waiting requests ([`batch`]), take the tasks of these
//! passes and run them:
//!
//! - Prompts become a [`Graph`] of chunks and subgraphs, which all processors execute out of order (llm.npu, §3.4).
//!   Their shadows, the corrections for outlier activations, can be separate tasks.
//! - Rows that decode become a step: one pass for all sequences that wait for a token, so that it reads the weights
//!   once for all of them. A step runs between tasks of prompts, and waits no longer than `max_stall` for them. Where
//!   nothing else runs, its products (those of linear layers) can be cut across processors ([`steps`]).
//!
//! The result of a request has the same bits alone and in any batch, with any policy and on any processor, as long as
//! all processors multiply with the same kernels: its arithmetic depends on its phase, each row is computed
//! independently, and a task waits for all that it reads. Task times can be measured in advance and kept ([`profile`]).

mod batch;
mod costs;
mod cut_selector;
mod hot_rows;
mod joint;
mod plan_selector;
mod planned_orders;
mod planning;
mod products;
mod profile;
mod programs;
mod request;
mod scheduler;
mod session;
mod simulation;
mod steps;
mod table;
#[cfg(test)]
mod tests;
mod units;
mod verify;
mod wait;
mod whole;
mod work;
mod worker;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_kernels::Phase;
use triad_kernels::lock;
use triad_plan::graph::{Format, Graph, Role};
use triad_plan::joint::{JointPlan, PromptPlanner};
use triad_plan::partition::plans::Plans;
use triad_plan::processors::{Processor, ProcessorId, Processors};
use triad_plan::schedule::Policy;
use triad_plan::schedule::parts::Cut;
use triad_plan::tasks::{PrefillTasks, TaskOptions};
use triad_plan::timeline::Timeline;

pub use crate::error::{FailureReason, ProcessorFailure, ProcessorFailures};
pub use costs::{Cost, CostSample, Costs};
pub use products::{
    DecodeCosts, DecodePlans, ExhaustedProduct, Joined, MeasureOptions, MeasuredJoins,
    MeasuredProcessor, MeasuredProducts, ProductCosts, ProductTable, ProductTime, RunPartition,
    exhaust_products, measure_joins, measure_products, measure_prompts,
};
pub use profile::{CostTable, OUT_OF_ORDER, profile, profiled_prompts};
pub use session::{Session, SessionOptions};
pub use simulation::SimulatedPrompt;
pub use table::{Measurements, Table};
pub use triad_processors::Device;
use triad_processors::ModelOptions;
pub use units::ProcessorOptions;
pub use verify::{Comparison, Verification, lengths, verify};
pub use wait::{Wait, WaitUse};

use crate::adapter::Adapters;
use crate::error::{Error, Result};
use crate::forward::{Buffers, FixedBlocks, ForwardContext, Rotation};
use crate::hot_rows::{HotRowOptions, HotRowUse, HotRows};
use crate::kv::{KvFormat, KvMemory, KvUse, PrefixSalt, save};
use crate::model::Model;
use crate::statistics::{Counters, Statistics};
use batch::Prompts;
use request::{LogitsMode, Outcome, Request, SequenceId};
use scheduler::Scheduler;
use steps::Steps;
use units::Unit;
use whole::WholeModel;
use work::{Cuts, PromptTasks};

/// The options of an engine.
pub struct EngineOptions {
    /// Options that all its sessions have in common.
    pub session: SessionOptions,
    /// Maximum bytes of keys and values, of sessions and of prefixes that are kept for later sessions; `None` for the
    /// size of four sessions with the whole context.
    pub kv_memory: Option<usize>,
    /// The longest time that a sequence waits for its next decode step while prompts are computed; `None` for the time
    /// of two chunks.
    pub max_stall: Option<Duration>,
    /// Maximum rows that one step decodes.
    pub most_rows: usize,
    /// The processors; if there are none, the model's own threads compute.
    pub processors: Vec<ProcessorOptions>,
    /// The policy that selects the next task.
    pub policy: Policy,
    /// Roles whose outputs are cut across processors: any of query-key-value, attention-output, gate-up and down.
    pub cuts: Vec<(Role, Cut)>,
    /// How the outputs of all products are cut, for all lengths of a chunk, instead of `cuts`.
    pub plans: Option<Plans>,
    /// The search that plans each length of a prompt, over cuts, placement and out-of-order execution, instead of
    /// `cuts` and `plans`.
    pub joint: Option<PromptPlanner>,
    /// How the products of decode steps are cut; `None` runs steps on the processor that computes in float.
    pub decode_plans: Option<DecodePlans>,
    /// Maximum chunks of prompts in flight; each has its own buffers. A single processor computes one chunk after the
    /// other.
    pub chunks_in_flight: usize,
    /// How shadows of prompts read weights that devices have copied to their own memory. `None` reads them in place, so
    /// that the CPU holds a copy of all layers with shadows.
    pub hot_rows: Option<HotRowOptions>,
    /// Whether prompts compute feed-forwards in [fixed point](triad_kernels::fixed_point) between their products, on
    /// every processor. Applies to blocks whose feed-forward has no shadow, and to sessions without adapters. The
    /// results then differ from those of float, but are the same on all processors that support it: CPUs and Hexagon.
    pub fixed_point: bool,
    /// How processors wait for each other.
    pub wait: Wait,
    /// The time limit of a task. Of several processors, one that exceeds it is lost.
    pub time_out: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            kv_memory: None,
            max_stall: None,
            most_rows: 64,
            processors: Vec::new(),
            policy: Policy::default(),
            cuts: Vec::new(),
            plans: None,
            joint: None,
            decode_plans: None,
            chunks_in_flight: 4,
            hot_rows: Some(HotRowOptions::default()),
            fixed_point: false,
            wait: Wait::Predicted,
            time_out: Duration::from_secs(60),
        }
    }
}

/// The plan of a prompt.
pub struct PlannedPrompt {
    /// The chosen plan, with its candidates.
    pub plan: Arc<JointPlan>,
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with the processors that they are placed on.
    pub tasks: Arc<PrefillTasks>,
}

/// Runs sessions of one model, on the model's threads or on several processors. Clones share one engine.
#[derive(Clone)]
pub struct Engine(Arc<Running>);

/// The worker threads, which end when the last clone of an engine and its last session are dropped.
struct Running {
    shared: Arc<EngineInner>,
    workers: Vec<(usize, JoinHandle<()>)>,
    /// The thread that plans orders; only with several processors.
    planner: Option<JoinHandle<()>>,
}

/// The data that sessions and workers share.
pub(crate) struct EngineInner {
    pub(crate) model: Arc<Model>,
    pub(crate) settings: Settings,
    pub(crate) memory: Arc<KvMemory>,
    rotation: Rotation,
    processors: Processors,
    tasks: PromptTasks,
    /// The cut steps of decode.
    steps: Option<Steps>,
    /// The rows of weights that shadows read; only with devices that have memory of their own.
    hot_rows: Option<HotRows>,
    /// The blocks whose feed-forwards prompts compute in fixed point.
    fixed: Option<FixedBlocks>,
    units: Vec<Unit>,
    /// The processor that runs the float operators.
    float_unit: ProcessorId,
    sequences: AtomicU64,
    counters: Counters,
    /// The origin of all times in seconds.
    start: Instant,
    state: Mutex<Scheduler>,
    /// Notified when there may be something to do.
    changed: Condvar,
    /// Waited on by workers that no live task is for. Waking them after each task would slow down those that compute.
    idle: Condvar,
    /// Incremented with each notification, for workers that poll.
    notifications: AtomicUsize,
    /// The number of workers that wait on `changed`; modified under the lock.
    blocked: AtomicUsize,
    /// Notified when prompts wait for orders of their tasks, and when such orders are planned.
    planning: Condvar,
    /// Whether something is being computed, and whether the engine is closing; both are read by the planner thread.
    is_computing: AtomicBool,
    is_closing: AtomicBool,
    probe: Mutex<Option<Probe>>,
}

/// The settings of an engine.
pub(crate) struct Settings {
    pub(crate) context: usize,
    pub(crate) chunk: usize,
    max_stall: Option<Duration>,
    most_rows: usize,
    policy: Policy,
    wait: Wait,
    time_out: Duration,
}

/// How often [`Engine::plan_ahead`] checks whether the planner thread is alive.
const PLANNING_LOOK: Duration = Duration::from_millis(100);

/// Called with a processor's index when it begins and ends a task. An error or panic counts as the processor's.
type Probe = Arc<dyn Fn(usize, Moment) -> Result<()> + Send + Sync>;

/// The moment at which a probe is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before a task.
    Before,
    /// After a task, before its completion is recorded.
    After,
}

/// The execution of the prompts of one pass.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Their chunks and subgraphs.
    pub graph: Graph,
    /// Their tasks, with the dependencies of these.
    pub tasks: Arc<PrefillTasks>,
    /// Position of the first token.
    pub position: usize,
    /// The policy that selected tasks.
    pub policy: Policy,
    /// The processor and the times of each task.
    pub timeline: Timeline,
    /// The time spent waiting for other processors, by processor.
    pub waits: Vec<WaitUse>,
    /// Processors that failed during the pass.
    pub failures: Vec<ProcessorFailure>,
}

/// The usage counters of an engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineUse {
    /// Usage of the KV cache.
    pub kv: KvUse,
    /// Decode steps so far.
    pub steps: u64,
}

impl Engine {
    /// Starts the workers.
    ///
    /// # Errors
    /// If chunk, context, chunks in flight or rows of a step are zero or too many; if there are no threads, the system
    /// refuses them, or no processor computes float; if a subgraph has no place, a cut or fixed point is impossible, or
    /// a device refuses the model or what is placed on it.
    pub fn new(model: &Arc<Model>, options: EngineOptions) -> Result<Self> {
        Self::with_progress(model, options, &mut |_, _| {})
    }

    /// As [`Engine::new`]; calls `progress` with the number of subgraphs that devices have prepared, and the number of
    /// all.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_progress(
        model: &Arc<Model>,
        options: EngineOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let EngineOptions {
            session,
            kv_memory,
            max_stall,
            most_rows,
            processors,
            policy,
            cuts,
            ..
        } = options;
        let EngineOptions {
            chunks_in_flight,
            time_out,
            plans,
            joint,
            decode_plans,
            wait,
            hot_rows,
            fixed_point,
            ..
        } = options;
        let SessionOptions {
            context,
            chunk,
            kv_format,
        } = session;
        let description = model.description();
        for (name, value, expected) in [
            ("the context", context, "at least 1 token"),
            ("the chunk length", chunk, "at least 1 token"),
            (
                "the number of chunks in flight",
                chunks_in_flight,
                "at least 1",
            ),
            ("the number of rows in a step", most_rows, "at least 1"),
        ] {
            if value == 0 {
                return Err(Error::Option {
                    name,
                    value: "0".into(),
                    expected,
                });
            }
        }
        if context > description.context {
            return Err(Error::ContextTooLong {
                asked: context,
                longest: description.context,
            });
        }
        let most = Buffers::most_rows(description);
        for (name, value) in [
            ("the chunk length", chunk.min(context)),
            (
                "the number of rows in a step",
                most_rows.checked_next_power_of_two().unwrap_or(usize::MAX),
            ),
        ] {
            if value > most {
                let expected = "at most as many as buffers of 2147483647 numbers hold";
                return Err(Error::Option {
                    name,
                    value: value.to_string(),
                    expected,
                });
            }
        }
        let (processors, mut units, devices) = units::start(model, processors)?;
        let chunk = chunk.min(context);
        let budget =
            kv_memory.unwrap_or_else(|| 4 * KvMemory::bytes_of(description, kv_format, context));
        let settings = Settings {
            context,
            chunk,
            max_stall,
            most_rows,
            policy,
            wait,
            time_out,
        };
        let state = Scheduler::new(&settings, units.len());
        let computes_float = |(_, one): &(ProcessorId, &Processor)| one.computes(Format::Float);
        let preferred = processors
            .iter()
            .find(|one| computes_float(one) && one.1.prefers(Format::Float));
        let float_unit = preferred
            .or_else(|| processors.iter().find(computes_float))
            .map(|(id, _)| id);
        let Some(float_unit) = float_unit else {
            let expected = "one that computes in float";
            return Err(Error::Option {
                name: "the list of processors",
                value: "INT8 alone".into(),
                expected,
            });
        };
        let rotation = Rotation::new(description, context);
        let mut devices: Vec<_> = devices.iter().map(Option::as_deref).collect();
        if let ([unit], [device]) = (&mut units[..], &mut devices[..])
            && let Some(device) = device
                .take_if(|device| !model.weights().is_int8() || device.capabilities().whole_models)
        {
            let options = ModelOptions {
                rows: chunk.max(most_rows),
                outputs: most_rows,
            };
            if fixed_point {
                let expected = "float, where one processor runs the model whole";
                return Err(Error::Option {
                    name: WITHIN,
                    value: FIXED_POINT.into(),
                    expected,
                });
            }
            unit.whole = Some(WholeModel::prepare(
                model, &rotation, device, kv_format, options,
            )?);
        }
        let in_flight = if units.len() == 1 {
            1
        } else {
            chunks_in_flight.min(context.div_ceil(chunk))
        };
        let chunks = (chunk, in_flight);
        let cuts = Cuts {
            by_role: &cuts,
            plans: plans.as_ref(),
            joint: joint.as_ref(),
        };
        let fixed = fixed_point.then(|| fixed_blocks(model, cuts)).transpose()?;
        let how = (cuts, fixed.as_ref());
        let (mut tasks, mut programs) =
            PromptTasks::prepare(model, &processors, &devices, chunks, how, progress)?;
        (tasks.plans, tasks.joint) = (plans, joint);
        let steps = decode_plans.map(|plans| {
            let rows = most_rows.min(context);
            Steps::prepare(
                model,
                &processors,
                (&devices, &mut programs),
                (&plans, float_unit),
                rows,
            )
        });
        let steps = steps.transpose()?;
        let hot_rows = hot_rows::start(model, hot_rows.as_ref(), &devices, &programs);
        for (unit, programs) in units.iter_mut().zip(programs) {
            unit.programs = programs.map(Mutex::new);
        }
        let shared = Arc::new(EngineInner {
            model: Arc::clone(model),
            memory: Arc::new(KvMemory::new(description, kv_format, budget)),
            rotation,
            settings,
            processors,
            tasks,
            steps,
            hot_rows,
            fixed,
            units,
            float_unit,
            sequences: AtomicU64::new(0),
            counters: Counters::default(),
            start: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            idle: Condvar::new(),
            notifications: AtomicUsize::new(0),
            blocked: AtomicUsize::new(0),
            planning: Condvar::new(),
            is_computing: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            probe: Mutex::new(None),
        });
        let mut running = Running {
            shared,
            workers: Vec::new(),
            planner: None,
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new()
                .name(format!("triad-{name}"))
                .spawn(work);
            thread.map_err(|error| Error::Threads {
                threads: 1,
                source: error,
            })
        };
        if running.shared.units.len() > 1 {
            let shared = Arc::clone(&running.shared);
            running.planner = Some(spawn(
                "planner",
                Box::new(move || planning::serve(&shared)),
            )?);
        }
        for index in 0..running.shared.units.len() {
            let shared = Arc::clone(&running.shared);
            let name = shared.units[index].name.clone();
            running.workers.push((
                index,
                spawn(&name, Box::new(move || worker::serve(&shared, index)))?,
            ));
        }
        Ok(Self(Arc::new(running)))
    }

    /// Returns the maximum tokens of a session, prompt and answer together.
    pub fn context(&self) -> usize {
        self.shared().settings.context
    }

    /// Returns a new, empty session.
    pub fn session(&self) -> Session {
        Session::of(self)
    }

    /// Returns the session that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// If the file is not a saved session, is damaged, or is of another model, format, context or version, or has
    /// adapters; if there is no memory for its keys and values.
    pub fn restore(&self, path: &Path) -> Result<Session> {
        self.restore_with(path, &Adapters::default())
    }

    /// Returns the session with `adapters` that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// As [`Engine::restore`]; if the session had other adapters or scales, or one was opened for another model.
    pub fn restore_with(&self, path: &Path, adapters: &Adapters) -> Result<Session> {
        self.restore_salted(path, adapters, PrefixSalt::default())
    }

    /// As [`Engine::restore_with`], for a session with `salt`: only sessions with the same salt find the prefixes that
    /// it [shares](Session::share).
    ///
    /// # Errors
    /// As [`Engine::restore_with`].
    pub fn restore_salted(
        &self,
        path: &Path,
        adapters: &Adapters,
        salt: PrefixSalt,
    ) -> Result<Session> {
        let EngineInner {
            model,
            settings,
            memory,
            ..
        } = &**self.shared();
        adapters.check(model.description())?;
        let (header, tokens, cache) = save::restore(
            path,
            &model.fingerprint(),
            settings.context,
            memory,
            adapters,
        )?;
        let vocab = model.description().vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(Error::TokenOutOfVocabulary {
                token: *token,
                vocab,
            }),
            None => Ok(Session::restored(
                self,
                &tokens,
                header.prefilled,
                cache.with_salt(salt),
            )),
        }
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.shared().model
    }

    /// Returns the processors.
    pub fn processors(&self) -> &Processors {
        &self.shared().processors
    }

    /// Returns where subgraphs run, which of their outputs are cut, and which shadows are separate tasks. Subgraphs are
    /// numbered as in [`Engine::graph`].
    pub fn tasks(&self) -> &TaskOptions {
        &self.shared().tasks.options
    }

    /// Returns the subgraphs of one chunk.
    pub fn graph(&self) -> Graph {
        let EngineInner {
            tasks,
            model,
            settings,
            ..
        } = &**self.shared();
        tasks.graph(model.description(), settings.chunk, None)
    }

    /// Returns the number format of keys and values.
    pub fn kv_format(&self) -> KvFormat {
        self.shared().memory.format()
    }

    /// Returns the usage of the KV cache and the number of steps so far.
    pub fn usage(&self) -> EngineUse {
        EngineUse {
            kv: self.shared().memory.usage(),
            steps: self.state().steps,
        }
    }

    /// Returns the seconds that each of its [processors](Engine::processors) has computed so far. The rest of the time
    /// a processor had nothing to do, or waited for others.
    pub fn busy_seconds(&self) -> Vec<f64> {
        self.state().busy_seconds().collect()
    }

    /// Returns the usage of the weight rows that shadows read. `None` if no device with memory of its own multiplies
    /// for a shadow, or weights are read in place.
    pub fn hot_rows(&self) -> Option<HotRowUse> {
        self.shared().hot_rows.as_ref().map(HotRows::usage)
    }

    /// Returns how many blocks compute feed-forwards of prompts in fixed point between their products; `None` if that
    /// is off ([`EngineOptions::fixed_point`]).
    pub fn fixed_point(&self) -> Option<usize> {
        self.shared().fixed.as_ref().map(FixedBlocks::count)
    }

    /// Forgets all prefixes that no session holds.
    pub fn forget_prefixes(&self) {
        self.shared().memory.clear();
    }

    /// Returns the expected times of tasks.
    pub fn costs(&self) -> Costs {
        self.state().costs().clone()
    }

    /// Replaces the expected times of tasks by those of an earlier run.
    pub fn set_costs(&self, costs: Costs) {
        self.state().set_costs(self.shared(), costs);
    }

    /// Returns the plan of a prompt of `tokens` in an empty session; `None` if prompts are not planned
    /// ([`EngineOptions::joint`]).
    pub fn planned(&self, tokens: usize) -> Option<PlannedPrompt> {
        let mut state = self.state();
        let plan = state.joint_plan(self.shared(), tokens.max(1), 0)?.plan;
        let Prompts { graph, tasks, .. } = state.plan(self.shared(), tokens.max(1), 0);
        Some(PlannedPrompt { plan, graph, tasks })
    }

    /// Changes the policy as soon as nothing is being computed.
    pub fn set_policy(&self, policy: Policy) {
        self.state().set_policy(self.shared(), policy);
    }

    /// Plans the order of the tasks of prompts of `tokens` tokens in empty sessions, and waits until it is planned.
    /// Returns immediately if the policy follows no planned orders. Without this call, prompts run with
    /// [`Policy::CriticalPath`] while their orders are planned concurrently.
    pub fn plan_ahead(&self, tokens: usize) {
        let mut state = self.state();
        state.want_order(self.shared(), tokens.max(1), 0);
        let is_alive = || {
            self.0
                .planner
                .as_ref()
                .is_some_and(|planner| !planner.is_finished())
        };
        while !state.orders.is_idle() && is_alive() {
            (state, _) = self
                .shared()
                .planning
                .wait_timeout(state, PLANNING_LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Turns the counting of operators on or off. It is off at first: counting reads the clock twice per operator, and
    /// the operator's sizes.
    pub fn count(&self, on: bool) {
        self.shared().counters.turn(on);
    }

    /// Returns the [counted](Engine::count) operators that this engine's processors ran with our own kernels, or with a
    /// device's programs for single subgraphs. Excludes devices that run the whole model, and products of decode steps
    /// that several processors share.
    pub fn statistics(&self) -> Statistics {
        self.shared().counters.statistics()
    }

    pub(crate) fn shared(&self) -> &Arc<EngineInner> {
        &self.0.shared
    }

    fn state(&self) -> MutexGuard<'_, Scheduler> {
        lock(&self.shared().state)
    }

    #[cfg(test)]
    fn set_probe(&self, probe: Option<Probe>) {
        *lock(&self.shared().probe) = probe;
    }
}

/// The name of the fixed-point option in errors, and its value other than float.
const WITHIN: &str = "the arithmetic within feed-forwards";
const FIXED_POINT: &str = "fixed point";

/// Returns the blocks whose feed-forwards prompts compute in fixed point.
///
/// # Errors
/// If there are none, or feed-forwards are cut.
fn fixed_blocks(model: &Model, cuts: Cuts) -> Result<FixedBlocks> {
    let refused = |expected| {
        Err(Error::Option {
            name: WITHIN,
            value: FIXED_POINT.into(),
            expected,
        })
    };
    if cuts.cuts_feed_forwards() {
        return refused("float, where gate and up or down are cut");
    }
    let fixed = FixedBlocks::new(programs::fixed_point(model));
    if fixed.count() == 0 {
        return refused(
            "float, or a package in INT8 with static scales, SiLU or GELU in its tanh form, and a block whose \
             feed-forward keeps no shadow",
        );
    }
    Ok(fixed)
}

impl EngineInner {
    /// Returns a forward pass in the arithmetic of `phase`.
    pub(crate) fn pass(&self, phase: Phase) -> ForwardContext<'_> {
        let Self {
            model,
            rotation,
            counters,
            fixed,
            ..
        } = self;
        let (description, weights) = (model.description(), model.weights());
        ForwardContext {
            description,
            weights,
            rotation,
            phase,
            hot_rows: None,
            counters,
            fixed: fixed.as_ref(),
        }
    }

    /// Returns the number of a new sequence.
    pub(crate) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.sequences.fetch_add(1, Ordering::Relaxed))
    }

    /// Submits requests, all at once. With one processor, the caller computes them as it waits: no thread is woken.
    pub(crate) fn submit(&self, requests: &[Arc<Request>]) {
        let mut state = lock(&self.state);
        requests.iter().for_each(|request| state.submit(request));
        if self.units.len() > 1 {
            self.notify(&mut state);
        }
    }

    /// With one processor, runs tasks on this thread until `is_enough`. Returns whether there was one.
    fn run_inline(&self, is_enough: &dyn Fn() -> bool) -> bool {
        worker::run_inline(self, is_enough)
    }

    /// Removes a sequence: no step waits for it any more, and devices drop its keys and values.
    pub(crate) fn forget(&self, sequence: SequenceId) {
        self.units
            .iter()
            .filter_map(|unit| unit.whole.as_ref())
            .for_each(|whole| whole.forget(sequence));
        let mut state = lock(&self.state);
        state.forget(sequence);
        self.notify(&mut state);
    }

    /// Makes the workers check for work again.
    fn wake(&self) {
        self.notify(&mut lock(&self.state));
    }

    /// Checks for workers that hang, from the thread of a session: all workers may hang.
    fn watch(&self) {
        if self.units.len() > 1 {
            let mut state = lock(&self.state);
            if state.lose_hung(self) {
                self.notify(&mut state);
            }
            state.fail_stranded(self);
        }
    }

    /// Wakes waiting workers.
    fn notify(&self, state: &mut MutexGuard<'_, Scheduler>) {
        let has_new_work = state.notify();
        self.notifications.fetch_add(1, Ordering::Relaxed);
        // Between short tasks no worker is blocked, and a system call that wakes no thread takes as long as a join.
        if self.blocked.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        if has_new_work {
            self.idle.notify_all();
        }
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_secs_f64()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.shared.state);
            state.is_closing = true;
            self.shared.is_closing.store(true, Ordering::Relaxed);
            self.shared.planning.notify_all();
            self.shared.notify(&mut state);
        }
        if let Some(planner) = self.planner.take() {
            let _ = planner.join();
        }
        for (index, worker) in self.workers.drain(..) {
            // A thread that hangs is not joined. A worker may drop the last session, and cannot join itself.
            if !self.shared.units[index].is_away()
                && worker.thread().id() != std::thread::current().id()
            {
                let _ = worker.join();
            }
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("processors", self.processors())
            .finish_non_exhaustive()
    }
}

/// Returns the tokens of an arbitrary prompt, in a vocabulary of `vocab`.
fn any_tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect()
}

//! The engine: many sequences of one model on one or several processors.
//!
//! [`Engine`] has a worker thread for each processor, as long as it lives, and what all its sessions share: the model, the
//! programs that processors prepared for it, buffers, and the memory for keys and values. Sessions hand in requests
//! ([`request`]); workers make passes of them and take their tasks ([`state`], [`pass`], [`worker`]):
//!
//! - Prompts become a [`Graph`] of chunks and subgraphs that all processors work on, out of order (llm.npu, §3.4).
//! - Rows that decode become a step: one pass for all sequences that wait for a token, so that weights are read once for all
//!   of them. A step is taken beside prompts, and no later than `max_stall` allows. Where nothing else is to be done, its
//!   products can be cut across processors ([`steps`]).
//!
//! What comes of a request is the same bits alone and beside any others, by any policy and on any of the processors, as
//! long as all multiply with the same kernels: its arithmetic depends on its phase, each row is computed by itself, and a
//! task waits for all that it reads. What tasks take can be measured beforehand and kept ([`profile`]).

mod costs;
mod hot_rows;
mod joint;
mod lateness;
mod orders;
mod pass;
mod planning;
mod products;
mod profile;
mod programs;
mod request;
mod session;
mod simulation;
mod state;
mod steps;
mod table;
#[cfg(test)]
mod tests;
mod trial;
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
use triad_plan::joint::{Joint, JointPlan};
use triad_plan::partition::plans::Plans;
use triad_plan::processors::{Processor, ProcessorId, Processors};
use triad_plan::schedule::Policy;
use triad_plan::schedule::parts::Cut;
use triad_plan::tasks::{PrefillTasks, TaskOptions};
use triad_plan::timeline::Timeline;

pub use crate::error::{FailureReason, ProcessorFailure, ProcessorFailures};
pub use costs::{Cost, Costs, Seen};
pub use products::{
    DecodeCosts, DecodePlans, ExhaustedProduct, Joined, MeasureOptions, MeasuredJoins,
    MeasuredProcessor, MeasuredProducts, ProductCosts, ProductTable, ProductTime, RunPartition,
    exhaust_products, measure_joins, measure_products, measure_prompts,
};
pub use profile::{BESIDE, CostTable, profile, profiled_prompts};
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
use crate::forward::{Buffers, FixedBlocks, Pass as ForwardPass, Rotation};
use crate::hot_rows::{HotRowOptions, HotRowUse, HotRows};
use crate::kv::{KvFormat, KvMemory, KvUse, PrefixSalt, save};
use crate::model::Model;
use crate::statistics::{Counters, Statistics};
use pass::Prompts;
use request::{Outcome, Request, SequenceId, Wanted};
use state::State;
use steps::Steps;
use units::Unit;
use whole::WholeModel;
use work::{Cuts, PromptTasks};

/// How an engine is set up.
pub struct EngineOptions {
    /// What all its sessions have in common.
    pub session: SessionOptions,
    /// Most bytes of keys and values, of sessions and of prefixes that are kept for later ones; `None` for as much as
    /// four sessions of the whole context take.
    pub kv_memory: Option<usize>,
    /// Longest time that a sequence which decodes waits for its next step while prompts are computed; `None` for what two
    /// chunks take.
    pub max_stall: Option<Duration>,
    /// Rows that are decoded in one step, at most.
    pub most_rows: usize,
    /// Who computes; nobody for the model's own threads.
    pub processors: Vec<ProcessorOptions>,
    /// What decides which task is next.
    pub policy: Policy,
    /// Roles whose outputs are cut across processors: of query-key-value, attention-output, gate-up and down.
    pub cuts: Vec<(Role, Cut)>,
    /// How the outputs of all products are cut instead, for all lengths of a chunk.
    pub plans: Option<Plans>,
    /// How prompts are divided and computed instead: by a search over cuts, placement and out-of-order execution for each
    /// length of a prompt.
    pub joint: Option<Joint>,
    /// How the products of steps of decode are cut; `None` runs them on the processor of the floats.
    pub decode_plans: Option<DecodePlans>,
    /// Chunks of prompts that are on their way at once, at most; each takes buffers of its own. One processor alone
    /// computes one after the other.
    pub chunks_in_flight: usize,
    /// How shadows of prompts read weights beside devices with memory of their own; `None` for in place, so that the CPU
    /// holds a copy of all layers that keep a shadow.
    pub hot_rows: Option<HotRowOptions>,
    /// Whether feed-forwards of prompts are computed in [fixed point](triad_kernels::fixed_point) between their products,
    /// by whichever processor: of blocks whose feed-forward keeps no shadow, for sessions without adapters. Answers are
    /// then not those of float, but the same on all processors that have it: CPUs and Hexagon.
    pub fixed_point: bool,
    /// How processors wait for each other.
    pub wait: Wait,
    /// Of several processors, one that takes longer than this for one task is lost.
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

/// How a prompt is going to be computed.
pub struct PlannedPrompt {
    /// What was chosen, of which candidates.
    pub plan: Arc<JointPlan>,
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with the processors that they are for.
    pub tasks: Arc<PrefillTasks>,
}

/// Runs sessions of one model: on its threads, or on several processors. Copies are the same engine.
#[derive(Clone)]
pub struct Engine(Arc<Running>);

/// The workers, which end with the last copy of an engine and its sessions.
struct Running {
    shared: Arc<Shared>,
    workers: Vec<(usize, JoinHandle<()>)>,
    /// Of several processors, who plans orders.
    planner: Option<JoinHandle<()>>,
}

/// What sessions and workers share.
pub(crate) struct Shared {
    pub(crate) model: Arc<Model>,
    pub(crate) settings: Settings,
    pub(crate) memory: Arc<KvMemory>,
    rotation: Rotation,
    processors: Processors,
    tasks: PromptTasks,
    /// Where steps are cut.
    steps: Option<Steps>,
    /// Beside devices with memory of their own.
    hot_rows: Option<HotRows>,
    /// What of prompts is computed in fixed point.
    fixed: Option<FixedBlocks>,
    units: Vec<Unit>,
    /// The processor of what is computed in float.
    float_unit: ProcessorId,
    sequences: AtomicU64,
    counters: Counters,
    /// Since when times are counted.
    start: Instant,
    state: Mutex<State>,
    /// Notified whenever there may be something to do.
    changed: Condvar,
    /// What those wait for that no task of what is being computed is for: to wake them behind each task would take time of
    /// those that compute.
    idle: Condvar,
    /// How often it was.
    told: AtomicUsize,
    /// Workers that are blocked until it is; changed under the lock.
    blocked: AtomicUsize,
    /// Notified when prompts wait for orders of their tasks, and when these are planned.
    planning: Condvar,
    /// Whether something is being computed, and whether the engine ends: for who plans.
    is_computing: AtomicBool,
    is_closing: AtomicBool,
    probe: Mutex<Option<Probe>>,
}

/// What an engine was asked to be.
pub(crate) struct Settings {
    pub(crate) context: usize,
    pub(crate) chunk: usize,
    max_stall: Option<Duration>,
    most_rows: usize,
    policy: Policy,
    wait: Wait,
    time_out: Duration,
}

/// How often who waits for orders looks whether somebody plans.
const PLANNING_LOOK: Duration = Duration::from_millis(100);

/// Is called when a processor, by its index, begins and ends a task; its error or panic counts as the processor's.
type Probe = Arc<dyn Fn(usize, Moment) -> Result<()> + Send + Sync>;

/// When a probe is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before a task.
    Before,
    /// Behind it, before anybody knows that it is done.
    Behind,
}

/// How the prompts went that were computed together.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Their chunks and subgraphs.
    pub graph: Graph,
    /// Their tasks, and what these waited for.
    pub tasks: Arc<PrefillTasks>,
    /// Position of the first token.
    pub position: usize,
    /// What decided.
    pub policy: Policy,
    /// Which task ran where and when.
    pub timeline: Timeline,
    /// What waiting for each other took, by processor.
    pub waits: Vec<WaitUse>,
    /// Processors that failed on the way.
    pub failures: Vec<ProcessorFailure>,
}

/// What an engine has done so far, and what it holds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineUse {
    /// Keys and values.
    pub kv: KvUse,
    /// Steps of sequences that decode.
    pub steps: u64,
}

impl Engine {
    /// Starts the workers.
    ///
    /// # Errors
    /// If chunk or context is zero, or the context is longer than the model was made for; if there are no threads, or the
    /// system refuses them; if no chunk may be in flight, or no row in a step; if a subgraph has no place, a cut can't be
    /// made, or a device refuses what is placed on it or the whole model.
    pub fn new(model: &Arc<Model>, options: EngineOptions) -> Result<Self> {
        Self::with_progress(model, options, &mut |_, _| {})
    }

    /// As [`Engine::new`]; `progress` is called with how many subgraphs of how many devices have prepared.
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
        let state = State::new(&settings, units.len());
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
        let shared = Arc::new(Shared {
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
            told: AtomicUsize::new(0),
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

    /// Tokens that a session holds at most, prompt and answer.
    pub fn context(&self) -> usize {
        self.shared().settings.context
    }

    /// A new session, which has seen nothing.
    pub fn session(&self) -> Session {
        Session::of(self)
    }

    /// A session that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// If the file is not a saved session, is damaged, or is of another model, format, context or version, or has adapters;
    /// if there is no memory for its keys and values.
    pub fn restore(&self, path: &Path) -> Result<Session> {
        self.restore_with(path, &Adapters::default())
    }

    /// A session with `adapters` that [`Session::save`] wrote to `path`.
    ///
    /// # Errors
    /// As [`Engine::restore`]; if the session had other adapters or scales, or one was opened for another model.
    pub fn restore_with(&self, path: &Path, adapters: &Adapters) -> Result<Session> {
        self.restore_salted(path, adapters, PrefixSalt::default())
    }

    /// As [`Engine::restore_with`], a session with `salt`: what it [shares](Session::share) is found by sessions with the same
    /// salt alone.
    ///
    /// # Errors
    /// As [`Engine::restore_with`].
    pub fn restore_salted(
        &self,
        path: &Path,
        adapters: &Adapters,
        salt: PrefixSalt,
    ) -> Result<Session> {
        let Shared {
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

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.shared().model
    }

    /// The processors.
    pub fn processors(&self) -> &Processors {
        &self.shared().processors
    }

    /// Where subgraphs run, which of their outputs are cut, and which shadows are tasks of their own, by their place in
    /// [`Engine::graph`].
    pub fn tasks(&self) -> &TaskOptions {
        &self.shared().tasks.options
    }

    /// The subgraphs of one chunk.
    pub fn graph(&self) -> Graph {
        let Shared {
            tasks,
            model,
            settings,
            ..
        } = &**self.shared();
        tasks.graph(model.description(), settings.chunk, None)
    }

    /// Number format of keys and values.
    pub fn kv_format(&self) -> KvFormat {
        self.shared().memory.format()
    }

    /// What it has done so far, and what it holds.
    pub fn usage(&self) -> EngineUse {
        EngineUse {
            kv: self.shared().memory.usage(),
            steps: self.state().steps,
        }
    }

    /// Seconds that each of its [processors](Engine::processors) has computed so far; the rest of the time it had nothing to
    /// do, or waited for others.
    pub fn busy_seconds(&self) -> Vec<f64> {
        self.state().busy_seconds().collect()
    }

    /// What the rows of shadows are and did so far; `None` where no device with memory of its own multiplies for a shadow, or
    /// weights are read in place.
    pub fn hot_rows(&self) -> Option<HotRowUse> {
        self.shared().hot_rows.as_ref().map(HotRows::usage)
    }

    /// How many blocks compute feed-forwards of prompts in fixed point between their products; `None` where that was not
    /// asked for ([`EngineOptions::fixed_point`]).
    pub fn fixed_point(&self) -> Option<usize> {
        self.shared().fixed.as_ref().map(FixedBlocks::count)
    }

    /// Forgets all prefixes that no session holds.
    pub fn forget_prefixes(&self) {
        self.shared().memory.clear();
    }

    /// What tasks are expected to take.
    pub fn costs(&self) -> Costs {
        self.state().costs().clone()
    }

    /// Goes on with expectations from an earlier run.
    pub fn set_costs(&self, costs: Costs) {
        self.state().set_costs(self.shared(), costs);
    }

    /// How a prompt of `tokens` is computed from an empty session, where prompts are planned ([`EngineOptions::joint`]).
    pub fn planned(&self, tokens: usize) -> Option<PlannedPrompt> {
        let mut state = self.state();
        let plan = state.joint_plan(self.shared(), tokens.max(1), 0)?.plan;
        let Prompts { graph, tasks, .. } = state.plan(self.shared(), tokens.max(1), 0);
        Some(PlannedPrompt { plan, graph, tasks })
    }

    /// Another policy, as soon as nothing is being computed.
    pub fn set_policy(&self, policy: Policy) {
        self.state().set_policy(self.shared(), policy);
    }

    /// Has the order of the tasks of prompts of `tokens` tokens planned for empty sessions, and waits until it is; returns
    /// at once where no orders are followed. Without it prompts are computed by [`Policy::CriticalPath`] until their
    /// orders are planned beside them.
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

    /// Counts what operators take from now on, or no more. An engine that has begun does not count: it costs two looks at
    /// the clock for each operator, and those at sizes.
    pub fn count(&self, on: bool) {
        self.shared().counters.turn(on);
    }

    /// What was [counted](Engine::count) so far of the operators that this engine's processors run by our own kernels, or
    /// by a device's programs for single subgraphs. What is computed by a device that runs the whole model, and products of
    /// decode that several processors share, are not among them.
    pub fn statistics(&self) -> Statistics {
        self.shared().counters.statistics()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared().state)
    }

    #[cfg(test)]
    fn set_probe(&self, probe: Option<Probe>) {
        *lock(&self.shared().probe) = probe;
    }
}

/// What an option is about that has a value other than float.
const WITHIN: &str = "the arithmetic within feed-forwards";
const FIXED_POINT: &str = "fixed point";

/// The feed-forwards that fixed point is for.
///
/// # Errors
/// If there are none, or they are cut.
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

impl Shared {
    /// A pass in the arithmetic of `phase`.
    pub(crate) fn pass(&self, phase: Phase) -> ForwardPass<'_> {
        let Self {
            model,
            rotation,
            counters,
            fixed,
            ..
        } = self;
        let (description, weights) = (model.description(), model.weights());
        ForwardPass {
            description,
            weights,
            rotation,
            phase,
            hot_rows: None,
            counters,
            fixed: fixed.as_ref(),
        }
    }

    /// A number for a new sequence.
    pub(crate) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.sequences.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands in requests, all at once. Whoever does waits for them behind this, which with one processor wakes nobody.
    pub(crate) fn submit(&self, requests: &[Arc<Request>]) {
        let mut state = lock(&self.state);
        requests.iter().for_each(|request| state.submit(request));
        if self.units.len() > 1 {
            self.tell(&mut state);
        }
    }

    /// Runs tasks on this thread where there is one processor, until `is_enough`. Returns whether there was one.
    fn help(&self, is_enough: &dyn Fn() -> bool) -> bool {
        worker::help(self, is_enough)
    }

    /// No step waits for this sequence any more, and no device keeps what it holds.
    pub(crate) fn forget(&self, sequence: SequenceId) {
        self.units
            .iter()
            .filter_map(|unit| unit.whole.as_ref())
            .for_each(|whole| whole.forget(sequence));
        let mut state = lock(&self.state);
        state.forget(sequence);
        self.tell(&mut state);
    }

    /// Has the workers look again.
    fn wake(&self) {
        self.tell(&mut lock(&self.state));
    }

    /// Looks for processors that hang, on behalf of workers that may all do so.
    fn watch(&self) {
        if self.units.len() > 1 {
            let mut state = lock(&self.state);
            if state.lose_hung(self) {
                self.tell(&mut state);
            }
            state.fail_unserved(self);
        }
    }

    /// Wakes those that wait.
    fn tell(&self, state: &mut MutexGuard<'_, State>) {
        let has_news = state.tell();
        self.told.fetch_add(1, Ordering::Relaxed);
        // Between short tasks nobody is, and to ask the system to wake nobody takes as long as a join.
        if self.blocked.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        if has_news {
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
            self.shared.tell(&mut state);
        }
        if let Some(planner) = self.planner.take() {
            let _ = planner.join();
        }
        for (index, worker) in self.workers.drain(..) {
            // A thread that hangs is left alone, and a worker may itself drop the last session.
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

/// Tokens of a prompt without meaning, in a vocabulary of `vocab`.
fn any_tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect()
}

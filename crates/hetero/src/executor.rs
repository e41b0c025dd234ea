//! The executor on several processors.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use triad_engine::batch::{Batch, SequenceId};
use triad_engine::executor::{Executor, Limits, ProcessorUse};
use triad_engine::kv::MAX_IN_FLIGHT;
use triad_engine::linear::{Backend, CpuBackend};
use triad_engine::{Cancel, Engine, ExecutorSetup, Model, Pixels};
use triad_kernels::lock;
use triad_model::role::Format;
use triad_plan::processors::{Processor, ProcessorId, Processors};
use triad_processors::ModelOptions;

use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::fixed_point::{FixedBackend, FixedBlocks};
use crate::machine::{Machine, Settings};
use crate::multiplier::Divisions;
use crate::options::HeteroOptions;
use crate::programs_of_parts::Devices;
use crate::shared::HeteroInner;
use crate::steps::Steps;
use crate::whole::WholeModel;
use crate::work::{Cuts, PromptTasks};
use crate::{multiplier, outlier_cache, planning, preparing, worker_loop, workers};

/// Computes batches on several processors. Dropping it ends its threads.
pub struct HeteroExecutor {
    shared: Arc<HeteroInner>,
    threads: Vec<(usize, JoinHandle<()>)>,
    /// The thread that plans orders; only with several processors.
    planner: Option<JoinHandle<()>>,
}

impl HeteroExecutor {
    /// Prepares the model for the processors, and starts their threads.
    ///
    /// # Errors
    /// As [`HeteroEngine::new`](crate::HeteroEngine::new).
    pub(crate) fn new(
        setup: &ExecutorSetup,
        options: HeteroOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let HeteroOptions {
            engine: _,
            processors,
            policy,
            cuts,
            plans,
            joint,
            decode_plans,
            chunks_in_flight,
            outlier_cache,
            fixed_point,
            wait,
            time_out,
        } = options;
        if let Some(part) = setup.forward.description().only_for_one_cpu() {
            let error = triad_model::Error::new(
                triad_model::ErrorKind::Unsupported,
                format!(
                    "the model {part}, which only one CPU runs: leave out the list of processors"
                ),
            );
            return Err(Error::Engine(error.into()));
        }
        if chunks_in_flight == 0 {
            return Err(Error::option(
                "the number of chunks in flight",
                "0",
                "at least 1",
            ));
        }
        let ExecutorSetup {
            forward,
            context,
            chunk,
            kv_format,
            options,
        } = setup;
        let (model, context, chunk, most_rows) =
            (forward.model(), *context, *chunk, options.most_rows);
        let (processors, mut workers, devices) = workers::start(model, processors)?;
        let settings = Settings {
            context,
            chunk,
            max_stall: options.max_stall,
            policy,
            wait,
            time_out,
        };
        let float_unit = float_unit(&processors)?;
        let encoder = Encoder::new(model, time_out, &processors, (&workers, &devices));
        let multipliers = workers
            .iter()
            .filter_map(|worker| worker.multiplier.clone());
        let all_devices = devices
            .iter()
            .flatten()
            .cloned()
            .chain(multipliers)
            .collect();
        let (mut cuts, mut plans) = (cuts, plans);
        let mut devices: Vec<_> = devices.iter().map(Option::as_deref).collect();
        if let ([worker], [device]) = (&mut workers[..], &mut devices[..])
            && let Some(device) = device
                .take_if(|device| !model.weights().is_int8() || device.capabilities().whole_models)
        {
            let options = ModelOptions {
                rows: chunk.max(most_rows),
                outputs: most_rows,
            };
            if fixed_point {
                let expected = "float, where one processor runs the model whole";
                return Err(Error::option(WITHIN, FIXED_POINT, expected));
            }
            WholeModel::check(model, *kv_format)?;
            let (multiplier, without_room) = match &worker.multiplier {
                Some(multiplier) => {
                    if joint.is_some() || decode_plans.is_some() {
                        let expected = "plans of the products of prompts alone, where one device runs the model whole";
                        return Err(Error::option("the plans", "joint plans or steps", expected));
                    }
                    // The CPU is to compute nothing, which is shown by what it computes.
                    forward.counters().turn(true);
                    let (cuts, plans) = (std::mem::take(&mut cuts), plans.take());
                    let divisions = Divisions {
                        cuts: &cuts,
                        plans: plans.as_ref(),
                    };
                    let (multiplier, without_room) = multiplier::prepare(
                        model,
                        &**multiplier,
                        (chunk, divisions),
                        (wait, time_out),
                        progress,
                    )?;
                    (Some(multiplier), without_room)
                }
                None => (None, 0),
            };
            worker.without_room = without_room;
            worker.whole = Some(WholeModel::prepare(
                model,
                forward.rotation(),
                device,
                options,
                multiplier,
            )?);
        }
        if let Some(worker) = workers
            .iter()
            .find(|worker| worker.multiplier.is_some() && worker.whole.is_none())
        {
            let expected = "one that computes the whole model alone in the list";
            let value = format!("{} with a device that multiplies for it", worker.name);
            return Err(Error::option("the list of processors", &value, expected));
        }
        let in_flight = if workers.len() == 1 {
            1
        } else {
            // States at the beginnings of chunks are kept, so that a lost chunk can run again.
            let has_states = model.description().states().next().is_some();
            let most = if has_states {
                MAX_IN_FLIGHT
            } else {
                usize::MAX
            };
            chunks_in_flight.min(context.div_ceil(chunk)).min(most)
        };
        let cuts = Cuts {
            by_role: &cuts,
            plans: plans.as_ref(),
            joint: joint.as_ref(),
        };
        let fixed = fixed_point.then(|| fixed_blocks(model, cuts, &devices));
        let fixed = fixed.transpose()?;
        let how = (cuts, fixed.as_ref());
        let chunks = (chunk, in_flight);
        let (mut tasks, mut programs) =
            PromptTasks::prepare(model, &processors, &devices, chunks, how, progress)?;
        (tasks.plans, tasks.joint) = (plans, joint);
        let steps = decode_plans.map(|plans| {
            let rows = most_rows.min(context);
            let devices = (&devices[..], &mut programs[..]);
            Steps::prepare(model, &processors, devices, (&plans, float_unit), rows)
        });
        let steps = steps.transpose()?;
        let outlier_cache =
            outlier_cache::start(model, outlier_cache.as_ref(), &devices, &programs);
        for (worker, programs) in workers.iter_mut().zip(programs) {
            worker.programs = programs.map(Mutex::new);
        }
        Self::start(HeteroInner::new(Machine {
            forward: Arc::clone(forward),
            settings,
            processors,
            tasks,
            steps,
            outlier_cache,
            fixed,
            encoder: Arc::new(encoder),
            devices: all_devices,
            workers,
            float_unit,
            start: Instant::now(),
            planning: Condvar::new(),
            is_computing: AtomicBool::new(false),
        }))
    }

    /// Starts the threads.
    fn start(shared: HeteroInner) -> Result<Self> {
        let mut executor = Self {
            shared: Arc::new(shared),
            threads: Vec::new(),
            planner: None,
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new()
                .name(format!("triad-{name}"))
                .spawn(work);
            thread.map_err(|error| triad_engine::Error::Threads {
                threads: 1,
                source: error,
            })
        };
        if executor.shared.workers.len() > 1 {
            let shared = Arc::clone(&executor.shared);
            let plan = Box::new(move || planning::serve(&shared));
            executor.planner = Some(spawn("planner", plan)?);
        }
        for index in 0..executor.shared.workers.len() {
            let shared = Arc::clone(&executor.shared);
            let name = shared.workers[index].name.clone();
            let serve = Box::new(move || worker_loop::serve(&shared, index));
            executor.threads.push((index, spawn(&name, serve)?));
        }
        Ok(executor)
    }

    /// Returns the executor of an engine, if it is one of this crate.
    pub fn downcast(engine: &Engine) -> Option<&Self> {
        (engine.executor() as &dyn Any).downcast_ref()
    }

    pub(crate) fn shared(&self) -> &Arc<HeteroInner> {
        &self.shared
    }

    /// Returns whether the thread that plans orders runs.
    pub(crate) fn is_planner_alive(&self) -> bool {
        self.planner
            .as_ref()
            .is_some_and(|planner| !planner.is_finished())
    }
}

impl Executor for HeteroExecutor {
    fn limits(&self) -> Limits {
        let workers = &self.shared.workers;
        Limits {
            prompt_rows: usize::MAX,
            // One chunk, which is not planned.
            picture_rows: self.shared.settings.chunk,
            // A second batch uses processors that the first one's last chunks leave idle.
            prompts: workers.len().min(2),
            overlap: true,
            // With adapters in a batch, devices do not run whole feed-forwards or the whole model, so that a request
            // without adapters would be computed in another way than alone.
            separate_adapters: workers
                .iter()
                .any(|worker| worker.whole.is_some() || worker.programs.is_some()),
        }
    }

    /// With one processor, the threads that wait compute ([`Executor::run_inline`]): no thread is woken.
    fn execute(&self, batch: &Arc<Batch>, _between: &dyn Fn()) {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        state.add_batch(batch);
        if shared.workers.len() > 1 {
            shared.notify(&mut state);
        }
    }

    fn run_inline(&self, is_enough: &dyn Fn() -> bool) -> bool {
        worker_loop::run_inline(&self.shared, is_enough)
    }

    fn gives_states(&self) -> bool {
        self.shared
            .workers
            .iter()
            .all(|worker| worker.whole.is_none())
    }

    fn encode(&self, pixels: Pixels, cancel: &Cancel) -> triad_engine::Result<Vec<f32>> {
        let vision = self.shared.forward.model().vision()?.description();
        for worker in self
            .shared
            .workers
            .iter()
            .filter(|worker| worker.whole.is_some())
        {
            WholeModel::check_pictures(self.shared.forward.description(), vision, &worker.name)?;
        }
        self.shared.encoder.encode(pixels, cancel)
    }

    fn cancelled(&self) {
        self.shared.notify(&mut lock(&self.shared.state));
    }

    /// Called from the threads of sessions, since all workers may hang.
    fn watch(&self) {
        let shared = &*self.shared;
        if shared.workers.len() > 1 {
            let mut state = lock(&shared.state);
            if state.lose_hung(shared) {
                shared.notify(&mut state);
            }
            state.fail_stranded(shared);
            drop(shared.end_batches(state));
        }
    }

    fn forget(&self, sequence: SequenceId) {
        let whole = self
            .shared
            .workers
            .iter()
            .filter_map(|worker| worker.whole.as_ref());
        whole.for_each(|whole| whole.forget(sequence));
    }

    fn backend(&self) -> Box<dyn Backend + '_> {
        let kernels = CpuBackend(&self.shared.forward.model().weights().blocks);
        match &self.shared.fixed {
            Some(fixed) => Box::new(FixedBackend {
                fixed,
                backend: kernels,
            }),
            None => Box::new(kernels),
        }
    }

    fn processors(&self) -> Vec<ProcessorUse> {
        let state = lock(&self.shared.state);
        let uses = self.shared.workers.iter().zip(state.busy_seconds());
        uses.map(|(worker, busy_seconds)| ProcessorUse {
            name: worker.name.clone(),
            busy_seconds,
        })
        .collect()
    }
}

impl Drop for HeteroExecutor {
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
        for (index, thread) in self.threads.drain(..) {
            // A thread that hangs is not joined. A worker may drop the engine, and cannot join itself.
            if !self.shared.workers[index].is_away()
                && thread.thread().id() != std::thread::current().id()
            {
                let _ = thread.join();
            }
        }
    }
}

/// The name of the fixed-point option in errors, and its value other than float.
const WITHIN: &str = "the arithmetic within feed-forwards";
const FIXED_POINT: &str = "fixed point";

/// Returns the processor that runs the float operators.
fn float_unit(processors: &Processors) -> Result<ProcessorId> {
    let computes_float = |(_, one): &(ProcessorId, &Processor)| one.computes(Format::Float);
    let preferred = processors
        .iter()
        .find(|one| computes_float(one) && one.1.prefers(Format::Float));
    preferred
        .or_else(|| processors.iter().find(computes_float))
        .map(|(id, _)| id)
        .ok_or_else(|| {
            let expected = "one that computes in float";
            Error::option("the list of processors", "INT8 alone", expected)
        })
}

/// Returns the blocks whose feed-forwards prompts compute in fixed point.
///
/// # Errors
/// If there are none, feed-forwards are cut, or a device runs none whole.
fn fixed_blocks(model: &Model, cuts: Cuts, devices: &Devices) -> Result<FixedBlocks> {
    let mut devices = devices.iter().flatten();
    if devices.any(|device| !device.capabilities().feed_forwards) {
        let expected = "float, where a device runs no whole feed-forwards";
        return Err(Error::option(WITHIN, FIXED_POINT, expected));
    }
    if cuts.cuts_feed_forwards() {
        let expected = "float, where gate and up or down are cut";
        return Err(Error::option(WITHIN, FIXED_POINT, expected));
    }
    let fixed = FixedBlocks::new(preparing::fixed_point(model));
    if fixed.count() == 0 {
        return Err(Error::option(
            WITHIN,
            FIXED_POINT,
            "float, or a package in INT8 with static scales, SiLU or GELU in its tanh form, and a block whose \
             feed-forward keeps no shadow",
        ));
    }
    Ok(fixed)
}

//! Engines on several processors.

use std::ops::Deref;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use triad_engine::outlier_cache::{OutlierCacheUse, OutlierWeightCache};
use triad_engine::statistics::Operator;
use triad_engine::{Engine, Model};
use triad_kernels::lock;
use triad_plan::graph::Graph;
use triad_plan::joint::JointPlan;
use triad_plan::processors::Processors;
use triad_plan::schedule::Policy;
use triad_plan::tasks::{PrefillTasks, TaskOptions};
use triad_processors::model::JoinStatistics;

use crate::costs::Costs;
use crate::dispatcher::Dispatcher;
use crate::encoder::EncodedView;
use crate::error::Result;
use crate::executor::HeteroExecutor;
use crate::fixed_point::FixedBlocks;
use crate::options::HeteroOptions;
use crate::shared::HeteroInner;
use crate::task_graph::Prompts;
use crate::whole::Operations;

/// How often [`HeteroEngine::plan_ahead`] checks whether the planner thread is alive.
const PLANNING_LOOK: Duration = Duration::from_millis(100);

/// The plan of a prompt.
pub struct PlannedPrompt {
    /// The chosen plan, with its candidates.
    pub plan: Arc<JointPlan>,
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with the processors that they are placed on.
    pub tasks: Arc<PrefillTasks>,
}

/// An [`Engine`] with a [`HeteroExecutor`]. Clones share one engine.
#[derive(Clone)]
pub struct HeteroEngine {
    engine: Engine,
    shared: Arc<HeteroInner>,
}

impl HeteroEngine {
    /// Starts the processors. `progress` is called with the number of subgraphs that devices have prepared, and the
    /// number of all.
    ///
    /// # Errors
    /// As [`Engine::new`]; if there are no chunks in flight or no threads, the system refuses them, or no processor
    /// computes float; if a subgraph has no place, a cut or fixed point is impossible, or a device refuses the model or
    /// what is placed on it.
    pub fn new(
        model: &Arc<Model>,
        options: HeteroOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let of_engine = options.engine.clone();
        let mut shared = None;
        let engine = Engine::with_executor(model, &of_engine, |setup| {
            let executor = HeteroExecutor::new(setup, options, progress)?;
            shared = Some(Arc::clone(executor.shared()));
            Ok::<_, crate::Error>(Box::new(executor))
        })?;
        let shared = shared.expect("the executor was made");
        Ok(Self { engine, shared })
    }

    /// Returns the engine with the means of this crate; `None` if it has another executor.
    pub fn from_engine(engine: &Engine) -> Option<Self> {
        HeteroExecutor::downcast(engine).map(|executor| Self {
            engine: engine.clone(),
            shared: Arc::clone(executor.shared()),
        })
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the processors.
    pub fn processors(&self) -> &Processors {
        &self.shared.processors
    }

    /// Returns where subgraphs run, which of their outputs are cut, and which shadows are separate tasks. Subgraphs are
    /// numbered as in [`HeteroEngine::graph`].
    pub fn tasks(&self) -> &TaskOptions {
        &self.shared.tasks.options
    }

    /// Returns the subgraphs of one chunk.
    pub fn graph(&self) -> Graph {
        let chunk = self.shared.settings.chunk;
        self.shared
            .tasks
            .graph(self.model().description(), chunk, None)
    }

    /// Returns the usage of the weight rows that shadows read. `None` if no device with memory of its own multiplies
    /// for a shadow, or weights are read in place.
    pub fn outlier_cache(&self) -> Option<OutlierCacheUse> {
        self.shared
            .outlier_cache
            .as_ref()
            .map(OutlierWeightCache::usage)
    }

    /// Returns how many blocks compute feed-forwards of prompts in fixed point between their products; `None` if that
    /// is off ([`HeteroOptions::fixed_point`]).
    pub fn fixed_point(&self) -> Option<usize> {
        self.shared.fixed.as_ref().map(FixedBlocks::count)
    }

    /// Returns the times and failures of the latest views of pictures, at most 64, that no earlier call has returned.
    pub fn take_encoded_views(&self) -> Vec<EncodedView> {
        self.shared.encoder.take_views()
    }

    /// Describes the work of each device that counts it, since it was opened.
    pub fn device_work(&self) -> Vec<String> {
        let devices = self.shared.devices.iter();
        devices.filter_map(|device| device.work()).collect()
    }

    /// Returns who computed how much so far, if a device runs the model whole and counts it.
    pub fn operations(&self) -> Option<Operations> {
        let [worker] = &self.shared.workers[..] else {
            return None;
        };
        let operations = worker.whole.as_ref()?.operations()?;
        let statistics = self.engine.statistics();
        let of_embedding = statistics.operator(Operator::Embedding).time;
        let seconds = (statistics.time() - of_embedding).as_secs_f64();
        Some(Operations {
            cpu_seconds: worker.multiplier.as_ref().map(|_| seconds),
            ..operations
        })
    }

    /// Returns what joining the device that multiplies for one that runs the model whole has taken so far, if there is one.
    pub fn joins(&self) -> Option<JoinStatistics> {
        let mut workers = self.shared.workers.iter();
        workers.find_map(|worker| worker.whole.as_ref()?.joins())
    }

    /// Returns the name of the device that multiplies for one that runs the model whole, if there is one.
    pub fn multiplier(&self) -> Option<&str> {
        let mut workers = self.shared.workers.iter();
        workers.find_map(|worker| {
            worker
                .multiplier
                .as_deref()
                .map(triad_processors::Device::name)
        })
    }

    /// Returns how many products the device that multiplies has no room for, so that the other one computes them.
    pub fn products_without_room(&self) -> usize {
        let workers = self.shared.workers.iter();
        workers.map(|worker| worker.without_room).sum()
    }

    /// Returns the expected times of tasks.
    pub fn costs(&self) -> Costs {
        self.state().costs().clone()
    }

    /// Replaces the expected times of tasks by those of an earlier run.
    pub fn set_costs(&self, costs: Costs) {
        self.state().set_costs(&self.shared, costs);
    }

    /// Returns the plan of a prompt of `tokens` in an empty session; `None` if prompts are not planned
    /// ([`HeteroOptions::joint`]).
    pub fn planned(&self, tokens: usize) -> Option<PlannedPrompt> {
        let mut state = self.state();
        let plan = state.joint_plan(&self.shared, tokens.max(1), 0)?.plan;
        let Prompts { graph, tasks, .. } = state.plan(&self.shared, tokens.max(1), 0);
        Some(PlannedPrompt { plan, graph, tasks })
    }

    /// Changes the policy as soon as nothing is being computed.
    pub fn set_policy(&self, policy: Policy) {
        self.state().set_policy(&self.shared, policy);
    }

    /// Plans the order of the tasks of prompts of `tokens` tokens in empty sessions, and waits until it is planned.
    /// Returns immediately if the policy follows no planned orders. Without this call, prompts run with
    /// [`Policy::CriticalPath`] while their orders are planned concurrently.
    pub fn plan_ahead(&self, tokens: usize) {
        let mut state = self.state();
        state.want_order(&self.shared, tokens.max(1), 0);
        let executor = HeteroExecutor::downcast(&self.engine).expect("it was made with one");
        while !state.orders.is_idle() && executor.is_planner_alive() {
            (state, _) = self
                .shared
                .planning
                .wait_timeout(state, PLANNING_LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<HeteroInner> {
        &self.shared
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Dispatcher> {
        lock(&self.shared.state)
    }
}

impl Deref for HeteroEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl std::fmt::Debug for HeteroEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("HeteroEngine")
            .field("processors", self.processors())
            .finish_non_exhaustive()
    }
}

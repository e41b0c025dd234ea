//! Simulates prompts: runs the tasks of the engine by its schedule, in virtual time.

use std::ops::Range;
use std::sync::Arc;

use triad_plan::bound::lower_bound_of_run;
use triad_plan::graph::Graph;
use triad_plan::schedule::Policy;
use triad_plan::simulate::{Begin, RealTime, Takes, simulate_varied};
use triad_plan::tasks::{PrefillTask, PrefillTasks};
use triad_plan::timeline::Timeline;

use super::costs::Cost;
use crate::costs::Costs;
use crate::engine::HeteroEngine;
use crate::planned::Planned;
use crate::shared::HeteroInner;
use crate::task_graph::Prompts;

/// The number of simulated runs, of which the median counts.
const RUNS: usize = 63;

/// A simulated prompt.
pub struct SimulatedPrompt {
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with their dependencies and times.
    pub tasks: Arc<PrefillTasks>,
    /// The policy that selected tasks.
    pub policy: Policy,
    /// The processor and the times of each task, in the median run.
    pub timeline: Timeline,
    /// The seconds of the fastest run and of the slowest.
    pub seconds: Range<f64>,
}

impl SimulatedPrompt {
    /// Returns a lower bound of the seconds of any schedule of these tasks, with the times of the median run.
    pub fn bound_seconds(&self) -> f64 {
        lower_bound_of_run(&self.tasks.dag, &self.timeline)
    }
}

impl HeteroEngine {
    /// Simulates a prompt of `tokens` tokens in an empty session without concurrent ones. Tasks take the times of
    /// `costs`, and planned parts on processors with static shapes take their measured times. Tasks, buffers,
    /// processors and order are those of a real run. The times vary, and grow while other processors work, by `costs`.
    /// The schedule expects each of `expected` in turn, as from prompt to prompt. Returns the median of several runs.
    /// Excludes the logits of the last token, which follow all tasks. If the order is to be [planned
    /// ahead](HeteroEngine::plan_ahead) but is not yet, it is that of [`Policy::CriticalPath`], as in a real run.
    pub fn simulate(
        &self,
        tokens: usize,
        policy: Policy,
        expected: &[Costs],
        costs: &Costs,
    ) -> SimulatedPrompt {
        let (shared, tokens) = (self.shared(), tokens.max(1));
        let mut state = self.state();
        let planned = state.joint_plan(shared, tokens, 0);
        let prompts = |costs| Prompts::new(shared, costs, planned.as_ref(), (tokens, 0));
        let Prompts { graph, tasks, .. } = prompts(costs);
        let concurrent = self.measured_concurrently(&graph, &tasks, planned.as_ref());
        let scheduled = |expected| state.scheduled(prompts(expected).tasks.dag.clone(), policy);
        let scheduled: Vec<_> = expected.iter().map(scheduled).collect();
        drop(state);
        let takes = Measured {
            shared,
            graph: &graph,
            tasks: &tasks,
            costs,
            concurrent,
        };
        let mut runs = simulate_varied(&scheduled, RUNS, &takes);
        let seconds = |run: &(Policy, Timeline)| run.1.seconds();
        let seconds = seconds(&runs[0])..seconds(&runs[RUNS - 1]);
        let (policy, timeline) = runs.swap_remove(RUNS / 2);
        SimulatedPrompt {
            graph,
            tasks,
            policy,
            timeline,
            seconds,
        }
    }

    /// Returns, by task, whether its expected time is that of a measured part of a cut, measured while other processors
    /// work.
    fn measured_concurrently(
        &self,
        graph: &Graph,
        tasks: &PrefillTasks,
        planned: Option<&Planned>,
    ) -> Vec<bool> {
        let shared = self.shared();
        let of_part = shared
            .tasks
            .planned_seconds(shared.forward.description(), graph, planned);
        let is_measured = |(index, task): (usize, &PrefillTask)| {
            task.share(graph) < 1.0 && of_part(task, tasks.dag.home(index)).is_some()
        };
        tasks.tasks.iter().enumerate().map(is_measured).collect()
    }
}

/// The measured times of tasks, with their variation.
struct Measured<'a> {
    shared: &'a HeteroInner,
    graph: &'a Graph,
    tasks: &'a PrefillTasks,
    costs: &'a Costs,
    /// By task, whether its seconds were measured while others work.
    concurrent: Vec<bool>,
}

impl Measured<'_> {
    fn cost(&self, begin: Begin) -> Option<&Cost> {
        let processor = &self.shared.processors[begin.processor].name;
        self.costs
            .of_task(processor, self.graph, &self.tasks.tasks[begin.task])
    }
}

impl RealTime for Measured<'_> {
    fn takes(&self, begin: Begin, chance: f64) -> Takes {
        let seconds = self.tasks.dag.seconds(begin.task);
        let Some(cost) = self.cost(begin) else {
            return seconds.into();
        };
        let idle = if begin.idle {
            cost.longer_after_idleness
        } else {
            0.0
        };
        let seconds = seconds * (1.0 + idle) * at(&cost.variation, chance).unwrap_or(1.0);
        let concurrent = if self.concurrent[begin.task] {
            0.0
        } else {
            cost.longer_concurrently
        };
        Takes {
            before: 0.0,
            seconds,
            concurrent,
        }
    }

    fn notices(&self, begin: Begin, chance: f64) -> f64 {
        self.cost(begin)
            .and_then(|cost| at(&cost.notice_seconds, chance))
            .unwrap_or(0.0)
    }
}

/// Returns one of several equally likely numbers.
fn at(ranks: &[f64], chance: f64) -> Option<f64> {
    ranks.get((chance * ranks.len() as f64) as usize).copied()
}

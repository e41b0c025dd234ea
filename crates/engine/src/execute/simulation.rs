//! How a prompt is expected to go: the tasks that the engine would run, by the schedule that it would follow, in virtual
//! time.

use std::ops::Range;
use std::sync::Arc;

use triad_plan::bound::lower_bound_of_run;
use triad_plan::graph::Graph;
use triad_plan::schedule::Policy;
use triad_plan::simulate::{Begin, RealTime, Takes, simulate_varied};
use triad_plan::tasks::{PrefillTask, PrefillTasks};
use triad_plan::timeline::Timeline;

use super::costs::Cost;
use super::joint::Planned;
use super::pass::Prompts;
use super::{Costs, Engine, Shared};

/// Runs in virtual time, of which the one in the middle counts.
const RUNS: usize = 63;

/// A prompt that was not computed.
pub struct SimulatedPrompt {
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with what they wait for and take.
    pub tasks: Arc<PrefillTasks>,
    /// What decided.
    pub policy: Policy,
    /// Which task would run where and when, in the run in the middle.
    pub timeline: Timeline,
    /// Of the fastest run and of the slowest.
    pub seconds: Range<f64>,
}

impl SimulatedPrompt {
    /// Seconds that no schedule of these tasks stays below, if each takes what it took in the run in the middle.
    pub fn bound_seconds(&self) -> f64 {
        lower_bound_of_run(&self.tasks.dag, &self.timeline)
    }
}

impl Engine {
    /// What a prompt of `tokens` tokens does in an empty session that is alone, if tasks take what `costs` has, and planned
    /// parts on processors with static shapes what was measured of them: the tasks, their buffers, processors and order are
    /// those of a run. Tasks vary, and are longer beside others, as `costs` has it, and what the schedule expects of them is
    /// each of `expected` in turn, as from prompt to prompt: of several runs the one in the middle is returned. The logits of
    /// the last token, behind all tasks, are not in it. Where the order is to be [planned ahead](Engine::plan_ahead) and is
    /// not yet, it is that of [`Policy::CriticalPath`], as in a run.
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
        let beside = self.measured_beside(&graph, &tasks, planned.as_ref());
        let scheduled = |expected| state.scheduled(prompts(expected).tasks.dag.clone(), policy);
        let scheduled: Vec<_> = expected.iter().map(scheduled).collect();
        drop(state);
        let takes = Measured {
            shared,
            graph: &graph,
            tasks: &tasks,
            costs,
            beside,
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

    /// By task, whether it is expected to take what was measured of its part of a cut, beside the other processors.
    fn measured_beside(
        &self,
        graph: &Graph,
        tasks: &PrefillTasks,
        planned: Option<&Planned>,
    ) -> Vec<bool> {
        let shared = self.shared();
        let of_part = shared
            .tasks
            .planned_seconds(shared.model.description(), graph, planned);
        let is_measured = |(index, task): (usize, &PrefillTask)| {
            task.share(graph) < 1.0 && of_part(task, tasks.dag.home(index)).is_some()
        };
        tasks.tasks.iter().enumerate().map(is_measured).collect()
    }
}

/// Tasks take what was measured, beside which they vary.
struct Measured<'a> {
    shared: &'a Shared,
    graph: &'a Graph,
    tasks: &'a PrefillTasks,
    costs: &'a Costs,
    /// By task, whether its seconds are those beside others.
    beside: Vec<bool>,
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
            cost.longer_behind_idleness
        } else {
            0.0
        };
        let seconds = seconds * (1.0 + idle) * at(&cost.variation, chance).unwrap_or(1.0);
        let beside = if self.beside[begin.task] {
            0.0
        } else {
            cost.longer_beside
        };
        Takes {
            before: 0.0,
            seconds,
            beside,
        }
    }

    fn notices(&self, begin: Begin, chance: f64) -> f64 {
        self.cost(begin)
            .and_then(|cost| at(&cost.notice_seconds, chance))
            .unwrap_or(0.0)
    }
}

/// One of several that are as likely as each other.
fn at(ranks: &[f64], chance: f64) -> Option<f64> {
    ranks.get((chance * ranks.len() as f64) as usize).copied()
}

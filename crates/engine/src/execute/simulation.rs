//! How a prompt is expected to go: the tasks that the engine would run, by the schedule that it would follow, in virtual
//! time.

use std::sync::Arc;

use triad_plan::graph::Graph;
use triad_plan::schedule::Policy;
use triad_plan::simulate::simulate;
use triad_plan::tasks::PrefillTasks;
use triad_plan::timeline::Timeline;

use super::pass::Prompts;
use super::{Costs, Engine};

/// A prompt that was not computed.
pub struct SimulatedPrompt {
    /// Its chunks and subgraphs.
    pub graph: Graph,
    /// Its tasks, with what they wait for.
    pub tasks: Arc<PrefillTasks>,
    /// What decided.
    pub policy: Policy,
    /// Which task would run where and when.
    pub timeline: Timeline,
}

impl Engine {
    /// What a prompt of `tokens` tokens does in an empty session that is alone, if tasks take what `costs` has: the tasks,
    /// their buffers, processors and order are those of a run. The logits of the last token, behind all tasks, are not
    /// in it. Where the order is to be [planned ahead](Engine::plan_ahead) and is not yet, it is that of
    /// [`Policy::CriticalPath`], as in a run.
    pub fn simulate(&self, tokens: usize, policy: Policy, costs: &Costs) -> SimulatedPrompt {
        let (shared, tokens) = (self.shared(), tokens.max(1));
        let mut state = self.state();
        let planned = state.joint_plan(shared, tokens, 0);
        let Prompts { graph, tasks, .. } = Prompts::new(shared, costs, planned.as_ref(), (tokens, 0));
        let (dag, policy) = state.scheduled(tasks.dag.clone(), policy);
        drop(state);
        let timeline = simulate(&dag, policy, |task| dag.seconds(task));
        SimulatedPrompt { graph, tasks, policy, timeline }
    }
}

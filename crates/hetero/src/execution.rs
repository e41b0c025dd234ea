//! How the prompts of a batch were computed: tasks and times.

use std::sync::Arc;
use std::time::Instant;

use triad_engine::Session;
use triad_plan::graph::Graph;
use triad_plan::schedule::Policy;
use triad_plan::tasks::PrefillTasks;
use triad_plan::timeline::Timeline;

use crate::failure::ProcessorFailure;
use crate::wait::WaitUse;

/// The execution of the prompts of one batch.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The origin of the times of its timeline.
    pub start: Instant,
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
    /// Processors that failed during the batch.
    pub failures: Vec<ProcessorFailure>,
}

/// Returns the execution of the latest prompt of a session, if several processors have computed it.
pub fn execution(session: &Session) -> Option<&Execution> {
    session.reports().next()
}

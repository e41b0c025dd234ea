//! The plan of a prompt, as the joint search made it.

use std::sync::Arc;

use triad_plan::joint::JointPlan;
use triad_plan::processors::ProcessorId;

/// A plan of prompts of some length.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) plan: Arc<JointPlan>,
    /// The number of tokens that it was made for.
    pub(crate) rows: usize,
    /// The number of kinds of tasks with known times, if some times of the plan were guessed.
    pub(crate) guessed_with: Option<usize>,
    /// Processors with guessed times, other than those of shadows.
    pub(crate) guessed_of: Arc<[ProcessorId]>,
    /// Expected seconds, if they were measured and no kind of plan was asked for.
    pub(crate) expected: Option<f64>,
}

impl Planned {
    /// Returns the processor that computes the whole prompt, if its times are known. Until then the tasks of another
    /// plan are run, so that they become known.
    pub(crate) fn alone(&self) -> Option<ProcessorId> {
        self.plan
            .alone()
            .filter(|processor| !self.guessed_of.contains(processor))
    }
}

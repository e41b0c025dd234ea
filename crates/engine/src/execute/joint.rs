//! Plans of whole prompts by the joint search of cuts and out-of-order execution, kept by length.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use triad_plan::graph::Graph;
use triad_plan::joint::{JointPlan, Prompt};
use triad_plan::processors::ProcessorId;
use triad_plan::tasks::PrefillTask;

use super::{Costs, Shared, costs};

/// Prompts whose lengths differ by less than this have one plan.
const ROWS: usize = 32;
/// As those that begin at positions so far from each other.
const POSITIONS: usize = 256;
/// Plans that are kept, at most.
const MOST: usize = 1024;

/// The plans of prompts so far.
#[derive(Default)]
pub(super) struct JointPlans(BTreeMap<(usize, usize), Kept>);

struct Kept {
    plan: Arc<JointPlan>,
    /// Whether something took part whose time nobody has measured.
    is_guess: bool,
}

impl JointPlans {
    /// Forgets all of them: costs have changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The plan of a prompt of `rows` tokens at `position`, if prompts are planned. Where something in it was guessed,
    /// it is made anew each time, until nothing is.
    pub(super) fn plan(
        &mut self,
        shared: &Shared,
        costs: &Costs,
        policy: triad_plan::schedule::Policy,
        (rows, position): (usize, usize),
    ) -> Option<Arc<JointPlan>> {
        let joint = shared.tasks.joint.as_ref()?;
        let key = (rows.div_ceil(ROWS), position / POSITIONS);
        if let Some(Kept { plan, is_guess: false }) = self.0.get(&key) {
            return Some(Arc::clone(plan));
        }
        let is_guess = Cell::new(false);
        let seconds = |graph: &Graph, task: &PrefillTask, processor: ProcessorId| {
            let seconds = costs.seconds(&shared.processors[processor].name, graph, task, position);
            seconds.unwrap_or_else(|| {
                is_guess.set(true);
                costs::guess(graph, task)
            })
        };
        let prompt = Prompt {
            description: shared.model.description(),
            processors: &shared.processors,
            options: &shared.tasks.options,
            rows: key.0 * ROWS,
            most_rows: shared.settings.chunk,
            policy,
            seconds: &seconds,
        };
        let plan = joint.plan(&prompt).expect("chunks are not longer than those that were planned");
        let plan = Arc::new(plan);
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(key, Kept { plan: Arc::clone(&plan), is_guess: is_guess.get() });
        Some(plan)
    }
}

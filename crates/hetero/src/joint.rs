//! Plans of whole prompts, by the joint search over cuts and out-of-order execution. Keeps plans by length, and selects
//! among their candidates by the times of recent prompts.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use triad_plan::graph::Graph;
use triad_plan::joint::{Candidate, Kind, Prompt};
use triad_plan::partition::plans::planned_rows;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::Policy;
use triad_plan::tasks::{Operation, PrefillTask};

use crate::costs::{self, Costs};
use crate::machine::Machine;
use crate::plan_selector::PlanSelector;
use crate::planned::Planned;

/// The step of positions: prompts that begin within one step share a plan.
const POSITIONS: usize = 256;
/// Maximum number of kept plans.
const MAX: usize = 1024;

/// The plans of prompts so far.
#[derive(Default)]
pub(crate) struct JointPlans {
    /// The plans that are expected to be the fastest, by planned length ([`planned_rows`]) and position in steps of
    /// [`POSITIONS`].
    plans: BTreeMap<(usize, usize), Planned>,
    /// The kind of plan to select, if there is one of it; `None`: the fastest.
    kind: Option<Kind>,
    plan_selector: PlanSelector,
}

impl JointPlans {
    /// Forgets all plans, after costs have changed.
    pub(crate) fn clear(&mut self) {
        self.plans.clear();
        self.plan_selector = PlanSelector::default();
    }

    /// Selects plans of this kind from now on; `None` for the fastest.
    pub(crate) fn set_kind(&mut self, kind: Option<Kind>) {
        self.kind = kind;
        self.clear();
    }

    /// Records the seconds of a prompt of `rows` tokens, if nothing else was computed with it or concurrently: later
    /// prompts of about its length may get plans of another kind. The time is ignored if none was expected, or if the
    /// prompt is much shorter than the planned length.
    pub(crate) fn ran(&mut self, planned: &Planned, rows: usize, seconds: Option<f64>) {
        let Planned {
            plan,
            rows: planned_rows,
            expected,
            ..
        } = planned;
        let seconds = seconds.filter(|_| 4 * rows >= 3 * planned_rows);
        let multiple = seconds
            .zip(*expected)
            .map(|(seconds, expected)| seconds / expected);
        let (kind, alone) = (plan.id.kind.name(), plan.id.alone.map(ProcessorId::index));
        tracing::debug!(
            rows,
            kind,
            alone,
            seconds,
            expected,
            multiple,
            "a prompt ran as planned"
        );
        self.plan_selector.ran(*planned_rows, plan.id, multiple);
    }

    /// Returns the plan of a prompt of `rows` tokens at `position`; `None` if prompts are not planned. A plan with
    /// guessed times is made again once times of more kinds of tasks are known.
    pub(crate) fn plan(
        &mut self,
        shared: &Machine,
        costs: &Costs,
        policy: Policy,
        prompt: (usize, usize),
    ) -> Option<Planned> {
        let fastest = self.fastest(shared, costs, policy, prompt)?;
        let candidates = &fastest.plan.candidates;
        let chosen = match self.kind {
            None => self.plan_selector.choose(fastest.rows, candidates),
            Some(kind) => {
                let asked = candidates
                    .iter()
                    .map(|one| one.id)
                    .find(|id| id.kind == kind);
                asked.unwrap_or(fastest.plan.id)
            }
        };
        let measured = candidates
            .iter()
            .find(|one| one.id == chosen)
            .and_then(Candidate::measured_seconds);
        let plan = match chosen == fastest.plan.id {
            true => Arc::clone(&fastest.plan),
            false => Arc::new(fastest.plan.by(chosen).expect("it is a candidate")),
        };
        let planned = Planned { plan, ..fastest };
        // A single processor whose times are not known yet does not run its plan as measured.
        let runs_as_measured = planned.plan.alone().is_none() || planned.alone().is_some();
        let expected = measured.filter(|_| runs_as_measured && self.kind.is_none());
        Some(Planned {
            expected,
            ..planned
        })
    }

    /// Returns the plan that is expected to be the fastest.
    fn fastest(
        &mut self,
        shared: &Machine,
        costs: &Costs,
        policy: Policy,
        (rows, position): (usize, usize),
    ) -> Option<Planned> {
        let joint = shared.tasks.joint.as_ref()?;
        let key = (planned_rows(rows), position / POSITIONS);
        let known = costs.seen().count();
        if let Some(planned) = self.plans.get(&key)
            && planned.guessed_with.is_none_or(|then| then == known)
        {
            return Some(planned.clone());
        }
        let guessed = RefCell::new(HashSet::new());
        let seconds = |graph: &Graph, task: &PrefillTask, processor: ProcessorId| {
            let seconds = costs.seconds(&shared.processors[processor].name, graph, task, position);
            seconds.unwrap_or_else(|| {
                guessed.borrow_mut().insert((processor, task.operation));
                costs::guess(graph, task)
            })
        };
        let prompt = Prompt {
            description: shared.forward.description(),
            processors: &shared.processors,
            options: &shared.tasks.options,
            rows: key.0,
            most_rows: shared.settings.chunk,
            policy,
            seconds: &seconds,
        };
        let plan = joint
            .plan(&prompt)
            .expect("chunks are not longer than those that were planned");
        let guessed = guessed.into_inner();
        let planned = Planned {
            plan: Arc::new(plan),
            rows: key.0,
            guessed_with: (!guessed.is_empty()).then_some(known),
            guessed_of: guessed
                .into_iter()
                .filter(|(_, what)| *what == Operation::Compute)
                .map(|(id, _)| id)
                .collect(),
            expected: None,
        };
        if self.plans.len() >= MAX {
            self.plans.clear();
        }
        self.plans.insert(key, planned.clone());
        Some(planned)
    }
}

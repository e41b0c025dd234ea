//! Plans of whole prompts by the joint search of cuts and out-of-order execution, kept by length and kind, and which kind is
//! chosen by what prompts took.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use triad_plan::graph::Graph;
use triad_plan::joint::{Candidate, JointPlan, Kind, Prompt};
use triad_plan::partition::plans::planned_rows;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::Policy;
use triad_plan::tasks::{Operation, PrefillTask};

use super::lateness::Lateness;
use super::{Costs, Shared, costs};

/// Prompts that begin at positions so far from each other have one plan.
const POSITIONS: usize = 256;
/// Plans that are kept, at most.
const MOST: usize = 1024;

/// The plans of prompts so far.
#[derive(Default)]
pub(super) struct JointPlans {
    /// By length as it is planned ([`planned_rows`]), position in steps of [`POSITIONS`], and the kind that was asked for, where it
    /// is not what is expected to be the fastest.
    plans: BTreeMap<(usize, usize, Option<Kind>), Planned>,
    /// The kind that is chosen, where there is one of it; `None`: the fastest.
    kind: Option<Kind>,
    lateness: Lateness,
}

/// A plan of prompts of some length.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) plan: Arc<JointPlan>,
    /// Tokens that it was made for.
    rows: usize,
    /// Of how many kinds of tasks times were known, where something took part whose time nobody had measured.
    guessed_with: Option<usize>,
    /// Processors some of whose times nobody had measured, other than those of shadows.
    guessed_of: Arc<[ProcessorId]>,
}

impl Planned {
    /// The processor that computes all of it, if one does and its times are known. As long as they are not, its tasks are
    /// those of other plans, so that they become known.
    pub(super) fn alone(&self) -> Option<ProcessorId> {
        self.plan.alone().filter(|processor| !self.guessed_of.contains(processor))
    }
}

impl JointPlans {
    /// Forgets all of them: costs have changed.
    pub(super) fn clear(&mut self) {
        self.plans.clear();
        self.lateness = Lateness::default();
    }

    /// Chooses plans of this kind from now on, or the fastest.
    pub(super) fn set_kind(&mut self, kind: Option<Kind>) {
        self.kind = kind;
        self.clear();
    }

    /// A prompt that was alone took so long by its plan: the next ones of about its length may have plans of another kind. Nothing
    /// is learned of kinds that were asked for, or were not measured.
    pub(super) fn observe(&mut self, planned: &Planned, seconds: f64) {
        let Planned { plan, rows, .. } = planned;
        if self.kind.is_some() {
            return;
        }
        let candidate = plan.candidates.iter().find(|one| one.kind == plan.kind);
        if let Some(expected) = candidate.and_then(Candidate::measured_seconds) {
            tracing::debug!(rows, kind = plan.kind.name(), seconds, expected, "a prompt ran as planned");
            self.lateness.observe(*rows, plan.kind, seconds / expected);
        }
    }

    /// The plan of a prompt of `rows` tokens at `position`, if prompts are planned. Where something in it was guessed,
    /// it is made anew once times of more kinds of tasks are known.
    pub(super) fn plan(
        &mut self,
        shared: &Shared,
        costs: &Costs,
        policy: Policy,
        prompt: (usize, usize),
    ) -> Option<Planned> {
        let planned = self.plan_of(shared, costs, policy, prompt, self.kind)?;
        if self.kind.is_some() {
            return Some(planned);
        }
        let kind = self.lateness.choose(planned.rows, &planned.plan.candidates);
        match kind == planned.plan.kind {
            true => Some(planned),
            false => self.plan_of(shared, costs, policy, prompt, Some(kind)),
        }
    }

    /// The same of a kind, or of the one that is expected to be the fastest.
    fn plan_of(
        &mut self,
        shared: &Shared,
        costs: &Costs,
        policy: Policy,
        (rows, position): (usize, usize),
        kind: Option<Kind>,
    ) -> Option<Planned> {
        let joint = shared.tasks.joint.as_ref()?;
        let key = (planned_rows(rows), position / POSITIONS, kind);
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
            description: shared.model.description(),
            processors: &shared.processors,
            options: &shared.tasks.options,
            rows: key.0,
            most_rows: shared.settings.chunk,
            policy,
            kind,
            seconds: &seconds,
        };
        let plan = joint.plan(&prompt).expect("chunks are not longer than those that were planned");
        let guessed = guessed.into_inner();
        let planned = Planned {
            plan: Arc::new(plan),
            rows: key.0,
            guessed_with: (!guessed.is_empty()).then_some(known),
            guessed_of: guessed.into_iter().filter(|(_, what)| *what == Operation::Compute).map(|(id, _)| id).collect(),
        };
        if self.plans.len() >= MOST {
            self.plans.clear();
        }
        self.plans.insert(key, planned.clone());
        Some(planned)
    }
}

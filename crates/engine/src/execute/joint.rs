//! Plans of whole prompts by the joint search of cuts and out-of-order execution, kept by length, and which of its candidates is
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
    /// By length as it is planned ([`planned_rows`]), and position in steps of [`POSITIONS`], as what is expected to be the
    /// fastest.
    plans: BTreeMap<(usize, usize), Planned>,
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
    /// Seconds that it is expected to take, where that was measured and nobody asked for its kind.
    expected: Option<f64>,
}

impl Planned {
    /// The processor that computes all of it, if one does and its times are known. As long as they are not, its tasks are
    /// those of other plans, so that they become known.
    pub(super) fn alone(&self) -> Option<ProcessorId> {
        self.plan
            .alone()
            .filter(|processor| !self.guessed_of.contains(processor))
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

    /// A prompt of `rows` tokens has ended, and took so many seconds, where nothing else was computed with or beside it: the next
    /// ones of about its length may have plans of another kind. Nothing is learned of prompts of which nothing was expected, or
    /// that are much shorter than what they were planned as.
    pub(super) fn ran(&mut self, planned: &Planned, rows: usize, seconds: Option<f64>) {
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
        self.lateness.ran(*planned_rows, plan.id, multiple);
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
        let fastest = self.fastest(shared, costs, policy, prompt)?;
        let candidates = &fastest.plan.candidates;
        let chosen = match self.kind {
            None => self.lateness.choose(fastest.rows, candidates),
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
        // One processor whose times are not known yet does not compute its plan as it was measured.
        let runs_as_measured = planned.plan.alone().is_none() || planned.alone().is_some();
        let expected = measured.filter(|_| runs_as_measured && self.kind.is_none());
        Some(Planned {
            expected,
            ..planned
        })
    }

    /// The plan that is expected to be the fastest.
    fn fastest(
        &mut self,
        shared: &Shared,
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
            description: shared.model.description(),
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
        if self.plans.len() >= MOST {
            self.plans.clear();
        }
        self.plans.insert(key, planned.clone());
        Some(planned)
    }
}

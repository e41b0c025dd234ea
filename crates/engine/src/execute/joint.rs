//! Plans of whole prompts by the joint search of cuts and out-of-order execution, kept by length and kind, and which kind is
//! chosen by what prompts took.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use triad_plan::graph::Graph;
use triad_plan::joint::{Candidate, CandidateId, JointPlan, Kind, Prompt};
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
    /// By length as it is planned ([`planned_rows`]), position in steps of [`POSITIONS`], and what was asked for; `None`: the one
    /// that is expected to be the fastest.
    plans: BTreeMap<(usize, usize, Option<CandidateId>), Planned>,
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

    /// A prompt of `rows` tokens has ended, and took so many seconds, where nothing else was computed with or beside it: the next
    /// ones of about its length may have plans of another kind. Nothing is learned of prompts of which nothing was expected, or
    /// that are much shorter than what they were planned as.
    pub(super) fn ran(&mut self, planned: &Planned, rows: usize, seconds: Option<f64>) {
        let Planned { plan, rows: planned_rows, expected, .. } = planned;
        let seconds = seconds.filter(|_| 4 * rows >= 3 * planned_rows);
        let multiple = seconds.zip(*expected).map(|(seconds, expected)| seconds / expected);
        let (kind, alone) = (plan.id.kind.name(), plan.id.alone.map(ProcessorId::index));
        tracing::debug!(rows, kind, alone, seconds, expected, multiple, "a prompt ran as planned");
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
        let fastest = self.plan_of(shared, costs, policy, prompt, self.kind.map(CandidateId::from))?;
        if self.kind.is_some() {
            return Some(fastest);
        }
        let candidates = &Arc::clone(&fastest.plan).candidates;
        let chosen = self.lateness.choose(fastest.rows, candidates);
        let planned = match chosen == fastest.plan.id {
            true => fastest,
            false => self.plan_of(shared, costs, policy, prompt, Some(chosen))?,
        };
        // By the costs that it was chosen by, which may have changed when its plan was made.
        let candidate = candidates.iter().find(|one| one.id == planned.plan.id);
        // One processor whose times are not known yet does not compute its plan as it was measured.
        let runs_as_measured = planned.plan.alone().is_none() || planned.alone().is_some();
        let expected = candidate.filter(|_| runs_as_measured).and_then(Candidate::measured_seconds);
        Some(Planned { expected, ..planned })
    }

    /// The candidate that is asked for, or the one that is expected to be the fastest.
    fn plan_of(
        &mut self,
        shared: &Shared,
        costs: &Costs,
        policy: Policy,
        (rows, position): (usize, usize),
        candidate: Option<CandidateId>,
    ) -> Option<Planned> {
        let joint = shared.tasks.joint.as_ref()?;
        let key = (planned_rows(rows), position / POSITIONS, candidate);
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
            candidate,
            seconds: &seconds,
        };
        let plan = joint.plan(&prompt).expect("chunks are not longer than those that were planned");
        let guessed = guessed.into_inner();
        let planned = Planned {
            plan: Arc::new(plan),
            rows: key.0,
            guessed_with: (!guessed.is_empty()).then_some(known),
            guessed_of: guessed.into_iter().filter(|(_, what)| *what == Operation::Compute).map(|(id, _)| id).collect(),
            expected: None,
        };
        if self.plans.len() >= MOST {
            self.plans.clear();
        }
        self.plans.insert(key, planned.clone());
        Some(planned)
    }
}

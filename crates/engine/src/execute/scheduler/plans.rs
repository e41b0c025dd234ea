//! Costs of tasks, and the plans and orders that are made of them.

use triad_plan::joint::Kind;
use triad_plan::schedule::Policy;

use super::{CHUNKS_AHEAD, Scheduler};
use crate::execute::batch::Prompts;
use crate::execute::joint::Planned;
use crate::execute::{Costs, EngineInner, Settings};

impl Scheduler {
    /// Replaces the expected times of tasks by those of an earlier run.
    pub(in crate::execute) fn set_costs(&mut self, shared: &EngineInner, costs: Costs) {
        self.costs = costs;
        self.joint.clear();
        self.want_orders(shared);
    }

    /// Changes the policy as soon as nothing is being computed.
    pub(in crate::execute) fn set_policy(&mut self, shared: &EngineInner, policy: Policy) {
        if self.policy != policy {
            self.policy = policy;
            self.want_orders(shared);
        }
    }

    /// Requests orders for prompts of few whole chunks, if task times are known and the placement does not depend on
    /// the prompt.
    pub(super) fn want_orders(&mut self, shared: &EngineInner) {
        let Settings { context, chunk, .. } = shared.settings;
        if shared.tasks.joint.is_none() && self.costs.seen().next().is_some() {
            (2..=(context / chunk).min(CHUNKS_AHEAD))
                .for_each(|chunks| self.want_order(shared, chunks * chunk, 0));
        }
    }

    /// Requests an order for prompts of `rows` rows at a position, if the policy follows planned orders.
    pub(in crate::execute) fn want_order(
        &mut self,
        shared: &EngineInner,
        rows: usize,
        position: usize,
    ) {
        if self.policy == Policy::Planned && self.units.len() > 1 {
            self.orders.want(rows, position);
            shared.planning.notify_all();
        }
    }

    /// Returns the expected times of tasks.
    pub(in crate::execute) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the plan of a prompt; `None` if prompts are not planned.
    pub(in crate::execute) fn joint_plan(
        &mut self,
        shared: &EngineInner,
        rows: usize,
        position: usize,
    ) -> Option<Planned> {
        self.joint
            .plan(shared, &self.costs, self.policy, (rows, position))
    }

    /// Sets the kind of plans of later prompts; `None` for the fastest.
    pub(in crate::execute) fn set_plan_kind(&mut self, kind: Option<Kind>) {
        self.joint.set_kind(kind);
    }

    /// Returns the chunks and tasks of prompts of `rows` rows, the first of them at `position`.
    pub(in crate::execute) fn plan(
        &mut self,
        shared: &EngineInner,
        rows: usize,
        position: usize,
    ) -> Prompts {
        let planned = self.joint_plan(shared, rows, position);
        Prompts::new(shared, &self.costs, planned.as_ref(), (rows, position))
    }
}

//! Costs of tasks, and the plans and orders that are made of them.

use triad_plan::joint::Kind;
use triad_plan::schedule::Policy;

use super::{CHUNKS_AHEAD, Dispatcher};
use crate::costs::Costs;
use crate::machine::{Machine, Settings};
use crate::planned::Planned;
use crate::task_graph::Prompts;

impl Dispatcher {
    /// Replaces the expected times of tasks by those of an earlier run.
    pub(crate) fn set_costs(&mut self, shared: &Machine, costs: Costs) {
        self.costs = costs;
        self.joint.clear();
        self.want_orders(shared);
    }

    /// Changes the policy as soon as nothing is being computed.
    pub(crate) fn set_policy(&mut self, shared: &Machine, policy: Policy) {
        if self.policy != policy {
            self.policy = policy;
            self.want_orders(shared);
        }
    }

    /// Requests orders for prompts of few whole chunks, if task times are known and the placement does not depend on
    /// the prompt.
    pub(crate) fn want_orders(&mut self, shared: &Machine) {
        let Settings { context, chunk, .. } = shared.settings;
        if shared.tasks.joint.is_none() && self.costs.seen().next().is_some() {
            (2..=(context / chunk).min(CHUNKS_AHEAD))
                .for_each(|chunks| self.want_order(shared, chunks * chunk, 0));
        }
    }

    /// Requests an order for prompts of `rows` rows at a position, if the policy follows planned orders.
    pub(crate) fn want_order(&mut self, shared: &Machine, rows: usize, position: usize) {
        if self.policy == Policy::Planned && self.workers.len() > 1 {
            self.orders.want(rows, position);
            shared.planning.notify_all();
        }
    }

    /// Returns the expected times of tasks.
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the plan of a prompt; `None` if prompts are not planned.
    pub(crate) fn joint_plan(
        &mut self,
        shared: &Machine,
        rows: usize,
        position: usize,
    ) -> Option<Planned> {
        self.joint
            .plan(shared, &self.costs, self.policy, (rows, position))
    }

    /// Sets the kind of plans of later prompts; `None` for the fastest.
    pub(crate) fn set_plan_kind(&mut self, kind: Option<Kind>) {
        self.joint.set_kind(kind);
    }

    /// Returns the chunks and tasks of prompts of `rows` rows, the first of them at `position`.
    pub(crate) fn plan(&mut self, shared: &Machine, rows: usize, position: usize) -> Prompts {
        let planned = self.joint_plan(shared, rows, position);
        Prompts::new(shared, &self.costs, planned.as_ref(), (rows, position))
    }
}

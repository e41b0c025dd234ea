//! Schedules that are planned in advance from the expected times of tasks.
//!
//! A policy decides step by step. It never leaves a processor idle while a task is ready, so that chunks move in
//! convoys. [`plan`] looks ahead: it [searches](search) schedules that may idle. The result is an order of all tasks,
//! which [`Policy::Planned`] follows on each processor ([`Dag::with_plan`]), whatever times the tasks really take. By
//! the expected times, it is never longer than the best policy.

pub mod search;

use crate::bound::lower_bound;
use crate::schedule::{Dag, Policy};
use crate::simulate::{Begin, Takes, simulate_each};
use search::{EPSILON, Limits, Search};

/// Effort of a search, in steps rather than seconds: the same dag and effort give the same plan on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of partial schedules to keep of each length.
    pub width: usize,
}

impl Default for Effort {
    /// Returns the effort for a run: a few hundredths of a second for most prompts.
    fn default() -> Self {
        Self { width: 40 }
    }
}

/// An order of all tasks of a dag.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seconds if tasks take their expected time.
    pub seconds: f64,
    /// The tasks, each after its predecessors. Each processor runs its tasks in this order.
    pub order: Vec<usize>,
}

/// Returns the best order found. A processor that was idle needs `wake` additional seconds for its next task. `go_on`
/// is called every few dozen microseconds. If it returns false, the order of the best policy is returned.
pub fn plan(dag: &Dag, wake: f64, effort: Effort, go_on: &mut dyn FnMut() -> bool) -> Plan {
    let bound = lower_bound(dag);
    let mut best = Policy::SIMPLE
        .map(|policy| of_policy(dag, policy, wake))
        .into_iter()
        .fold(None, shorter);
    let of_all = best.as_ref().map_or(f64::INFINITY, |best| best.seconds);
    if of_all > bound + EPSILON {
        let limits = Limits {
            width: effort.width,
            most: usize::MAX,
            best: f64::INFINITY,
        };
        if let Some((_, order)) = Search::new(dag, wake).run(limits, go_on).schedule {
            let seconds = dag
                .run_in_order(&order, wake)
                .into_iter()
                .map(|(_, end)| end)
                .fold(0.0, f64::max);
            best = shorter(best, Plan { seconds, order });
        }
    }
    best.expect("there are policies")
}

fn of_policy(dag: &Dag, policy: Policy, wake: f64) -> Plan {
    let takes = |begin: Begin| {
        let before = if begin.idle { wake } else { 0.0 };
        Takes {
            before,
            ..dag.seconds(begin.task).into()
        }
    };
    let timeline = simulate_each(dag, policy, takes);
    Plan {
        seconds: timeline.seconds(),
        order: timeline.events().iter().map(|event| event.task).collect(),
    }
}

fn shorter(best: Option<Plan>, other: Plan) -> Option<Plan> {
    Some(
        best.filter(|best| best.seconds <= other.seconds)
            .unwrap_or(other),
    )
}

#[cfg(test)]
mod tests;

//! Schedules that are planned ahead, from what tasks are expected to take.
//!
//! A policy decides as it goes: it never leaves a processor idle while something is ready, so that chunks march in convoy.
//! [`plan`] looks ahead, by a [search] through schedules that may idle. What comes out is an order of all tasks, which [`Policy::Planned`] follows on each processor ([`Dag::with_plan`]), whatever tasks
//! really take. It is never longer than by the best policy, by the costs that it was made with.

pub mod search;

use crate::bound::lower_bound;
use crate::schedule::{Dag, Policy};
use crate::simulate::{Begin, Takes, simulate_each};
use search::{EPSILON, Limits, Search};

/// How long a plan is searched for, in steps of the search: the same dag and effort give the same plan on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Partial schedules that are kept of each length.
    pub width: usize,
}

impl Default for Effort {
    /// That of a run: a few hundredths of a second for most prompts.
    fn default() -> Self {
        Self { width: 40 }
    }
}

/// An order of all tasks of a dag.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it takes, if tasks take what is expected.
    pub seconds: f64,
    /// The tasks; each follows what it waits for, and on each processor they run in this order.
    pub order: Vec<usize>,
}

/// The best order that was found. A processor that was idle needs `wake` seconds more for its next task. `go_on` is called
/// every few dozen microseconds; where it returns false the best policy's order is returned.
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

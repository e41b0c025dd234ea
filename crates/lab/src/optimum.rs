//! The shortest schedule. It is exact if that does not take too long, as for small instances and prompts of two chunks.
//!
//! Each task has one processor, so that this is a job shop. [`optimum`] is a dynamic program over all active schedules:
//! it adds one task at a time, and among partial schedules with the same tasks keeps only those that no other one
//! dominates ([`planner`](triad_plan::planner)). It drops partial schedules that can't be shorter than the best known
//! schedule.

use triad_plan::bound::lower_bound;
use triad_plan::planner::search::{EPSILON, Limits, Search};
use triad_plan::planner::{Effort, plan};
use triad_plan::schedule::Dag;

/// The best schedule that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// Length of the best schedule found.
    pub seconds: f64,
    /// Lower bound for the length of any schedule.
    pub bound: f64,
    /// Partial schedules that were examined.
    pub partials: usize,
}

impl Optimum {
    /// Returns whether the best schedule found is the shortest.
    pub fn is_proven(&self) -> bool {
        self.seconds <= self.bound
    }
}

/// Returns the shortest schedule of `dag`, or the best one after `most` partial schedules. It starts from a plan.
pub fn optimum(dag: &Dag, most: usize) -> Optimum {
    let bound = lower_bound(dag);
    let planned = plan(dag, 0.0, Effort::default(), &mut || true).seconds;
    if planned <= bound + EPSILON {
        return Optimum {
            seconds: planned,
            bound: planned,
            partials: 0,
        };
    }
    let limits = Limits {
        width: usize::MAX,
        most,
        best: planned,
    };
    let found = Search::new(dag, 0.0).run(limits, &mut || true);
    let seconds = found
        .schedule
        .map_or(planned, |(seconds, _)| seconds)
        .min(planned);
    // A partial schedule that was dropped because of the limit could have been shorter.
    Optimum {
        seconds,
        bound: seconds.min(bound.max(found.dropped)),
        partials: found.partials,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use triad_plan::schedule::Policy;
    use triad_plan::simulate::simulate;

    prop_compose! {
        fn dags()(count in 1usize..9)(
            tasks in prop::collection::vec((0usize..3, 1u8..9, prop::collection::vec(any::<prop::sample::Index>(), 0..3)), count),
        ) -> Dag {
            Dag::new(tasks.into_iter().enumerate().map(|(task, (home, seconds, before))| {
                let before = if task == 0 { vec![] } else { before.iter().map(|other| other.index(task)).collect() };
                (home, f64::from(seconds), before)
            }))
        }
    }

    /// Returns the shortest length of all orders, by brute force.
    fn by_trying_all(dag: &Dag, ends: &mut Vec<Option<f64>>, free: &mut Vec<f64>) -> f64 {
        let open = |ends: &[Option<f64>], task: usize| {
            ends[task].is_none()
                && dag
                    .predecessors(task)
                    .iter()
                    .all(|before| ends[*before].is_some())
        };
        let tasks: Vec<_> = (0..dag.len()).filter(|task| open(ends, *task)).collect();
        if tasks.is_empty() {
            return free.iter().copied().fold(0.0, f64::max);
        }
        let mut best = f64::INFINITY;
        for task in tasks {
            let home = dag.home(task).index();
            let before = free[home];
            let start = dag
                .predecessors(task)
                .iter()
                .map(|before| ends[*before].unwrap())
                .fold(before, f64::max);
            (ends[task], free[home]) = (Some(start + dag.seconds(task)), start + dag.seconds(task));
            best = best.min(by_trying_all(dag, ends, free));
            (ends[task], free[home]) = (None, before);
        }
        best
    }

    proptest! {
        #[test]
        fn the_optimum_is_that_of_trying_all_orders_and_is_between_bound_and_policies(dag in dags()) {
            let found = optimum(&dag, usize::MAX);
            prop_assert!(found.is_proven());
            let all = by_trying_all(&dag, &mut vec![None; dag.len()], &mut vec![0.0; dag.processors()]);
            prop_assert!((found.seconds - all).abs() < 1e-9, "{} by branches, {all} by trying", found.seconds);
            prop_assert!(lower_bound(&dag) <= all + 1e-9 && dag.lower_bound() <= lower_bound(&dag));
            for policy in Policy::SIMPLE {
                prop_assert!(all <= simulate(&dag, policy, |task| dag.seconds(task)).seconds() + 1e-9);
            }
        }

        #[test]
        fn with_few_partial_schedules_bound_and_best_still_hold_the_optimum_between_them(dag in dags(), most in 0usize..10) {
            let (some, all) = (optimum(&dag, most), optimum(&dag, usize::MAX));
            prop_assert!(some.bound <= all.seconds + 1e-9 && all.seconds <= some.seconds + 1e-9);
        }

        #[test]
        fn a_plan_of_few_tasks_is_the_optimum_almost_always(dag in dags()) {
            let plan = plan(&dag, 0.0, Effort { width: 8 }, &mut || true);
            let optimum = optimum(&dag, usize::MAX);
            prop_assert!(optimum.is_proven() && plan.seconds >= optimum.seconds - 1e-9);
            prop_assert!(plan.seconds <= 1.3 * optimum.seconds + 1e-9, "{} of {}", plan.seconds, optimum.seconds);
        }
    }
}

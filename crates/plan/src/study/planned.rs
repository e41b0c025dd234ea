//! A schedule that is planned ahead, from the costs that are expected: how much is left to gain over policies that decide
//! as they go?
//!
//! Begins with the schedules of all policies and of longest paths with some noise, and moves all tasks as late as they
//! can be, then as early, until nothing gets shorter (forward-backward improvement; Li and Willis 1992, Valls, Ballestín
//! and Quintanilla 2005). What comes out is an order of all tasks, which a run follows whatever they really take.

use super::Random;
use crate::schedule::{Dag, Policy};
use crate::simulate::simulate;

/// Schedules that begin with noise.
const RANDOM_STARTS: usize = 20;
/// Rounds of moving late and early without a gain before the next beginning.
const PATIENCE: usize = 2;

/// The tasks in a good order; each follows its predecessors.
pub fn order(dag: &Dag) -> Vec<usize> {
    let directions = [Tasks::forward(dag), Tasks::backward(dag)];
    let mut beginnings: Vec<Vec<f64>> = Vec::new();
    for policy in Policy::ALL {
        let mut starts = vec![0.0; dag.len()];
        let timeline = simulate(dag, policy, |task| dag.seconds(task));
        timeline.events().iter().for_each(|event| starts[event.task] = event.start);
        beginnings.push(starts);
    }
    let mut random = Random(11);
    for _ in 0..RANDOM_STARTS {
        // Tasks with long tails first; a predecessor is always before its successors, since its tail is longer.
        let mut tails = vec![0.0f64; dag.len()];
        for task in (0..dag.len()).rev() {
            tails[task] += dag.seconds(task) * random.log_normal(0.5) + f64::EPSILON;
            for before in dag.predecessors(task) {
                tails[*before] = tails[*before].max(tails[task]);
            }
        }
        beginnings.push(tails.into_iter().map(|tail| -tail).collect());
    }
    let improved = beginnings.into_iter().map(|keys| improved(&directions, keys));
    let (_, starts) = improved.min_by(|one, other| one.0.total_cmp(&other.0)).expect("a policy");
    sorted(&starts, |task| task)
}

/// Seconds of a run in this order, if each takes `takes(task)`.
pub fn seconds(dag: &Dag, order: &[usize], takes: impl Fn(usize) -> f64) -> f64 {
    let mut places = vec![0; dag.len()];
    order.iter().enumerate().for_each(|(place, task)| places[*task] = place);
    let task = |task: &usize| {
        let predecessors = dag.predecessors(*task).iter().map(|before| places[*before]).collect();
        (dag.home(*task).index(), takes(*task), predecessors)
    };
    let renumbered = Dag::new(order.iter().map(task));
    simulate(&renumbered, Policy::InOrder, |task| renumbered.seconds(task)).seconds()
}

/// Tasks by their keys, the smallest first; of equal ones by `then`.
fn sorted(keys: &[f64], then: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut tasks: Vec<_> = (0..keys.len()).collect();
    tasks.sort_by(|one, other| keys[*one].total_cmp(&keys[*other]).then(then(*one).cmp(&then(*other))));
    tasks
}

/// The length and the starts of what becomes of tasks in the order of `keys`.
fn improved([forward, backward]: &[Tasks; 2], mut keys: Vec<f64>) -> (f64, Vec<f64>) {
    let count = keys.len();
    let mut best = (f64::INFINITY, Vec::new());
    let mut patience = PATIENCE;
    while patience > 0 {
        let starts = forward.placed(&sorted(&keys, |task| task));
        let length = forward.length(&starts);
        if length < best.0 - 1e-12 {
            best = (length, starts.clone());
            patience = PATIENCE;
        } else {
            patience -= 1;
        }
        // What ends last begins first in the other direction.
        let ends: Vec<_> = (0..count).map(|task| -(starts[task] + forward.seconds[task])).collect();
        let mirrored = backward.placed(&sorted(&ends, |task| count - task));
        keys = (0..count).map(|task| -(mirrored[task] + backward.seconds[task])).collect();
    }
    best
}

/// Tasks of a [`Dag`] in one direction of time.
struct Tasks {
    homes: Vec<usize>,
    seconds: Vec<f64>,
    predecessors: Vec<Vec<usize>>,
    processors: usize,
}

impl Tasks {
    fn forward(dag: &Dag) -> Self {
        let all = || 0..dag.len();
        Self {
            homes: all().map(|task| dag.home(task).index()).collect(),
            seconds: all().map(|task| dag.seconds(task)).collect(),
            predecessors: all().map(|task| dag.predecessors(task).to_vec()).collect(),
            processors: dag.processors(),
        }
    }

    fn backward(dag: &Dag) -> Self {
        let predecessors = (0..dag.len()).map(|task| dag.successors(task).to_vec()).collect();
        Self { predecessors, ..Self::forward(dag) }
    }

    /// Each task of `order` in the first gap of its processor that has room for it: when it starts. Predecessors come
    /// before their successors.
    fn placed(&self, order: &[usize]) -> Vec<f64> {
        let mut starts = vec![0.0; order.len()];
        // Begin and end of what each processor does, ascending.
        let mut busy: Vec<Vec<(f64, f64)>> = vec![Vec::new(); self.processors];
        for task in order {
            let ready = self.predecessors[*task]
                .iter()
                .map(|before| starts[*before] + self.seconds[*before])
                .fold(0.0, f64::max);
            let busy = &mut busy[self.homes[*task]];
            let mut place = busy.partition_point(|(_, end)| *end <= ready);
            let mut start: f64 = ready;
            while let Some((begin, end)) = busy.get(place)
                && *begin < start + self.seconds[*task]
            {
                start = start.max(*end);
                place += 1;
            }
            busy.insert(place, (start, start + self.seconds[*task]));
            starts[*task] = start;
        }
        starts
    }

    fn length(&self, starts: &[f64]) -> f64 {
        starts.iter().zip(&self.seconds).map(|(start, seconds)| start + seconds).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimum::{lower_bound, optimum};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_plan_has_every_task_behind_its_predecessors_and_is_no_worse_than_any_policy(
            tasks in prop::collection::vec((0usize..3, 1u8..9, prop::collection::vec(any::<prop::sample::Index>(), 0..3)), 1..9),
        ) {
            let dag = Dag::new(tasks.into_iter().enumerate().map(|(task, (home, seconds, before))| {
                let before = if task == 0 { vec![] } else { before.iter().map(|other| other.index(task)).collect() };
                (home, f64::from(seconds), before)
            }));
            let order = order(&dag);
            prop_assert!((0..dag.len()).all(|task| order.contains(&task)));
            let planned = seconds(&dag, &order, |task| dag.seconds(task));
            prop_assert!(planned >= lower_bound(&dag) - 1e-9 && planned >= optimum(&dag, usize::MAX).seconds - 1e-9);
            for policy in Policy::ALL {
                prop_assert!(planned <= simulate(&dag, policy, |task| dag.seconds(task)).seconds() + 1e-9, "{policy:?}");
            }
        }
    }
}

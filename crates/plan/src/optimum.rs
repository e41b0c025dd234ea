//! The shortest schedule: exact for small instances, and a bound for all.
//!
//! Each task has one processor, so this is a job shop. [`optimum`] goes through all *active* schedules, those in which no
//! task could be moved forward without delaying another; one of them is the shortest (Giffler and Thompson 1960). A branch
//! ends where the bound excludes anything better. [`lower_bound`] relaxes all processors but one, on which
//! tasks may then be interrupted: solved exactly by Jackson's rule (Carlier 1982).

use crate::schedule::{Dag, Policy};
use crate::simulate::simulate;

/// The best that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// Of the best schedule found.
    pub seconds: f64,
    /// No schedule is shorter than this.
    pub bound: f64,
    /// Branches that were looked at.
    pub nodes: usize,
}

impl Optimum {
    /// Whether the best schedule found is the shortest.
    pub fn is_proven(&self) -> bool {
        self.seconds <= self.bound
    }
}

/// Times that differ by less are the same.
const EPSILON: f64 = 1e-12;

/// Seconds that no schedule stays below: the best of the longest path and, for each processor, of the shortest schedule
/// with interruptions in which no task begins before its longest path from the start nor is followed by less than its
/// longest path to the end.
pub fn lower_bound(dag: &Dag) -> f64 {
    let paths = Paths::new(dag);
    let all = |processor| (0..dag.len()).filter(move |task| dag.home(*task) == processor);
    let of_processor = |processor| {
        jackson(all(processor).map(|task| (paths.heads[task], dag.seconds(task), paths.tails[task])).collect())
    };
    dag.processor_ids().map(of_processor).fold(dag.lower_bound(), f64::max)
}

/// Longest paths: to the beginning of each task, and from its end.
struct Paths {
    heads: Vec<f64>,
    tails: Vec<f64>,
}

impl Paths {
    fn new(dag: &Dag) -> Self {
        let (mut heads, mut tails) = (vec![0.0f64; dag.len()], vec![0.0f64; dag.len()]);
        for task in 0..dag.len() {
            for before in dag.predecessors(task) {
                heads[task] = heads[task].max(heads[*before] + dag.seconds(*before));
            }
        }
        for task in (0..dag.len()).rev() {
            for before in dag.predecessors(task) {
                tails[*before] = tails[*before].max(tails[task] + dag.seconds(task));
            }
        }
        Self { heads, tails }
    }
}

/// One processor, tasks with heads, seconds and tails, interruptions allowed: always the ready one with the longest tail.
fn jackson(mut tasks: Vec<(f64, f64, f64)>) -> f64 {
    tasks.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut ready: Vec<(f64, f64)> = Vec::new();
    let (mut now, mut next, mut longest) = (0.0f64, 0, 0.0f64);
    while next < tasks.len() || !ready.is_empty() {
        if ready.is_empty() {
            now = now.max(tasks[next].0);
        }
        while next < tasks.len() && tasks[next].0 <= now {
            ready.push((tasks[next].2, tasks[next].1));
            next += 1;
        }
        let place = (0..ready.len()).max_by(|a, b| ready[*a].0.total_cmp(&ready[*b].0)).expect("one is ready");
        let (tail, left) = ready[place];
        let until = tasks.get(next).map_or(f64::INFINITY, |task| task.0);
        if now + left <= until {
            now += left;
            longest = longest.max(now + tail);
            ready.swap_remove(place);
        } else {
            ready[place].1 -= until - now;
            now = until;
        }
    }
    longest
}

/// The shortest schedule of `dag`, or the best of the first `most_nodes` branches. Begins with the best policy.
pub fn optimum(dag: &Dag, most_nodes: usize) -> Optimum {
    let of_policy = |policy| simulate(dag, policy, |task| dag.seconds(task)).seconds();
    let best = Policy::ALL.map(of_policy).into_iter().fold(f64::INFINITY, f64::min);
    let bound = lower_bound(dag);
    let mut search = Search {
        dag,
        paths: Paths::new(dag),
        best,
        most_nodes,
        nodes: 0,
        ends: vec![f64::NAN; dag.len()],
        missing: (0..dag.len()).map(|task| dag.predecessors(task).len()).collect(),
        free: vec![0.0; dag.processors()],
    };
    let whole = best <= bound + EPSILON || search.branch(dag.len());
    let seconds = search.best;
    Optimum { seconds, bound: if whole { seconds } else { bound.min(seconds) }, nodes: search.nodes }
}

struct Search<'a> {
    dag: &'a Dag,
    paths: Paths,
    best: f64,
    most_nodes: usize,
    nodes: usize,
    /// When each task ends; not a number if it is not planned.
    ends: Vec<f64>,
    /// How many predecessors of each task are not planned.
    missing: Vec<usize>,
    /// When each processor is done with what is planned.
    free: Vec<f64>,
}

impl Search<'_> {
    /// Looks at all that could follow what is planned, with `left` tasks to go; whether it came to the end.
    fn branch(&mut self, left: usize) -> bool {
        if left == 0 {
            self.best = self.best.min(self.free.iter().copied().fold(0.0, f64::max));
            return true;
        }
        if self.nodes >= self.most_nodes {
            return false;
        }
        self.nodes += 1;
        if self.bound() >= self.best - EPSILON {
            return true;
        }
        let open: Vec<_> =
            (0..self.dag.len()).filter(|task| self.ends[*task].is_nan() && self.missing[*task] == 0).collect();
        let starts: Vec<_> = open.iter().map(|task| self.earliest(*task)).collect();
        let (first, _) = (0..open.len())
            .map(|place| (place, starts[place] + self.dag.seconds(open[place])))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .expect("one is open as long as one is left");
        let (processor, end) = (self.dag.home(open[first]), starts[first] + self.dag.seconds(open[first]));
        // One of these comes first there; all others would leave room for one of them.
        let mut rivals: Vec<_> = (0..open.len())
            .filter(|place| self.dag.home(open[*place]) == processor)
            .filter(|place| *place == first || starts[*place] < end - EPSILON)
            .collect();
        let rank = |place: &usize| self.paths.tails[open[*place]] + self.dag.seconds(open[*place]);
        rivals.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
        let mut whole = true;
        for place in rivals {
            let (task, free) = (open[place], self.free[processor.index()]);
            self.ends[task] = starts[place] + self.dag.seconds(task);
            self.free[processor.index()] = self.ends[task];
            self.dag.successors(task).iter().for_each(|later| self.missing[*later] -= 1);
            whole &= self.branch(left - 1);
            self.dag.successors(task).iter().for_each(|later| self.missing[*later] += 1);
            self.free[processor.index()] = free;
            self.ends[task] = f64::NAN;
        }
        whole
    }

    /// When a task whose predecessors are planned could begin.
    fn earliest(&self, task: usize) -> f64 {
        let before = self.dag.predecessors(task).iter().map(|before| self.ends[*before]);
        before.fold(self.free[self.dag.home(task).index()], f64::max)
    }

    /// What no schedule that goes on from here stays below.
    fn bound(&self) -> f64 {
        let mut heads = vec![0.0f64; self.dag.len()];
        let mut open = vec![Vec::new(); self.dag.processors()];
        let mut longest = self.free.iter().copied().fold(0.0, f64::max);
        for task in 0..self.dag.len() {
            if !self.ends[task].is_nan() {
                longest = longest.max(self.ends[task] + self.paths.tails[task]);
                continue;
            }
            let home = self.dag.home(task).index();
            let end = |before: &usize| {
                let end = self.ends[*before];
                if end.is_nan() { heads[*before] + self.dag.seconds(*before) } else { end }
            };
            heads[task] = self.dag.predecessors(task).iter().map(end).fold(self.free[home], f64::max);
            open[home].push((heads[task], self.dag.seconds(task), self.paths.tails[task]));
        }
        open.into_iter().map(jackson).fold(longest, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// The shortest of all orders, without any cleverness.
    fn by_trying_all(dag: &Dag, ends: &mut Vec<Option<f64>>, free: &mut Vec<f64>) -> f64 {
        let open = |ends: &[Option<f64>], task: usize| {
            ends[task].is_none() && dag.predecessors(task).iter().all(|before| ends[*before].is_some())
        };
        let tasks: Vec<_> = (0..dag.len()).filter(|task| open(ends, *task)).collect();
        if tasks.is_empty() {
            return free.iter().copied().fold(0.0, f64::max);
        }
        let mut best = f64::INFINITY;
        for task in tasks {
            let home = dag.home(task).index();
            let before = free[home];
            let start = dag.predecessors(task).iter().map(|before| ends[*before].unwrap()).fold(before, f64::max);
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
            for policy in Policy::ALL {
                prop_assert!(all <= simulate(&dag, policy, |task| dag.seconds(task)).seconds() + 1e-9);
            }
        }

        #[test]
        fn with_few_branches_bound_and_best_still_hold_the_optimum_between_them(dag in dags(), most in 0usize..10) {
            let (some, all) = (optimum(&dag, most), optimum(&dag, usize::MAX));
            prop_assert!(some.bound <= all.seconds + 1e-9 && all.seconds <= some.seconds + 1e-9);
        }
    }

    #[test]
    fn the_bound_includes_that_nothing_can_begin_at_once() {
        // The second processor's three tasks wait for the first's.
        let dag = Dag::new([(0, 1.0, vec![]), (1, 2.0, vec![0]), (1, 2.0, vec![0]), (1, 2.0, vec![0])]);
        assert_eq!((dag.lower_bound(), lower_bound(&dag)), (6.0, 7.0));
    }
}

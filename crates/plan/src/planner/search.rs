//! Search of schedules of a [`Dag`] that adds one task at a time. It finds the shortest schedule, or keeps only the
//! most promising partial schedules of each length.
//!
//! A [`Partial`] schedule has placed some tasks, each on its processor after those placed before it. Its extensions
//! form *active* schedules (Giffler and Thompson 1960). Of the open tasks, the one that could end first determines the
//! processor. It gets this task or another one that could start before that end, and may idle until then. One of the
//! active schedules is the shortest.
//!
//! Of two partial schedules with the same tasks, one *dominates* the other if no later task can start later after it.
//! The dominated one is dropped. A search without a `width` otherwise drops only schedules that can't be shorter than
//! `best`, so it ends with the optimum. For prompts of two chunks few schedules are left. A search with a width keeps
//! that many (beam search).

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bound::Paths;
use crate::random::mixed;
use crate::schedule::Dag;

/// Times that differ by at most this are equal.
pub const EPSILON: f64 = 1e-12;
/// Weight of the mean lower bound over processors, added to the largest one, in the rank of a partial schedule.
const MEAN: f64 = 0.5;

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of partial schedules to keep of each length.
    pub width: usize,
    /// Total number of partial schedules.
    pub most: usize,
    /// Only schedules shorter than this are searched.
    pub best: f64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The shortest schedule: its seconds, and its tasks in an order in which each follows its predecessors. `None` if
    /// no schedule shorter than `best` was found within the limits.
    pub schedule: Option<(f64, Vec<usize>)>,
    /// Lower bound of the schedules that were dropped because of a limit; infinite if none was.
    pub dropped: f64,
    /// Number of partial schedules examined.
    pub partials: usize,
}

/// A schedule of some of the tasks.
#[derive(Clone)]
struct Partial {
    /// Bit set of the placed tasks.
    placed: SmallVec<[u64; 8]>,
    /// Hash of the placed tasks.
    key: u64,
    /// Tasks that are not placed, but whose predecessors are.
    open: SmallVec<[usize; 8]>,
    /// Placed tasks with their end, if a task that is not placed waits for them after its processor is free.
    late: SmallVec<[(usize, f64); 8]>,
    /// End of the placed tasks on each processor.
    free: SmallVec<[f64; 4]>,
    /// Seconds of the tasks on each processor that are not placed.
    left: SmallVec<[f64; 4]>,
    /// Index of its latest task in the list of all steps, which links to the partial schedule before it.
    last: usize,
}

/// An extension of a partial schedule by one task.
struct Step {
    parent: usize,
    task: usize,
    end: f64,
    /// Lower bound of all schedules that continue with it.
    bound: f64,
    /// Rank of the step. Steps with the lowest ranks are continued.
    rank: f64,
}

/// A search of schedules of a [`Dag`] in which a processor that was idle needs `wake` additional seconds for its next
/// task.
pub struct Search<'a> {
    dag: &'a Dag,
    tails: Vec<f64>,
    wake: f64,
}

impl<'a> Search<'a> {
    /// Prepares a search of schedules of `dag` in which an idle processor needs `wake` additional seconds for its next
    /// task.
    pub fn new(dag: &'a Dag, wake: f64) -> Self {
        Self {
            dag,
            tails: Paths::new(dag).tails,
            wake,
        }
    }

    /// Searches schedules within `limits`. `go_on` is called for each length. If it returns false, nothing is found.
    pub fn run(&self, limits: Limits, go_on: &mut dyn FnMut() -> bool) -> Found {
        let mut found = Found {
            schedule: None,
            dropped: f64::INFINITY,
            partials: 0,
        };
        // Latest task and previous entry of each partial schedule that was kept.
        let mut all: Vec<(usize, usize)> = vec![(usize::MAX, usize::MAX)];
        let mut layer = vec![self.nothing()];
        for _ in 0..self.dag.len() {
            if !go_on() {
                return found;
            }
            let mut steps: Vec<Step> = Vec::new();
            for (parent, partial) in layer.iter().enumerate() {
                self.expand(partial, parent, &mut steps);
            }
            steps.retain(|step| step.bound < limits.best - EPSILON);
            steps.sort_by(|one, other| {
                one.rank
                    .total_cmp(&other.rank)
                    .then(one.task.cmp(&other.task))
            });
            let mut next: Vec<Partial> = Vec::new();
            let mut by_key: HashMap<u64, SmallVec<[usize; 4]>> = HashMap::new();
            for step in steps {
                found.partials += 1;
                if next.len() >= limits.width || found.partials > limits.most {
                    found.dropped = found.dropped.min(step.bound);
                    continue;
                }
                let mut partial = self.placed(&layer[step.parent], step.task, step.end);
                let same = by_key.entry(partial.key).or_default();
                if same
                    .iter()
                    .any(|other| self.dominates(&next[*other], &partial))
                {
                    continue;
                }
                same.push(next.len());
                partial.last = all.len();
                all.push((step.task, layer[step.parent].last));
                next.push(partial);
            }
            layer = next;
        }
        let length = |partial: &Partial| partial.free.iter().copied().fold(0.0, f64::max);
        let best = layer
            .iter()
            .min_by(|one, other| length(one).total_cmp(&length(other)));
        found.schedule = best.map(|best| {
            let (mut order, mut at) = (Vec::with_capacity(self.dag.len()), best.last);
            while at > 0 {
                order.push(all[at].0);
                at = all[at].1;
            }
            order.reverse();
            (length(best), order)
        });
        found
    }

    fn nothing(&self) -> Partial {
        let Self { dag, .. } = self;
        Partial {
            placed: SmallVec::from_elem(0, dag.len().div_ceil(64)),
            key: 0,
            open: (0..dag.len())
                .filter(|task| dag.predecessors(*task).is_empty())
                .collect(),
            late: SmallVec::new(),
            free: SmallVec::from_elem(0.0, dag.processors()),
            left: SmallVec::from_vec(dag.work()),
            last: 0,
        }
    }

    /// Returns when a task with placed predecessors could start and end.
    fn earliest(&self, partial: &Partial, task: usize) -> (f64, f64) {
        let free = partial.free[self.dag.home(task).index()];
        let before = self.dag.predecessors(task);
        let mut start = free;
        for (late, end) in &partial.late {
            if *end > start && before.contains(late) {
                start = *end;
            }
        }
        let wake = if start > free || free == 0.0 {
            self.wake
        } else {
            0.0
        };
        (start, start + wake + self.dag.seconds(task))
    }

    /// Adds the possible extensions of `partial` to `steps`.
    fn expand(&self, partial: &Partial, parent: usize, steps: &mut Vec<Step>) {
        let times: SmallVec<[(f64, f64); 8]> = partial
            .open
            .iter()
            .map(|task| self.earliest(partial, *task))
            .collect();
        let first = (0..times.len()).min_by(|one, other| times[*one].1.total_cmp(&times[*other].1));
        let Some(first) = first else { return };
        let (processor, until) = (self.dag.home(partial.open[first]), times[first].1);
        for (place, task) in partial.open.iter().enumerate() {
            let (start, end) = times[place];
            if self.dag.home(*task) != processor || (start >= until && place != first) {
                continue;
            }
            // Lower bounds: of each processor, by its remaining work, and of each open task, by the longest path after
            // it.
            let (mut bound, mut sum) = (end + self.tails[*task], 0.0);
            for (index, (free, left)) in partial.free.iter().zip(&partial.left).enumerate() {
                let seconds = if index == processor.index() {
                    end + left - self.dag.seconds(*task)
                } else {
                    free + left
                };
                bound = bound.max(seconds);
                sum += seconds;
            }
            for (other, (start, other_end)) in partial.open.iter().zip(&times) {
                if other != task {
                    let delay = if self.dag.home(*other) == processor {
                        (end - start).max(0.0)
                    } else {
                        0.0
                    };
                    bound = bound.max(other_end + delay + self.tails[*other]);
                }
            }
            let rank = bound + MEAN * sum / partial.free.len() as f64;
            steps.push(Step {
                parent,
                task: *task,
                end,
                bound,
                rank,
            });
        }
    }

    /// Returns `partial` extended by `task`, which ends at `end`.
    fn placed(&self, partial: &Partial, task: usize, end: f64) -> Partial {
        let dag = self.dag;
        let mut next = partial.clone();
        let processor = dag.home(task).index();
        next.placed[task / 64] |= 1 << (task % 64);
        next.key ^= mixed((task as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        next.free[processor] = end;
        next.left[processor] -= dag.seconds(task);
        next.open.retain(|other| *other != task);
        next.late.push((task, end));
        let is_placed = |other: usize| next.placed[other / 64] >> (other % 64) & 1 == 1;
        for later in dag.successors(task) {
            if dag
                .predecessors(*later)
                .iter()
                .all(|before| is_placed(*before))
            {
                next.open.push(*later);
            }
        }
        let (placed, free) = (&next.placed, &next.free);
        let is_placed = |other: usize| placed[other / 64] >> (other % 64) & 1 == 1;
        next.late.retain(|(before, end)| {
            let mut waiting = dag
                .successors(*before)
                .iter()
                .filter(|later| !is_placed(**later));
            waiting.any(|later| free[dag.home(*later).index()] < *end)
        });
        next
    }

    /// Returns whether no later task can start later after `one` than after `other`, which has placed the same tasks.
    fn dominates(&self, one: &Partial, other: &Partial) -> bool {
        if one.placed != other.placed
            || one
                .free
                .iter()
                .zip(&other.free)
                .any(|(one, other)| *one > other + EPSILON)
        {
            return false;
        }
        one.late.iter().all(|(before, end)| {
            if other
                .late
                .iter()
                .any(|(task, other_end)| task == before && *end <= other_end + EPSILON)
            {
                return true;
            }
            let is_placed = |task: usize| one.placed[task / 64] >> (task % 64) & 1 == 1;
            let mut waiting = self
                .dag
                .successors(*before)
                .iter()
                .filter(|later| !is_placed(**later));
            waiting.all(|later| *end <= other.free[self.dag.home(*later).index()] + EPSILON)
        })
    }
}

//! Schedules of a [`Dag`], one more task at a time: all that could be the shortest, or the most promising of each length.
//!
//! A [`Partial`] schedule has placed some tasks, each on its processor behind those placed before it. What follows is an
//! *active* schedule (Giffler and Thompson 1960): of the tasks that are open, the one that could end first decides the
//! processor, which gets a task that could begin before that end, itself or another one, and may idle until then. One of the
//! active schedules is the shortest. Of two partial schedules with the same tasks, one *dominates* the other where
//! whatever follows can begin no later behind it; the other one is dropped. Of those that are left, a search without a
//! `width` drops only what cannot be shorter than `best`, so that it ends with the optimum: in prompts of two chunks there are
//! few. With a width it keeps that many (beam search).

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bound::Paths;
use crate::random::mixed;
use crate::schedule::Dag;

/// Times that differ by less are the same.
pub const EPSILON: f64 = 1e-12;
/// How much the mean of what processors cannot end before counts beside the largest, for which partial schedules go on.
const MEAN: f64 = 0.5;

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Partial schedules that are kept of each length.
    pub width: usize,
    /// Partial schedules in all.
    pub most: usize,
    /// Only shorter schedules are looked for.
    pub best: f64,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The shortest schedule: its seconds, and the tasks in an order in which each follows what it waits for. `None` where
    /// nothing is shorter than what was known, or was found in time.
    pub schedule: Option<(f64, Vec<usize>)>,
    /// No schedule that was dropped for another reason than dominance or length can be shorter; infinite where none was.
    pub dropped: f64,
    /// Partial schedules that were looked at.
    pub partials: usize,
}

/// Some tasks, placed.
#[derive(Clone)]
struct Partial {
    /// By task, a bit.
    placed: SmallVec<[u64; 8]>,
    /// The same in one number.
    key: u64,
    /// Tasks that wait for none that is not placed.
    open: SmallVec<[usize; 8]>,
    /// Placed tasks that something which is not placed waits for beyond the time that its processor is free.
    late: SmallVec<[(usize, f64); 8]>,
    /// By processor, when what is placed there ends.
    free: SmallVec<[f64; 4]>,
    /// By processor, the seconds of what is not placed.
    left: SmallVec<[f64; 4]>,
    /// Its place in the list of all: the latest task, and the partial schedule before it.
    last: usize,
}

/// A task behind a partial schedule.
struct Step {
    parent: usize,
    task: usize,
    end: f64,
    /// Nothing that goes on from there is shorter.
    bound: f64,
    /// The least goes on.
    rank: f64,
}

/// The searched [`Dag`], where a processor that was idle needs `wake` seconds more for its next task.
pub struct Search<'a> {
    dag: &'a Dag,
    tails: Vec<f64>,
    wake: f64,
}

impl<'a> Search<'a> {
    /// Prepares a search of schedules of `dag`, in which an idle processor takes `wake` seconds more for its next task.
    pub fn new(dag: &'a Dag, wake: f64) -> Self {
        Self {
            dag,
            tails: Paths::new(dag).tails,
            wake,
        }
    }

    /// Goes through schedules as far as `limits` let it. Finds nothing where `go_on`, which is called for
    /// each length, returns false.
    pub fn run(&self, limits: Limits, go_on: &mut dyn FnMut() -> bool) -> Found {
        let mut found = Found {
            schedule: None,
            dropped: f64::INFINITY,
            partials: 0,
        };
        // The task and what is before it, of each partial schedule that was kept.
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

    /// When a task whose predecessors are placed could begin, and when it could end.
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

    /// What may follow.
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
            // What cannot end before: processors, by their work, and what is open, by the longest path behind it.
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

    /// `partial`, and `task` behind it until `end`.
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

    /// Whether whatever follows `other`, which has placed the same tasks, can begin no later behind `one`.
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

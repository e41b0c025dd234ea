//! Choice of the next task for a processor: a pure state machine without a clock.
//!
//! [`Dag`] contains the tasks, each with its home processor and its expected time on each processor. [`Schedule`]
//! contains their state. [`Schedule::next`] returns the next task for an idle processor, and [`Schedule::complete`]
//! marks a task as done. [`Schedule::observe`] takes the time of a task and adjusts the expected times. If a processor
//! fails, [`Schedule::lose`] moves its tasks to others. Time has no influence except through these calls.

mod dag;
pub mod parts;
mod policy;

use std::borrow::Borrow;

use crate::processors::ProcessorId;
pub use dag::{Dag, Node};
pub use policy::Policy;

/// Weight of the latest task in the exponential average of its kind. A chunk of a small model has about thirty tasks of
/// each kind. After these, the previous average has practically no influence.
const LATEST: f64 = 0.25;
/// Ranks are recomputed when the slowness of a processor and kind differs by this factor, up or down, from that of the
/// ranks.
const NEW_RANKS: f64 = 1.25;
/// The plan is compared with the longest remaining path when this fraction of the total expected seconds has changed.
const DRIFT: f64 = 0.25;

/// State of the tasks of a [`Dag`], which it borrows or owns.
#[derive(Clone, Debug)]
pub struct Schedule<D> {
    dag: D,
    policy: Policy,
    /// The processor of each task, which differs from its home if that was lost.
    homes: Vec<ProcessorId>,
    is_lost: Vec<bool>,
    bottleneck: ProcessorId,
    /// Number of predecessors that each task still waits for.
    missing: Vec<usize>,
    states: Vec<State>,
    /// For each processor, the tasks that it can run, ordered by the time since they have been ready, the longest
    /// first. They are few: at most one per chunk.
    ready: Vec<Vec<usize>>,
    /// For each processor and kind, the ratio of observed to expected time in the [`Dag`].
    slowness: Vec<Vec<f64>>,
    /// For [`Policy::CriticalPath`]: upward ranks, and the slowness with which they were computed.
    ranks: (Vec<f64>, Vec<Vec<f64>>),
    /// For [`Policy::Planned`]: the share of each processor and kind in the total expected seconds.
    shares: Vec<Vec<f64>>,
    /// For [`Policy::InOrder`] and [`Policy::Planned`]: each processor's tasks in order, and how many of them have
    /// started.
    in_order: Vec<(Vec<usize>, usize)>,
    /// The task that each processor runs.
    running: Vec<Option<usize>>,
    complete: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Running,
    Complete,
}

/// The result of losing a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Tasks that moved, with their new processor; ascending.
    pub moved: Vec<(usize, ProcessorId)>,
    /// Tasks that no remaining processor can run; ascending. The schedule never completes.
    pub orphans: Vec<usize>,
}

impl<D: Borrow<Dag>> Schedule<D> {
    /// Creates a schedule in which no task has started.
    pub fn new(dag: D, policy: Policy) -> Self {
        let tasks = dag.borrow();
        let (count, processors) = (tasks.len(), tasks.processors());
        let slowness = vec![vec![1.0; tasks.kinds()]; processors];
        let is_planned = policy == Policy::Planned && tasks.plan().is_some();
        let policy = if policy == Policy::Planned && !is_planned {
            Policy::CriticalPath
        } else {
            policy
        };
        let mut shares = vec![vec![0.0; tasks.kinds()]; if is_planned { processors } else { 0 }];
        if is_planned {
            let all: f64 = tasks.work().iter().sum();
            (0..count).for_each(|task| {
                shares[tasks.home(task).index()][tasks.kind(task)] +=
                    tasks.seconds(task) / all.max(f64::MIN_POSITIVE);
            });
        }
        let mut schedule = Self {
            policy,
            homes: (0..count).map(|task| tasks.home(task)).collect(),
            is_lost: vec![false; processors],
            bottleneck: tasks.bottleneck(),
            missing: (0..count)
                .map(|task| tasks.predecessors(task).len())
                .collect(),
            states: vec![State::Waiting; count],
            ready: vec![Vec::new(); processors],
            ranks: (tasks.ranks().to_vec(), slowness.clone()),
            slowness,
            shares,
            in_order: vec![(Vec::new(), 0); processors],
            running: vec![None; processors],
            complete: 0,
            dag,
        };
        (0..count).for_each(|task| schedule.notice(task));
        schedule.put_in_order();
        schedule
    }

    /// Sorts the tasks that have not started by number, or by their place in the plan.
    fn put_in_order(&mut self) {
        let mut in_order = vec![(Vec::new(), 0); self.is_lost.len()];
        for task in 0..self.homes.len() {
            let home = self.homes[task].index();
            if matches!(self.states[task], State::Waiting | State::Ready) && !self.is_lost[home] {
                in_order[home].0.push(task);
            }
        }
        if let (Policy::Planned, Some(plan)) = (self.policy, self.dag().plan()) {
            in_order
                .iter_mut()
                .for_each(|(tasks, _)| tasks.sort_unstable_by_key(|task| plan[*task].place));
        }
        self.in_order = in_order;
    }

    /// Starts the next task of `processor` and returns it. Returns `None` if the processor already runs a task
    /// (equation 4 of the paper), is lost, or has no task that it may start now.
    pub fn next(&mut self, processor: ProcessorId) -> Option<usize> {
        let (place, index) = (self.choice(processor)?, processor.index());
        let task = self.ready[index].remove(place);
        self.states[task] = State::Running;
        self.running[index] = Some(task);
        let (tasks, started) = &mut self.in_order[index];
        let has_started =
            |task: &&usize| matches!(self.states[**task], State::Running | State::Complete);
        *started += tasks[*started..].iter().take_while(has_started).count();
        Some(task)
    }

    /// Returns the task that [`Schedule::next`] would return.
    pub fn peek(&self, processor: ProcessorId) -> Option<usize> {
        self.choice(processor)
            .map(|place| self.ready[processor.index()][place])
    }

    /// Returns the index of a processor's next task in its ready list.
    fn choice(&self, processor: ProcessorId) -> Option<usize> {
        let index = processor.index();
        let ready = self.ready.get(index)?;
        if self.running[index].is_some() || ready.is_empty() {
            return None;
        }
        let place = match self.policy {
            Policy::InOrder => ready
                .iter()
                .position(|task| *task == self.first_in_order(index))?,
            Policy::Planned => {
                let first = self.first_in_order(index);
                let plan = self.dag().plan().expect("something was planned");
                match ready.iter().position(|task| *task == first) {
                    Some(place) => place,
                    None if plan[first].idles => return None,
                    // A task that should be ready is late.
                    None => (0..ready.len()).min_by_key(|at| plan[ready[*at]].place)?,
                }
            }
            Policy::Fifo => 0,
            Policy::NpuFirst => {
                let frees = |task: &usize| {
                    self.freed_by(*task)
                        .any(|later| self.homes[later] == self.bottleneck)
                };
                let first = if processor == self.bottleneck {
                    None
                } else {
                    ready.iter().position(frees)
                };
                first.unwrap_or(0)
            }
            Policy::Paper => self.largest(ready, |task| self.contribution(task, processor)),
            Policy::CriticalPath => self.largest(ready, |task| self.ranks.0[task]),
        };
        Some(place)
    }

    /// Returns a processor's first task in order that has not started. It exists if a task of the processor is ready.
    fn first_in_order(&self, processor: usize) -> usize {
        let (tasks, started) = &self.in_order[processor];
        tasks[*started]
    }

    /// Returns the task that `processor` runs.
    pub fn running(&self, processor: ProcessorId) -> Option<usize> {
        self.running.get(processor.index()).copied().flatten()
    }

    /// Returns the processor of a task, which differs from its home in the dag if that was lost.
    pub fn home(&self, task: usize) -> ProcessorId {
        self.homes[task]
    }

    /// Returns the tasks and their dependencies.
    pub fn dag(&self) -> &Dag {
        self.dag.borrow()
    }

    /// Returns the processor with the most work, as used by the policies.
    pub fn bottleneck(&self) -> ProcessorId {
        self.bottleneck
    }

    /// Returns the tasks that wait only for `task`, which has not ended.
    fn freed_by(&self, task: usize) -> impl Iterator<Item = usize> {
        self.dag()
            .successors(task)
            .iter()
            .copied()
            .filter(|later| self.missing[*later] == 1)
    }

    /// Returns C of equation 5.
    fn contribution(&self, task: usize, processor: ProcessorId) -> f64 {
        let is_bottleneck = processor == self.bottleneck;
        let freed = self
            .freed_by(task)
            .filter(|later| (self.homes[*later] == self.bottleneck) != is_bottleneck);
        let seconds: f64 = freed.map(|later| self.expected(later)).sum();
        if is_bottleneck { -seconds } else { seconds }
    }

    /// Returns the index of the ready task with the largest value; of equal ones, the one with the lowest number.
    fn largest(&self, ready: &[usize], value: impl Fn(usize) -> f64) -> usize {
        let mut best = (0, f64::NEG_INFINITY);
        for (place, task) in ready.iter().enumerate() {
            let value = value(*task);
            if value > best.1 || (value == best.1 && *task < ready[best.0]) {
                best = (place, value);
            }
        }
        best.0
    }

    /// Marks `task`, which [`Schedule::next`] returned, as complete.
    ///
    /// # Panics
    /// If the task is not running.
    pub fn complete(&mut self, task: usize) {
        assert_eq!(self.states[task], State::Running, "task {task}");
        self.states[task] = State::Complete;
        self.running[self.homes[task].index()] = None;
        self.complete += 1;
        for index in 0..self.dag().successors(task).len() {
            let later = self.dag().successors(task)[index];
            self.missing[later] -= 1;
            self.notice(later);
        }
    }

    /// Returns whether all tasks are complete.
    pub fn is_complete(&self) -> bool {
        self.complete == self.dag().len()
    }

    /// Returns the expected seconds of a task, adjusted by the observed times of its kind on its processor.
    pub fn expected(&self, task: usize) -> f64 {
        self.expected_on(task, self.homes[task])
            .expect("a task's processor can run it")
    }

    /// Returns the expected seconds on another processor; `None` if it can't run the task.
    fn expected_on(&self, task: usize, processor: ProcessorId) -> Option<f64> {
        let slowness = self.slowness[processor.index()][self.dag().kind(task)];
        Some(self.dag().seconds_on(task, processor)? * slowness)
    }

    /// Records the seconds of `task`, and adjusts the expected time of its kind by an exponential average.
    pub fn observe(&mut self, task: usize, seconds: f64) {
        let dag = self.dag.borrow();
        let (processor, kind) = (self.homes[task], dag.kind(task));
        let expected = dag.seconds_on(task, processor).unwrap_or(0.0);
        if !(expected > 0.0 && seconds >= 0.0 && seconds.is_finite()) {
            return;
        }
        let slowness = &mut self.slowness[processor.index()][kind];
        *slowness += LATEST * (seconds / expected - *slowness);
        let drift = *slowness / self.ranks.1[processor.index()][kind];
        match self.policy {
            Policy::CriticalPath if !(NEW_RANKS.recip()..=NEW_RANKS).contains(&drift) => {
                self.compute_ranks();
            }
            Policy::Planned if self.drift() > DRIFT => self.repair(),
            _ => {}
        }
    }

    /// Returns the fraction of the total expected seconds that has changed since the plan was made or last compared; 0
    /// without a plan.
    fn drift(&self) -> f64 {
        let all = self.shares.iter().zip(&self.slowness).zip(&self.ranks.1);
        let of_kinds = all.flat_map(|((shares, now), then)| shares.iter().zip(now).zip(then));
        of_kinds
            .map(|((share, now), then)| share * (now / then - 1.0).abs())
            .sum()
    }

    /// Drops the plan if the longest remaining path is expected to end earlier.
    fn repair(&mut self) {
        self.compute_ranks();
        if self.seconds_left(Policy::CriticalPath) < self.seconds_left(Policy::Planned) {
            self.policy = Policy::CriticalPath;
        }
    }

    /// Returns the expected seconds until all tasks are complete under a policy, as if the running tasks had just
    /// started. Returns infinity if a task has no processor.
    fn seconds_left(&self, policy: Policy) -> f64 {
        let mut rest = Schedule {
            dag: self.dag(),
            policy,
            homes: self.homes.clone(),
            is_lost: self.is_lost.clone(),
            bottleneck: self.bottleneck,
            missing: self.missing.clone(),
            states: self.states.clone(),
            ready: self.ready.clone(),
            slowness: self.slowness.clone(),
            ranks: self.ranks.clone(),
            shares: Vec::new(),
            in_order: self.in_order.clone(),
            running: self.running.clone(),
            complete: self.complete,
        };
        let ids: Vec<_> = rest.dag.processor_ids().collect();
        let mut ends: Vec<Option<f64>> = rest
            .running
            .iter()
            .map(|task| task.map(|task| rest.expected(task)))
            .collect();
        let mut now = 0.0;
        while !rest.is_complete() {
            for (id, end) in ids.iter().zip(&mut ends).filter(|(_, end)| end.is_none()) {
                *end = rest.next(*id).map(|task| now + rest.expected(task));
            }
            let first = (0..ends.len()).filter(|index| ends[*index].is_some());
            let first =
                first.min_by(|one, other| ends[*one].partial_cmp(&ends[*other]).expect("times"));
            let Some((index, end)) = first.and_then(|index| Some((index, ends[index].take()?)))
            else {
                return f64::INFINITY;
            };
            now = end;
            rest.complete(rest.running[index].expect("it has an end"));
        }
        now
    }

    fn compute_ranks(&mut self) {
        self.ranks = (
            self.dag().upward_ranks(|task| self.expected(task)),
            self.slowness.clone(),
        );
    }

    /// Marks `processor` as lost. Each of its tasks that is not complete moves to the processor with the least expected
    /// time for it; of equal ones, to the one with the least work. Has no effect if the processor was lost before.
    pub fn lose(&mut self, processor: ProcessorId) -> Lost {
        let mut lost = Lost::default();
        match self.is_lost.get_mut(processor.index()) {
            Some(is_lost) if !*is_lost => *is_lost = true,
            _ => return lost,
        }
        if let Some(task) = self.running[processor.index()].take() {
            self.states[task] = State::Ready;
            self.ready[processor.index()].insert(0, task);
        }
        let mut work = self.work_left();
        for task in 0..self.homes.len() {
            if self.homes[task] != processor || self.states[task] == State::Complete {
                continue;
            }
            match self.heir(task, &work) {
                Some((heir, seconds)) => {
                    work[processor.index()] -= self.expected(task);
                    work[heir.index()] += seconds;
                    self.homes[task] = heir;
                    lost.moved.push((task, heir));
                }
                None => lost.orphans.push(task),
            }
        }
        for task in std::mem::take(&mut self.ready[processor.index()]) {
            let home = self.homes[task];
            if home != processor {
                self.ready[home.index()].push(task);
            }
        }
        self.put_in_order();
        if !lost.moved.is_empty() {
            self.bottleneck = dag::most_work(&work);
            match self.policy {
                Policy::CriticalPath => self.compute_ranks(),
                Policy::Planned => self.repair(),
                _ => {}
            }
        }
        lost
    }

    /// Returns the expected seconds of incomplete tasks for each processor.
    fn work_left(&self) -> Vec<f64> {
        let mut work = vec![0.0; self.is_lost.len()];
        for task in 0..self.homes.len() {
            if self.states[task] != State::Complete {
                work[self.homes[task].index()] += self.expected(task);
            }
        }
        work
    }

    /// Returns the processor that takes over a task of a lost one, and the expected seconds there.
    fn heir(&self, task: usize, work: &[f64]) -> Option<(ProcessorId, f64)> {
        let is_left = |id: &ProcessorId| !self.is_lost[id.index()];
        let heirs = self.dag().processor_ids().filter(is_left);
        let heirs = heirs.filter_map(|id| Some((id, self.expected_on(task, id)?)));
        heirs.min_by(|one, other| {
            let work = |id: ProcessorId| work[id.index()];
            one.1
                .total_cmp(&other.1)
                .then(work(one.0).total_cmp(&work(other.0)))
        })
    }

    /// Marks a task as ready if all its predecessors are complete.
    fn notice(&mut self, task: usize) {
        let home = self.homes[task].index();
        if self.missing[task] == 0 {
            self.states[task] = State::Ready;
            if !self.is_lost[home] {
                self.ready[home].push(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: usize = 0;
    const NPU: usize = 1;
    const ON_CPU: ProcessorId = ProcessorId::new(CPU);
    const ON_NPU: ProcessorId = ProcessorId::new(NPU);

    /// Returns tasks whose bottleneck is the NPU. Of the CPU's first tasks, 0 makes no task ready, 1 a short one of the
    /// NPU, 2 a long one of the NPU, 3 a short one of the NPU that is followed by a long one, and 4 a long one of the
    /// CPU.
    fn dag() -> Dag {
        Dag::new([
            (CPU, 1.0, vec![]),
            (CPU, 1.0, vec![]),
            (CPU, 1.0, vec![]),
            (CPU, 1.0, vec![]),
            (CPU, 1.0, vec![]),
            (NPU, 2.0, vec![1]),
            (NPU, 5.0, vec![2]),
            (NPU, 2.0, vec![3]),
            (CPU, 30.0, vec![7]),
            (CPU, 20.0, vec![4]),
            (NPU, 60.0, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ])
    }

    #[test]
    fn each_policy_picks_by_its_rule() {
        let dag = dag();
        let first = |policy| Schedule::new(&dag, policy).next(ON_CPU);
        let expected = [Some(0), Some(0), Some(1), Some(2), Some(3)];
        assert_eq!(Policy::SIMPLE.map(first), expected, "{:?}", Policy::SIMPLE);
        assert_eq!(
            first(Policy::Planned),
            first(Policy::CriticalPath),
            "nothing was planned"
        );
        let planned = dag
            .clone()
            .with_plan(&[4, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10], 0.0);
        assert_eq!(
            Schedule::new(&planned, Policy::Planned).next(ON_CPU),
            Some(4)
        );
    }

    #[test]
    fn a_plan_is_left_where_times_have_drifted_and_the_longest_path_is_shorter() {
        let node = |home, seconds, predecessors, kind| Node {
            home,
            seconds: vec![Some(seconds); 2],
            predecessors,
            kind,
        };
        let dag = Dag::from_nodes(
            2,
            [
                node(ON_CPU, 20.0, vec![], 0),
                node(ON_NPU, 1.0, vec![], 1),
                node(ON_CPU, 1.0, vec![1], 2),
                node(ON_NPU, 30.0, vec![2], 3),
            ],
        );
        let dag = dag.with_plan(&[1, 2, 0, 3], 0.0);
        let mut schedule = Schedule::new(&dag, Policy::Planned);
        assert_eq!(
            (schedule.next(ON_CPU), schedule.next(ON_NPU)),
            (None, Some(1)),
            "as planned, the CPU waits"
        );
        (0..20).for_each(|_| schedule.observe(3, 10.0));
        assert_eq!(
            schedule.next(ON_CPU),
            None,
            "the plan is still the shorter one"
        );
        (0..20).for_each(|_| schedule.observe(1, 50.0));
        assert_eq!(schedule.next(ON_CPU), Some(0), "while the NPU is slow");
    }

    #[test]
    fn a_policy_goes_by_the_processor_with_the_most_work() {
        // The same tasks with the processors exchanged.
        let dag = dag();
        let exchanged = (0..dag.len()).map(|task| {
            (
                1 - dag.home(task).index(),
                dag.seconds(task),
                dag.predecessors(task).to_vec(),
            )
        });
        let exchanged = Dag::new(exchanged);
        for policy in Policy::ALL {
            let expected = Schedule::new(&dag, policy).next(ON_CPU);
            assert_eq!(
                Schedule::new(&exchanged, policy).next(ON_NPU),
                expected,
                "{policy:?}"
            );
        }
    }

    #[test]
    fn on_the_bottleneck_the_paper_prefers_what_frees_the_least_for_others() {
        let dag = Dag::new([
            (NPU, 1.0, vec![]),
            (NPU, 1.0, vec![]),
            (NPU, 1.0, vec![]),
            (CPU, 9.0, vec![0]),
            (CPU, 3.0, vec![1]),
            (CPU, 3.0, vec![2]),
            (NPU, 50.0, vec![1]),
        ]);
        // Tasks 1 and 2 make equally much work of the CPU ready. The work of the NPU that they make ready doesn't
        // count.
        assert_eq!(Schedule::new(&dag, Policy::Paper).next(ON_NPU), Some(1));
        assert_eq!(Schedule::new(&dag, Policy::Fifo).next(ON_NPU), Some(0));
    }

    #[test]
    fn a_processor_runs_one_task_at_a_time() {
        let dag = dag();
        for policy in Policy::ALL {
            let mut schedule = Schedule::new(&dag, policy);
            let task = schedule.next(ON_CPU).unwrap();
            assert_eq!(schedule.next(ON_CPU), None, "{policy:?}");
            schedule.complete(task);
            assert!(schedule.next(ON_CPU).is_some(), "{policy:?}");
        }
    }

    #[test]
    fn in_order_a_processor_waits_for_its_next_task_whatever_else_is_ready() {
        let dag = Dag::new([
            (CPU, 1.0, vec![]),
            (NPU, 1.0, vec![0]),
            (CPU, 1.0, vec![1]),
            (CPU, 1.0, vec![]),
        ]);
        for (policy, second) in [(Policy::InOrder, None), (Policy::Fifo, Some(3))] {
            let mut schedule = Schedule::new(&dag, policy);
            let task = schedule.next(ON_CPU).unwrap();
            // In the order of tasks fifo starts with 0, too.
            assert_eq!(task, 0);
            schedule.complete(task);
            assert_eq!(schedule.next(ON_CPU), second, "{policy:?}");
        }
    }

    #[test]
    fn a_processor_that_slows_down_is_noticed_within_a_chunk() {
        let dag = Dag::new((0..40).map(|_| (NPU, 2.0, vec![])));
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        (0..30).for_each(|task| schedule.observe(task, 6.0));
        assert!(
            (schedule.expected(35) - 6.0).abs() < 0.01,
            "{}",
            schedule.expected(35)
        );
        schedule.observe(0, f64::NAN);
        assert!(schedule.expected(35).is_finite());
    }

    #[test]
    fn the_longest_path_is_the_longest_by_what_has_been_seen() {
        // There are two paths through the CPU. The first is longer because of its end on the NPU, until the CPU turns
        // out to be slow.
        let dag = Dag::new([
            (CPU, 0.0, vec![]),
            (CPU, 1.0, vec![]),
            (CPU, 2.0, vec![]),
            (NPU, 5.0, vec![1]),
            (CPU, 3.0, vec![2]),
        ]);
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        assert_eq!(schedule.next(ON_CPU), Some(1));
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        (0..9).for_each(|_| schedule.observe(1, 10.0));
        assert_eq!(schedule.next(ON_CPU), Some(2));
    }

    #[test]
    fn a_lost_processor_leaves_its_tasks_to_another_one() {
        let dag = dag();
        for policy in Policy::ALL {
            let mut schedule = Schedule::new(&dag, policy);
            schedule.next(ON_CPU).unwrap();
            let lost = schedule.lose(ON_CPU);
            let expected: Vec<_> = [0, 1, 2, 3, 4, 8, 9].map(|task| (task, ON_NPU)).into();
            assert_eq!(
                lost,
                Lost {
                    moved: expected,
                    orphans: vec![]
                },
                "{policy:?}"
            );
            assert_eq!(
                (schedule.next(ON_CPU), schedule.lose(ON_CPU)),
                (None, Lost::default()),
                "{policy:?}"
            );
            let mut done = Vec::new();
            while let Some(task) = schedule.next(ON_NPU) {
                schedule.complete(task);
                done.push(task);
            }
            assert!(schedule.is_complete(), "{policy:?}");
            assert_eq!(
                done.len(),
                dag.len(),
                "{policy:?}: what was running runs again"
            );
        }
    }

    /// Returns tasks for three processors. All can run the first task, two the second, one the third.
    fn capable() -> Dag {
        let node = |seconds: [Option<f64>; 3]| Node {
            home: ON_CPU,
            seconds: seconds.into(),
            predecessors: vec![],
            kind: 0,
        };
        Dag::from_nodes(
            3,
            [
                node([Some(1.0), Some(3.0), Some(2.0)]),
                node([Some(1.0), Some(3.0), None]),
                node([Some(1.0), None, None]),
            ],
        )
    }

    #[test]
    fn each_task_of_a_lost_processor_goes_to_the_cheapest_that_can_run_it() {
        for policy in Policy::ALL {
            let dag = capable();
            let mut schedule = Schedule::new(&dag, policy);
            let third = ProcessorId::new(2);
            let lost = schedule.lose(ON_CPU);
            assert_eq!(
                lost,
                Lost {
                    moved: vec![(0, third), (1, ON_NPU)],
                    orphans: vec![2]
                },
                "{policy:?}"
            );
            assert_eq!(schedule.bottleneck(), ON_NPU, "the work has moved");
            assert_eq!(
                [ON_NPU, third].map(|id| schedule.next(id)),
                [Some(1), Some(0)],
                "{policy:?}"
            );
            schedule.complete(0);
            schedule.complete(1);
            assert!(
                !schedule.is_complete(),
                "{policy:?}: no processor runs the third"
            );
        }
    }

    #[test]
    fn what_has_been_seen_decides_who_is_the_cheapest() {
        let mut schedule = Schedule::new(capable(), Policy::Fifo);
        let third = ProcessorId::new(2);
        schedule.homes[0] = third;
        (0..30).for_each(|_| schedule.observe(0, 8.0));
        schedule.homes[0] = ON_CPU;
        assert_eq!(schedule.lose(ON_CPU).moved, [(0, ON_NPU), (1, ON_NPU)]);
    }

    #[test]
    fn equal_heirs_share_the_work() {
        let node = |_| Node {
            home: ON_CPU,
            seconds: vec![Some(1.0); 3],
            predecessors: vec![],
            kind: 0,
        };
        let mut schedule = Schedule::new(Dag::from_nodes(3, (0..4).map(node)), Policy::Fifo);
        let heirs: Vec<_> = schedule
            .lose(ON_CPU)
            .moved
            .iter()
            .map(|(_, heir)| heir.index())
            .collect();
        assert_eq!(heirs, [1, 2, 1, 2]);
    }
}

//! Which task a processor runs next: a pure state machine, driven by whoever has a clock.
//!
//! [`Dag`] is what has to be done, each task on one processor and with the time that it is expected to take; [`Schedule`]
//! is how far it is. A processor without work asks [`Schedule::next`], and says [`Schedule::complete`] when it is done.
//! Whoever has a clock says how long tasks took ([`Schedule::observe`]), and expectations follow; a processor that fails
//! leaves its tasks to another one ([`Schedule::lose`]). Nothing depends on time but by these calls.

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, Task};
use crate::placement::{Placement, Processor};

/// Tasks and what they wait for.
#[derive(Clone, Debug)]
pub struct Dag {
    /// Which processor each task is for.
    homes: Vec<usize>,
    /// Seconds that each is expected to take.
    seconds: Vec<f64>,
    /// Tasks of one kind are as much faster or slower than expected as each other.
    kinds: Vec<usize>,
    needs: Vec<Vec<usize>>,
    /// The other way round.
    unlocks: Vec<Vec<usize>>,
    /// Seconds of the longest path that begins with each task.
    ranks: Vec<f64>,
    processors: usize,
}

/// What decides between tasks that a processor could run. The order of a task is its place in the [`Dag`]: chunk after
/// chunk, and within a chunk subgraph after subgraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every processor runs its tasks in their order, whatever else is ready: chunk after chunk, as in the paper's figure
    /// 13 (a).
    InOrder,
    /// The task that has been ready for longest.
    Fifo,
    /// On other processors than the NPU, a task whose end lets the NPU begin one; of several, and on the NPU, the one that
    /// has been ready for longest. (Where each task has one processor, an NPU task that is ready waits for no other.)
    NpuFirst,
    /// Equation 5 of the paper: the largest C. On other processors than the NPU that is the time of the NPU's tasks that
    /// become ready by a task's end; on the NPU, less the time of the others'. The equation has all tasks that become
    /// ready; which of them are meant is in the text around it.
    Paper,
    /// The longest remaining path (upward rank).
    CriticalPath,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::InOrder, Self::Fifo, Self::NpuFirst, Self::Paper, Self::CriticalPath];

    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in-order",
            Self::Fifo => "fifo",
            Self::NpuFirst => "npu-first",
            Self::Paper => "paper",
            Self::CriticalPath => "critical-path",
        }
    }
}

/// The processor that policies call the NPU.
pub const NPU: usize = Processor::Npu as usize;

impl Dag {
    /// Tasks with the numbers that lists of `tasks` give them: for each its processor, its expected seconds, and the
    /// numbers of those it waits for.
    ///
    /// # Panics
    /// If a task waits for one that does not stand before it, or its time is negative or not finite.
    pub fn new(tasks: impl IntoIterator<Item = (usize, f64, Vec<usize>)>) -> Self {
        let (mut homes, mut seconds, mut needs) = (Vec::new(), Vec::new(), Vec::new());
        for (home, time, mut before) in tasks {
            let number = homes.len();
            assert!(before.iter().all(|need| *need < number), "task {number} waits for one behind it");
            assert!(time >= 0.0 && time.is_finite(), "task {number} takes {time} seconds");
            before.sort_unstable();
            before.dedup();
            homes.push(home);
            seconds.push(time);
            needs.push(before);
        }
        let mut unlocks = vec![Vec::new(); homes.len()];
        for (task, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|need: &usize| unlocks[*need].push(task));
        }
        let processors = homes.iter().max().map_or(0, |last| last + 1);
        let kinds = vec![0; homes.len()];
        let mut dag = Self { homes, seconds, kinds, needs, unlocks, ranks: Vec::new(), processors };
        dag.ranks = dag.upward_ranks(|task| dag.seconds[task]);
        dag
    }

    /// The tasks of a prefill in the order of [`Graph::tasks`], where they are placed, with the seconds that `cost` says.
    /// Those of one role are of one kind.
    pub fn of_prefill(graph: &Graph, placement: &Placement, cost: impl Fn(Task, Processor) -> f64) -> Self {
        Self::of_prefill_in_flight(graph, placement, graph.chunks().len(), cost)
    }

    /// As [`Dag::of_prefill`], with buffers for `in_flight` chunks: a chunk begins when the one whose buffers it takes is
    /// through.
    ///
    /// # Panics
    /// If `in_flight` is zero.
    pub fn of_prefill_in_flight(
        graph: &Graph,
        placement: &Placement,
        in_flight: usize,
        cost: impl Fn(Task, Processor) -> f64,
    ) -> Self {
        assert!(in_flight > 0, "a chunk needs buffers");
        let subgraphs = graph.subgraphs().len();
        let number = |task: Task| task.chunk * subgraphs + task.subgraph;
        let mut dag = Self::new(graph.tasks().map(|task| {
            let processor = placement.places()[task.subgraph].processor;
            let begins = task.subgraph == 0;
            let freed = task.chunk.checked_sub(in_flight).filter(|_| begins);
            let freed = freed.map(|chunk| number(Task { chunk, subgraph: subgraphs - 1 }));
            let needs = graph.dependencies(task).map(number).chain(freed).collect();
            (processor as usize, cost(task, processor), needs)
        }));
        dag.kinds = graph.tasks().map(|task| graph.subgraphs()[task.subgraph].role as usize).collect();
        dag
    }

    /// For each task the longest path that begins with it, where each takes as long as `seconds` says.
    fn upward_ranks(&self, seconds: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut ranks = vec![0.0; self.homes.len()];
        for task in (0..ranks.len()).rev() {
            let longest = self.unlocks[task].iter().map(|later: &usize| ranks[*later]).fold(0.0, f64::max);
            ranks[task] = seconds(task) + longest;
        }
        ranks
    }

    /// How many tasks there are.
    #[allow(clippy::len_without_is_empty, reason = "a prefill has tasks")]
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// One more than the largest number of a processor.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// The processor of a task.
    pub fn home(&self, task: usize) -> usize {
        self.homes[task]
    }

    /// The seconds that a task is expected to take.
    pub fn seconds(&self, task: usize) -> f64 {
        self.seconds[task]
    }

    /// What a task waits for, ascending.
    pub fn needs(&self, task: usize) -> &[usize] {
        &self.needs[task]
    }

    /// Seconds that no schedule stays below, if tasks take what is expected: the longest path, or the work of one
    /// processor.
    pub fn lower_bound(&self) -> f64 {
        let mut work = vec![0.0; self.processors];
        self.homes.iter().zip(&self.seconds).for_each(|(home, seconds)| work[*home] += seconds);
        self.ranks.iter().chain(&work).copied().fold(0.0, f64::max)
    }
}

/// How much the latest task counts for what is expected of the next ones of its kind: after the thirty tasks that a
/// chunk has of each in a small model, nothing is left of what was thought before.
const LATEST: f64 = 0.25;
/// Ranks are computed anew when one processor's tasks of one kind take so many times what the ranks say, or less than its
/// inverse.
const NEW_RANKS: f64 = 1.25;

/// How far the tasks of a [`Dag`] are. It borrows or owns them.
#[derive(Clone, Debug)]
pub struct Schedule<D> {
    dag: D,
    policy: Policy,
    /// Which processor each task is for, now that some may be lost.
    homes: Vec<usize>,
    is_lost: Vec<bool>,
    /// How many of its needs each task still waits for.
    missing: Vec<usize>,
    states: Vec<State>,
    /// For each processor the tasks that it could run, those that have been ready for longest first. They are few: of a
    /// chunk, one at most.
    ready: Vec<Vec<usize>>,
    /// For each processor and kind, how many times as long tasks take as the [`Dag`] says.
    slowness: Vec<Vec<f64>>,
    /// Of [`Policy::CriticalPath`]: upward ranks, and the slowness that they were computed with.
    ranks: (Vec<f64>, Vec<Vec<f64>>),
    /// Of [`Policy::InOrder`]: for each processor its tasks in order, and how many of them have started.
    in_order: Vec<(Vec<usize>, usize)>,
    /// What each processor runs.
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

impl<D: Borrow<Dag>> Schedule<D> {
    /// Nothing has started.
    pub fn new(dag: D, policy: Policy) -> Self {
        let tasks = dag.borrow();
        let (count, processors) = (tasks.len(), tasks.processors);
        let kinds = tasks.kinds.iter().max().map_or(0, |last| last + 1);
        let slowness = vec![vec![1.0; kinds]; processors];
        let mut schedule = Self {
            policy,
            homes: tasks.homes.clone(),
            is_lost: vec![false; processors],
            missing: tasks.needs.iter().map(Vec::len).collect(),
            states: vec![State::Waiting; count],
            ready: vec![Vec::new(); processors],
            ranks: (tasks.ranks.clone(), slowness.clone()),
            slowness,
            in_order: vec![(Vec::new(), 0); processors],
            running: vec![None; processors],
            complete: 0,
            dag,
        };
        for task in 0..count {
            schedule.in_order[schedule.homes[task]].0.push(task);
            schedule.notice(task);
        }
        schedule
    }

    /// The task that `processor` runs from now on; `None` if it runs one already (equation 4 of the paper), is lost, or has
    /// to wait, for another processor or for ever.
    pub fn next(&mut self, processor: usize) -> Option<usize> {
        let ready = self.ready.get(processor)?;
        if self.running[processor].is_some() || ready.is_empty() {
            return None;
        }
        let place = match self.policy {
            Policy::InOrder => {
                let (tasks, started) = &self.in_order[processor];
                let first = tasks.get(*started)?;
                ready.iter().position(|task| task == first)?
            }
            Policy::Fifo => 0,
            Policy::NpuFirst => {
                let frees_npu = |task: &usize| self.freed_by(*task).any(|later| self.homes[later] == NPU);
                let first = if processor == NPU { None } else { ready.iter().position(frees_npu) };
                first.unwrap_or(0)
            }
            Policy::Paper => self.largest(ready, |task| self.contribution(task, processor)),
            Policy::CriticalPath => self.largest(ready, |task| self.ranks.0[task]),
        };
        let task = self.ready[processor].remove(place);
        self.states[task] = State::Running;
        self.running[processor] = Some(task);
        self.in_order[processor].1 += 1;
        Some(task)
    }

    /// What `processor` runs.
    pub fn running(&self, processor: usize) -> Option<usize> {
        self.running.get(processor).copied().flatten()
    }

    /// The processor that a task is for, now that some may be lost.
    pub fn home(&self, task: usize) -> usize {
        self.homes[task]
    }

    /// What has to be done.
    pub fn dag(&self) -> &Dag {
        self.dag.borrow()
    }

    /// Tasks that nothing else keeps from starting but `task`, which has not ended.
    fn freed_by(&self, task: usize) -> impl Iterator<Item = usize> {
        self.dag().unlocks[task].iter().copied().filter(|later| self.missing[*later] == 1)
    }

    /// C of equation 5.
    fn contribution(&self, task: usize, processor: usize) -> f64 {
        let freed = self.freed_by(task).filter(|later| (self.homes[*later] == NPU) == (processor != NPU));
        let seconds: f64 = freed.map(|later| self.expected(later)).sum();
        if processor == NPU { -seconds } else { seconds }
    }

    /// The place of the task with the largest value; of several, the first of them in order.
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

    /// `task`, which [`Schedule::next`] gave, is done.
    ///
    /// # Panics
    /// If it does not run.
    pub fn complete(&mut self, task: usize) {
        assert_eq!(self.states[task], State::Running, "task {task}");
        self.states[task] = State::Complete;
        self.running[self.homes[task]] = None;
        self.complete += 1;
        for index in 0..self.dag().unlocks[task].len() {
            let later = self.dag().unlocks[task][index];
            self.missing[later] -= 1;
            self.notice(later);
        }
    }

    /// Whether every task is done.
    pub fn is_complete(&self) -> bool {
        self.complete == self.dag().len()
    }

    /// Seconds that a task is expected to take, after what has been seen of its kind on its processor.
    pub fn expected(&self, task: usize) -> f64 {
        self.dag().seconds[task] * self.slowness[self.homes[task]][self.dag().kinds[task]]
    }

    /// `task` took so many seconds on its processor: expectations of its kind follow, by an exponential average.
    pub fn observe(&mut self, task: usize, seconds: f64) {
        let dag = self.dag.borrow();
        let (processor, kind, expected) = (self.homes[task], dag.kinds[task], dag.seconds[task]);
        if !(expected > 0.0 && seconds >= 0.0 && seconds.is_finite()) {
            return;
        }
        let slowness = &mut self.slowness[processor][kind];
        *slowness += LATEST * (seconds / expected - *slowness);
        let drift = *slowness / self.ranks.1[processor][kind];
        if self.policy == Policy::CriticalPath && !(NEW_RANKS.recip()..=NEW_RANKS).contains(&drift) {
            self.ranks = (self.dag().upward_ranks(|task| self.expected(task)), self.slowness.clone());
        }
    }

    /// `processor` fails: what it runs and has not run yet goes to another one, which this answers. `None` if no other one
    /// is left; then nothing changes. Of several, the one with the lowest number takes all.
    pub fn lose(&mut self, processor: usize) -> Option<usize> {
        if *self.is_lost.get(processor)? {
            return None;
        }
        let heir = (0..self.is_lost.len()).find(|other| *other != processor && !self.is_lost[*other])?;
        self.is_lost[processor] = true;
        if let Some(task) = self.running[processor].take() {
            self.states[task] = State::Ready;
            self.ready[processor].insert(0, task);
        }
        let ready = std::mem::take(&mut self.ready[processor]);
        self.ready[heir].extend(ready);
        for task in 0..self.homes.len() {
            if self.homes[task] == processor && self.states[task] != State::Complete {
                self.homes[task] = heir;
            }
        }
        self.in_order[processor] = (Vec::new(), 0);
        let is_left = |task: &usize| matches!(self.states[*task], State::Waiting | State::Ready);
        let left = (0..self.homes.len()).filter(|task| self.homes[*task] == heir).filter(is_left).collect();
        self.in_order[heir] = (left, 0);
        Some(heir)
    }

    /// A task may have become ready.
    fn notice(&mut self, task: usize) {
        if self.missing[task] == 0 {
            self.states[task] = State::Ready;
            self.ready[self.homes[task]].push(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: usize = Processor::Cpu as usize;

    /// Of the CPU's first tasks, 0 frees none; 1 a short one of the NPU; 2 a long one of the NPU, 3 a short one of the NPU
    /// behind which there is a long one, and 4 a long one of the CPU.
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
        ])
    }

    #[test]
    fn each_policy_picks_what_it_says() {
        let dag = dag();
        let first = |policy| Schedule::new(&dag, policy).next(CPU);
        let expected = [Some(0), Some(0), Some(1), Some(2), Some(3)];
        assert_eq!(Policy::ALL.map(first), expected, "{:?}", Policy::ALL);
    }

    #[test]
    fn on_the_npu_the_paper_prefers_what_frees_the_least_for_others() {
        let dag = Dag::new([
            (NPU, 1.0, vec![]),
            (NPU, 1.0, vec![]),
            (NPU, 1.0, vec![]),
            (CPU, 9.0, vec![0]),
            (CPU, 3.0, vec![1]),
            (CPU, 3.0, vec![2]),
            (NPU, 50.0, vec![1]),
        ]);
        // 1 and 2 free as much for the CPU, and what they free for the NPU does not count.
        assert_eq!(Schedule::new(&dag, Policy::Paper).next(NPU), Some(1));
        assert_eq!(Schedule::new(&dag, Policy::Fifo).next(NPU), Some(0));
    }

    #[test]
    fn a_processor_runs_one_task_at_a_time() {
        let dag = dag();
        for policy in Policy::ALL {
            let mut schedule = Schedule::new(&dag, policy);
            let task = schedule.next(CPU).unwrap();
            assert_eq!(schedule.next(CPU), None, "{policy:?}");
            schedule.complete(task);
            assert!(schedule.next(CPU).is_some(), "{policy:?}");
        }
    }

    #[test]
    fn in_order_a_processor_waits_for_its_next_task_whatever_else_is_ready() {
        let dag = Dag::new([(CPU, 1.0, vec![]), (NPU, 1.0, vec![0]), (CPU, 1.0, vec![1]), (CPU, 1.0, vec![])]);
        for (policy, second) in [(Policy::InOrder, None), (Policy::Fifo, Some(3))] {
            let mut schedule = Schedule::new(&dag, policy);
            let task = schedule.next(CPU).unwrap();
            // In the order of tasks fifo begins with 0, too.
            assert_eq!(task, 0);
            schedule.complete(task);
            assert_eq!(schedule.next(CPU), second, "{policy:?}");
        }
    }

    #[test]
    fn the_bound_is_the_longest_path_or_the_most_work() {
        assert_eq!(dag().lower_bound(), 55.0, "all that the CPU has to do");
        let chain = Dag::new([(0, 1.0, vec![]), (1, 2.0, vec![0]), (0, 3.0, vec![1]), (1, 0.5, vec![0])]);
        assert_eq!(chain.lower_bound(), 6.0);
    }

    #[test]
    fn a_processor_that_slows_down_is_noticed_within_a_chunk() {
        let dag = Dag::new((0..40).map(|_| (NPU, 2.0, vec![])));
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        (0..30).for_each(|task| schedule.observe(task, 6.0));
        assert!((schedule.expected(35) - 6.0).abs() < 0.01, "{}", schedule.expected(35));
        schedule.observe(0, f64::NAN);
        assert!(schedule.expected(35).is_finite());
    }

    #[test]
    fn the_longest_path_is_the_longest_by_what_has_been_seen() {
        // Two paths through the CPU: the first is longer by its end on the NPU, until the CPU turns out to be slow.
        let dag = Dag::new([
            (CPU, 0.0, vec![]),
            (CPU, 1.0, vec![]),
            (CPU, 2.0, vec![]),
            (NPU, 5.0, vec![1]),
            (CPU, 3.0, vec![2]),
        ]);
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        assert_eq!(schedule.next(CPU), Some(1));
        let mut schedule = Schedule::new(&dag, Policy::CriticalPath);
        (0..9).for_each(|_| schedule.observe(1, 10.0));
        assert_eq!(schedule.next(CPU), Some(2));
    }

    #[test]
    fn a_lost_processor_leaves_its_tasks_to_another_one() {
        let dag = dag();
        for policy in Policy::ALL {
            let mut schedule = Schedule::new(&dag, policy);
            schedule.next(CPU).unwrap();
            assert_eq!(schedule.lose(CPU), Some(NPU), "{policy:?}");
            assert_eq!((schedule.next(CPU), schedule.lose(CPU), schedule.lose(NPU)), (None, None, None), "{policy:?}");
            let mut done = Vec::new();
            while let Some(task) = schedule.next(NPU) {
                schedule.complete(task);
                done.push(task);
            }
            assert!(schedule.is_complete(), "{policy:?}");
            assert_eq!(done.len(), dag.len(), "{policy:?}: what was running runs again");
        }
    }

    #[test]
    fn a_chunk_waits_for_its_buffers() {
        let mut description = triad_model::family::shape("smollm2-135m").unwrap();
        description.blocks.truncate(1);
        let graph = Graph::new(&description, 30, 10);
        let placement = Placement::new(&graph, usize::MAX);
        let dag = Dag::of_prefill_in_flight(&graph, &placement, 2, |_, _| 1.0);
        assert_eq!((dag.needs(6), dag.needs(12)), (&[][..], &[5][..]));
        assert_eq!(Dag::of_prefill(&graph, &placement, |_, _| 1.0).needs(12), &[] as &[usize]);
    }

    #[test]
    #[should_panic(expected = "waits for one behind it")]
    fn a_circle_is_refused() {
        Dag::new([(0, 1.0, vec![1]), (0, 1.0, vec![0])]);
    }
}

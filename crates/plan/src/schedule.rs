//! Which task a processor runs next: a pure state machine, driven by whoever has a clock.
//!
//! [`Dag`] is what has to be done, each task on one processor and with the time that it is expected to take; [`Schedule`]
//! is how far it is. A processor without work asks [`Schedule::next`], and says [`Schedule::complete`] when it is done.
//! Nothing depends on when that happens but the order of these calls.

use serde::Serialize;

use crate::graph::{Graph, Task};
use crate::placement::{Placement, Processor};

/// Tasks and what they wait for.
#[derive(Clone, Debug)]
pub struct Dag {
    /// Which processor each task is for.
    homes: Vec<usize>,
    /// Seconds that each is expected to take.
    seconds: Vec<f64>,
    needs: Vec<Vec<usize>>,
    /// The other way round.
    unlocks: Vec<Vec<usize>>,
    /// Seconds of the longest path that begins with each task.
    ranks: Vec<f64>,
    processors: usize,
}

/// What decides between tasks that a processor could run. The order of a task is its place in the [`Dag`]: chunk after
/// chunk, and within a chunk subgraph after subgraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One task after the other in their order, whatever else is ready: the paper's figure 13 (a).
    InOrder,
    /// The task that has been ready for longest.
    Fifo,
    /// On other processors than the NPU, a task whose end lets the NPU begin one; of several, and on the NPU, the one that
    /// has been ready for longest.
    NpuFirst,
    /// Equation 5 of the paper: the largest C, the time of the tasks that become ready by a task's end, which counts
    /// against it if it is the NPU's.
    Paper,
    /// The longest remaining path (upward rank).
    CriticalPath,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::InOrder, Self::Fifo, Self::NpuFirst, Self::Paper, Self::CriticalPath];
}

/// The processor that policies call the NPU.
pub const NPU: usize = Processor::Npu as usize;

impl Dag {
    /// Tasks with the numbers that lists of `tasks` give them: for each its processor, its expected seconds, and the
    /// numbers of those it waits for.
    ///
    /// # Panics
    /// If a task waits for one that does not stand before it, or its time is negative or not a number.
    pub fn new(tasks: impl IntoIterator<Item = (usize, f64, Vec<usize>)>) -> Self {
        let (mut homes, mut seconds, mut needs) = (Vec::new(), Vec::new(), Vec::new());
        for (home, time, mut before) in tasks {
            let number = homes.len();
            assert!(before.iter().all(|need| *need < number), "task {number} waits for one behind it");
            assert!(time >= 0.0, "task {number} takes {time} seconds");
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
        let mut ranks: Vec<f64> = seconds.clone();
        for task in (0..homes.len()).rev() {
            ranks[task] += unlocks[task].iter().map(|later: &usize| ranks[*later]).fold(0.0, f64::max);
        }
        let processors = homes.iter().max().map_or(0, |last| last + 1);
        Self { homes, seconds, needs, unlocks, ranks, processors }
    }

    /// The tasks of a prefill in the order of [`Graph::tasks`], where they are placed, with the seconds that `cost` says.
    pub fn of_prefill(graph: &Graph, placement: &Placement, cost: impl Fn(Task, Processor) -> f64) -> Self {
        let number = |task: Task| task.chunk * graph.subgraphs().len() + task.subgraph;
        Self::new(graph.tasks().map(|task| {
            let processor = placement.places()[task.subgraph].processor;
            (processor as usize, cost(task, processor), graph.dependencies(task).map(number).collect())
        }))
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

/// How far the tasks of a [`Dag`] are.
#[derive(Clone, Debug)]
pub struct Schedule<'a> {
    dag: &'a Dag,
    policy: Policy,
    /// How many of its needs each task still waits for.
    missing: Vec<usize>,
    states: Vec<State>,
    /// For each processor the tasks that it could run, those that have been ready for longest first.
    ready: Vec<Vec<usize>>,
    /// For each task the expected seconds of those that wait for nothing else, and of these the NPU's alone.
    gains: Vec<Gain>,
    /// Of [`Policy::InOrder`]: the first task that did not start.
    first: usize,
    running: usize,
    complete: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Running,
    Complete,
}

#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    seconds: f64,
    npu_tasks: usize,
}

impl<'a> Schedule<'a> {
    /// Nothing has started.
    pub fn new(dag: &'a Dag, policy: Policy) -> Self {
        let count = dag.len();
        let mut schedule = Self {
            dag,
            policy,
            missing: dag.needs.iter().map(Vec::len).collect(),
            states: vec![State::Waiting; count],
            ready: vec![Vec::new(); dag.processors],
            gains: vec![Gain::default(); count],
            first: 0,
            running: 0,
            complete: 0,
        };
        (0..count).for_each(|task| schedule.notice(task));
        schedule
    }

    /// The task that `processor` runs from now on; `None` if it has to wait, for another one or for ever.
    pub fn next(&mut self, processor: usize) -> Option<usize> {
        let ready = self.ready.get(processor)?;
        let place = match self.policy {
            Policy::InOrder => {
                let place = ready.iter().position(|task| *task == self.first)?;
                (self.running == 0).then_some(place)?
            }
            Policy::Fifo => (!ready.is_empty()).then_some(0)?,
            Policy::NpuFirst => {
                let frees_npu = |task: &usize| processor != NPU && self.gains[*task].npu_tasks > 0;
                (!ready.is_empty()).then(|| ready.iter().position(frees_npu).unwrap_or(0))?
            }
            Policy::Paper => {
                let sign = if processor == NPU { -1.0 } else { 1.0 };
                self.largest(ready, |task| sign * self.gains[task].seconds)?
            }
            Policy::CriticalPath => self.largest(ready, |task| self.dag.ranks[task])?,
        };
        let task = self.ready[processor].remove(place);
        self.states[task] = State::Running;
        self.running += 1;
        if self.policy == Policy::InOrder {
            self.first += 1;
        }
        Some(task)
    }

    /// The place of the task with the largest value; of several, the first of them in order.
    fn largest(&self, ready: &[usize], value: impl Fn(usize) -> f64) -> Option<usize> {
        let better = |one: &(usize, &usize), other: &(usize, &usize)| {
            value(*one.1).total_cmp(&value(*other.1)).then(other.1.cmp(one.1))
        };
        ready.iter().enumerate().max_by(better).map(|(place, _)| place)
    }

    /// `task`, which [`Schedule::next`] gave, is done.
    ///
    /// # Panics
    /// If it does not run.
    pub fn complete(&mut self, task: usize) {
        assert_eq!(self.states[task], State::Running, "task {task}");
        self.states[task] = State::Complete;
        self.running -= 1;
        self.complete += 1;
        let dag = self.dag;
        for later in &dag.unlocks[task] {
            self.missing[*later] -= 1;
            self.notice(*later);
        }
    }

    /// Whether every task is done.
    pub fn is_complete(&self) -> bool {
        self.complete == self.dag.len()
    }

    /// A task may have become ready, or wait for one other alone.
    fn notice(&mut self, task: usize) {
        let (home, seconds) = (self.dag.homes[task], self.dag.seconds[task]);
        match self.missing[task] {
            0 => {
                self.states[task] = State::Ready;
                self.ready[home].push(task);
            }
            1 => {
                let is_missing = |need: &&usize| self.states[**need] != State::Complete;
                let last = *self.dag.needs[task].iter().find(is_missing).expect("one is missing");
                self.gains[last].seconds += seconds;
                self.gains[last].npu_tasks += usize::from(home == NPU);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU 0; NPU 1. Task 0 frees a long one of the NPU, 1 a short one, 2 none.
    fn dag() -> Dag {
        Dag::new([
            (0, 1.0, vec![]),
            (0, 1.0, vec![]),
            (0, 9.0, vec![]),
            (NPU, 2.0, vec![1]),
            (NPU, 5.0, vec![0]),
            (0, 30.0, vec![3]),
        ])
    }

    fn first(policy: Policy) -> Option<usize> {
        Schedule::new(&dag(), policy).next(0)
    }

    #[test]
    fn each_policy_picks_what_it_says() {
        assert_eq!([Policy::InOrder, Policy::Fifo, Policy::NpuFirst].map(first), [Some(0); 3]);
        assert_eq!(first(Policy::Paper), Some(0), "it lets the NPU run for 5 s");
        assert_eq!(first(Policy::CriticalPath), Some(1), "33 s depend on it");
        let dag = dag();
        let mut schedule = Schedule::new(&dag, Policy::NpuFirst);
        assert_eq!([schedule.next(0), schedule.next(0), schedule.next(0)], [Some(0), Some(1), Some(2)]);
        // On the NPU, the paper's C is lower the more CPU work a task frees.
        let mut schedule = Schedule::new(&dag, Policy::Paper);
        for _ in 0..2 {
            let task = schedule.next(0).unwrap();
            schedule.complete(task);
        }
        assert_eq!(schedule.next(NPU), Some(4));
    }

    #[test]
    fn in_order_nothing_runs_beside_anything() {
        let dag = dag();
        let mut schedule = Schedule::new(&dag, Policy::InOrder);
        assert_eq!((schedule.next(0), schedule.next(0), schedule.next(NPU)), (Some(0), None, None));
        schedule.complete(0);
        assert_eq!((schedule.next(NPU), schedule.next(0)), (None, Some(1)));
    }

    #[test]
    fn the_bound_is_the_longest_path_or_the_most_work() {
        assert_eq!(dag().lower_bound(), 41.0, "all that the CPU has to do");
        let chain = Dag::new([(0, 1.0, vec![]), (1, 2.0, vec![0]), (0, 3.0, vec![1]), (1, 0.5, vec![0])]);
        assert_eq!(chain.lower_bound(), 6.0);
    }

    #[test]
    #[should_panic(expected = "waits for one behind it")]
    fn a_circle_is_refused() {
        Dag::new([(0, 1.0, vec![1]), (0, 1.0, vec![0])]);
    }
}

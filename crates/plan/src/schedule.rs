//! Which task a processor runs next: a pure state machine, driven by whoever has a clock.
//!
//! [`Dag`] is what has to be done, each task on one processor and with the time that it is expected to take; [`Schedule`]
//! is how far it is. A processor without work asks [`Schedule::next`], and says [`Schedule::complete`] when it is done.
//! Nothing depends on when that happens but the order of these calls. (Planned: expectations that follow what is seen.)

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
    /// For each task, what waits for it alone.
    gains: Vec<Gain>,
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

#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    npu_tasks: usize,
    /// That those are expected to take.
    npu_seconds: f64,
    /// Of tasks of other processors.
    other_seconds: f64,
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
            in_order: vec![(Vec::new(), 0); dag.processors],
            running: vec![None; dag.processors],
            complete: 0,
        };
        for task in 0..count {
            schedule.in_order[dag.homes[task]].0.push(task);
            schedule.notice(task);
        }
        schedule
    }

    /// The task that `processor` runs from now on; `None` if it runs one already (equation 4 of the paper), or has to
    /// wait, for another processor or for ever.
    pub fn next(&mut self, processor: usize) -> Option<usize> {
        let ready = self.ready.get(processor)?;
        if self.running[processor].is_some() {
            return None;
        }
        let place = match self.policy {
            Policy::InOrder => {
                let (tasks, started) = &self.in_order[processor];
                let first = tasks.get(*started)?;
                ready.iter().position(|task| task == first)?
            }
            Policy::Fifo => (!ready.is_empty()).then_some(0)?,
            Policy::NpuFirst => {
                let frees_npu = |task: &usize| processor != NPU && self.gains[*task].npu_tasks > 0;
                (!ready.is_empty()).then(|| ready.iter().position(frees_npu).unwrap_or(0))?
            }
            Policy::Paper => {
                let c = |gain: Gain| if processor == NPU { -gain.other_seconds } else { gain.npu_seconds };
                self.largest(ready, |task| c(self.gains[task]))?
            }
            Policy::CriticalPath => self.largest(ready, |task| self.dag.ranks[task])?,
        };
        let task = self.ready[processor].remove(place);
        self.states[task] = State::Running;
        self.running[processor] = Some(task);
        self.in_order[processor].1 += 1;
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
        self.running[self.dag.homes[task]] = None;
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
                let gain = &mut self.gains[last];
                if home == NPU {
                    gain.npu_tasks += 1;
                    gain.npu_seconds += seconds;
                } else {
                    gain.other_seconds += seconds;
                }
            }
            _ => {}
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
    #[should_panic(expected = "waits for one behind it")]
    fn a_circle_is_refused() {
        Dag::new([(0, 1.0, vec![1]), (0, 1.0, vec![0])]);
    }
}

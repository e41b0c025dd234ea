//! Tasks with their dependencies and their expected time on each processor.

use crate::processors::ProcessorId;

/// A task of a [`Dag`].
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The processor on which it is placed.
    pub home: ProcessorId,
    /// Expected seconds on each processor; `None` where it can't run. It can't run on processors past the end.
    pub seconds: Vec<Option<f64>>,
    /// Numbers of the tasks that must be complete before it can start.
    pub predecessors: Vec<usize>,
    /// Kind of the task. Tasks of one kind deviate from their expected time by the same factor.
    pub kind: usize,
}

/// Position of a task in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Number of tasks before it.
    pub(super) place: usize,
    /// Whether its processor idles before it.
    pub(super) idles: bool,
}

/// Tasks and their dependencies.
#[derive(Clone, Debug)]
pub struct Dag {
    homes: Vec<ProcessorId>,
    /// Expected seconds, `[tasks, processors]`.
    seconds: Vec<Option<f64>>,
    kinds: Vec<usize>,
    predecessors: Vec<Vec<usize>>,
    successors: Vec<Vec<usize>>,
    /// Seconds of the longest path that starts with each task, on their homes.
    ranks: Vec<f64>,
    processors: usize,
    bottleneck: ProcessorId,
    /// Position of each task in the plan of [`Policy::Planned`](super::Policy::Planned), if there is one.
    plan: Option<Vec<Planned>>,
}

impl Dag {
    /// Creates tasks that take the same time on every processor, given as `(home, seconds, predecessors)`. A task's
    /// number is its position in `tasks`, a processor's number its index. The largest home determines the number of
    /// processors.
    ///
    /// # Panics
    /// If a predecessor does not come before its task, or a time is negative or not finite.
    pub fn new(tasks: impl IntoIterator<Item = (usize, f64, Vec<usize>)>) -> Self {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let processors = tasks.iter().map(|(home, ..)| home + 1).max().unwrap_or(0);
        Self::from_nodes(
            processors,
            tasks.into_iter().map(|(home, seconds, predecessors)| Node {
                home: ProcessorId::new(home),
                seconds: vec![Some(seconds); processors],
                predecessors,
                kind: 0,
            }),
        )
    }

    /// Creates tasks for `processors` processors. A task's number is its position in `nodes`.
    ///
    /// # Panics
    /// If a predecessor does not come before its task, a task has times of more processors, a home is no processor or
    /// can't run its task, or a time is negative or not finite.
    pub fn from_nodes(processors: usize, nodes: impl IntoIterator<Item = Node>) -> Self {
        let mut dag = Self {
            homes: Vec::new(),
            seconds: Vec::new(),
            kinds: Vec::new(),
            predecessors: Vec::new(),
            successors: Vec::new(),
            ranks: Vec::new(),
            processors,
            bottleneck: ProcessorId::new(0),
            plan: None,
        };
        for Node {
            home,
            mut seconds,
            mut predecessors,
            kind,
        } in nodes
        {
            let number = dag.homes.len();
            assert!(
                predecessors.iter().all(|other| *other < number),
                "task {number} waits for itself or a later task"
            );
            let is_time =
                |seconds: &Option<f64>| seconds.is_none_or(|time| time >= 0.0 && time.is_finite());
            assert!(
                seconds.iter().all(is_time),
                "task {number} takes {seconds:?} seconds"
            );
            assert!(
                seconds.len() <= processors,
                "task {number} has times of {} processors",
                seconds.len()
            );
            seconds.resize(processors, None);
            assert!(
                seconds.get(home.index()).is_some_and(Option::is_some),
                "task {number} can't run on its home"
            );
            predecessors.sort_unstable();
            predecessors.dedup();
            dag.homes.push(home);
            dag.seconds.extend(seconds);
            dag.kinds.push(kind);
            dag.predecessors.push(predecessors);
        }
        dag.successors = vec![Vec::new(); dag.len()];
        for (task, predecessors) in dag.predecessors.iter().enumerate() {
            predecessors
                .iter()
                .for_each(|other| dag.successors[*other].push(task));
        }
        dag.ranks = dag.upward_ranks(|task| dag.seconds(task));
        dag.bottleneck = most_work(&dag.work());
        dag
    }

    /// Returns the same tasks, for which policies use `bottleneck` as the processor with the most work, whatever its
    /// work is.
    ///
    /// # Panics
    /// If the processor does not exist.
    #[must_use]
    pub fn with_bottleneck(self, bottleneck: ProcessorId) -> Self {
        assert!(
            bottleneck.index() < self.processors,
            "{bottleneck:?} of {} processors",
            self.processors
        );
        Self { bottleneck, ..self }
    }

    /// Returns the same tasks, which [`Policy::Planned`](super::Policy::Planned) runs in this order on each processor.
    /// The plan was made for processors that need `wake` additional seconds after they were idle.
    ///
    /// # Panics
    /// If `order` does not contain each task once, after its predecessors.
    #[must_use]
    pub fn with_plan(self, order: &[usize], wake: f64) -> Self {
        let mut plan: Vec<Option<Planned>> = vec![None; self.len()];
        for (place, (task, (idles, _))) in
            order.iter().zip(self.run_in_order(order, wake)).enumerate()
        {
            assert!(plan[*task].is_none(), "task {task} is planned twice");
            let is_after = self.predecessors[*task]
                .iter()
                .all(|before| plan[*before].is_some());
            assert!(
                is_after,
                "task {task} is planned before one that it waits for"
            );
            plan[*task] = Some(Planned { place, idles });
        }
        assert_eq!(
            order.len(),
            self.len(),
            "a plan of {} tasks for {}",
            order.len(),
            self.len()
        );
        Self {
            plan: plan.into_iter().collect(),
            ..self
        }
    }

    /// Returns for each task of an order whether its processor idles before it, and when it ends. Each task takes its
    /// expected time, and `wake` additional seconds on a processor that was idle.
    pub(crate) fn run_in_order(&self, order: &[usize], wake: f64) -> Vec<(bool, f64)> {
        let mut ends = vec![0.0f64; self.len()];
        let mut free = vec![None; self.processors];
        let run = |task: &usize| {
            let free: &mut Option<f64> = &mut free[self.homes[*task].index()];
            let ready = self.predecessors[*task]
                .iter()
                .map(|before| ends[*before])
                .fold(0.0, f64::max);
            let start = free.map_or(ready, |free| ready.max(free));
            let is_idle = free.is_none_or(|free| free < ready);
            // A predecessor that ends on another processor exactly when this processor is free may end slightly later
            // in reality.
            let elsewhere = self.predecessors[*task]
                .iter()
                .filter(|before| self.homes[**before] != self.homes[*task]);
            let idles = elsewhere
                .map(|before| ends[*before])
                .any(|end| free.is_none_or(|free| end >= free));
            ends[*task] = start + if is_idle { wake } else { 0.0 } + self.seconds(*task);
            *free = Some(ends[*task]);
            (idles, ends[*task])
        };
        order.iter().map(run).collect()
    }

    /// Returns the position of each task in the plan, if there is one.
    pub(super) fn plan(&self) -> Option<&[Planned]> {
        self.plan.as_deref()
    }

    /// Returns whether `other` has as many tasks, each with the same home, kind and predecessors. A plan of one dag is
    /// then a plan of the other.
    pub fn has_same_tasks(&self, other: &Self) -> bool {
        let of = |dag: &Self| (dag.processors, dag.len());
        of(self) == of(other)
            && self.homes == other.homes
            && self.kinds == other.kinds
            && self.predecessors == other.predecessors
    }

    /// Returns for each task the longest path that starts with it, where each task takes `seconds(task)`.
    pub(super) fn upward_ranks(&self, seconds: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut ranks = vec![0.0; self.len()];
        for task in (0..ranks.len()).rev() {
            let longest = self.successors[task]
                .iter()
                .map(|later: &usize| ranks[*later])
                .fold(0.0, f64::max);
            ranks[task] = seconds(task) + longest;
        }
        ranks
    }

    /// Returns [`Dag::upward_ranks`] for the expected seconds.
    pub(super) fn ranks(&self) -> &[f64] {
        &self.ranks
    }

    /// Returns the number of tasks.
    #[allow(clippy::len_without_is_empty, reason = "a prefill has tasks")]
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// Returns the number of processors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns the ids of the processors in order.
    pub fn processor_ids(&self) -> impl Iterator<Item = ProcessorId> + use<> {
        (0..self.processors).map(ProcessorId::new)
    }

    /// Returns the processor on which a task is placed.
    pub fn home(&self, task: usize) -> ProcessorId {
        self.homes[task]
    }

    /// Returns whether all tasks have the same home, so that every order takes the same time.
    pub fn has_one_home(&self) -> bool {
        (1..self.len()).all(|task| self.home(task) == self.home(0))
    }

    /// Returns the expected seconds of a task on its home.
    pub fn seconds(&self, task: usize) -> f64 {
        self.seconds_on(task, self.homes[task])
            .expect("a home can run its task")
    }

    /// Returns the expected seconds of a task on a processor; `None` if it can't run there.
    pub fn seconds_on(&self, task: usize, processor: ProcessorId) -> Option<f64> {
        self.seconds[task * self.processors + processor.index()]
    }

    /// Returns the kind of a task.
    pub fn kind(&self, task: usize) -> usize {
        self.kinds[task]
    }

    /// Returns the largest kind plus one.
    pub fn kinds(&self) -> usize {
        self.kinds.iter().max().map_or(0, |last| last + 1)
    }

    /// Returns the tasks for which a task waits, ascending.
    pub fn predecessors(&self, task: usize) -> &[usize] {
        &self.predecessors[task]
    }

    /// Returns the tasks that wait for a task, ascending.
    pub fn successors(&self, task: usize) -> &[usize] {
        &self.successors[task]
    }

    /// Returns for each processor the expected seconds of the tasks placed on it.
    pub fn work(&self) -> Vec<f64> {
        let mut work = vec![0.0; self.processors];
        (0..self.len()).for_each(|task| work[self.homes[task].index()] += self.seconds(task));
        work
    }

    /// Returns the processor with the most work; of equal ones, the first. The shortest schedule keeps it busy.
    pub fn bottleneck(&self) -> ProcessorId {
        self.bottleneck
    }

    /// Returns a lower bound in seconds for all schedules whose tasks take their expected time: the longest path or the
    /// work of one processor.
    pub fn lower_bound(&self) -> f64 {
        self.ranks
            .iter()
            .chain(&self.work())
            .copied()
            .fold(0.0, f64::max)
    }
}

/// Returns the index of the largest value; of equal ones, the first.
pub(super) fn most_work(work: &[f64]) -> ProcessorId {
    let mut most = 0;
    for index in 1..work.len() {
        if work[index] > work[most] {
            most = index;
        }
    }
    ProcessorId::new(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::placement::Placement;
    use crate::processors::Processors;
    use crate::tasks::{PrefillTasks, TaskOptions};

    #[test]
    fn the_bound_is_the_longest_path_or_the_most_work() {
        let much = Dag::new([(0, 30.0, vec![]), (0, 25.0, vec![]), (1, 20.0, vec![0])]);
        assert_eq!(
            much.lower_bound(),
            55.0,
            "all that the first processor has to do"
        );
        let chain = Dag::new([
            (0, 1.0, vec![]),
            (1, 2.0, vec![0]),
            (0, 3.0, vec![1]),
            (1, 0.5, vec![0]),
        ]);
        assert_eq!(chain.lower_bound(), 6.0);
    }

    #[test]
    fn the_bottleneck_is_the_processor_with_the_most_work() {
        let dag = Dag::new([
            (0, 1.0, vec![]),
            (2, 2.5, vec![]),
            (1, 2.0, vec![0]),
            (1, 1.0, vec![0]),
        ]);
        assert_eq!(dag.bottleneck(), ProcessorId::new(1));
        assert_eq!(
            dag.with_bottleneck(ProcessorId::new(2)).bottleneck(),
            ProcessorId::new(2)
        );
        assert_eq!(
            Dag::new([(1, 2.0, vec![]), (0, 2.0, vec![])]).bottleneck(),
            ProcessorId::new(0)
        );
    }

    #[test]
    fn a_chunk_waits_for_its_buffers() {
        let mut description = triad_model::family::shape("smollm2-135m").unwrap();
        description.blocks.truncate(1);
        let graph = Graph::new(&description, 30, 10);
        let processors = Processors::cpu_and_npu(None);
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let options = TaskOptions::whole(placement.clone(), 2);
        let dag = PrefillTasks::new(&graph, &processors, &options, |_, _| 1.0)
            .unwrap()
            .dag;
        assert_eq!(
            (dag.predecessors(6), dag.predecessors(12)),
            (&[][..], &[5][..])
        );
        let all = Dag::of_prefill(&graph, &processors, &placement, |_, _| 1.0);
        assert_eq!(all.predecessors(12), &[] as &[usize]);
    }

    #[test]
    fn a_task_of_a_prefill_can_run_where_its_format_is_computed() {
        let graph = Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 30, 30);
        let processors = Processors::cpu_and_npu(None);
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let dag = Dag::of_prefill(&graph, &processors, &placement, |_, id| {
            1.0 + id.index() as f64
        });
        let on = |task| [0, 1].map(|index| dag.seconds_on(task, ProcessorId::new(index)));
        assert_eq!((on(0), on(1)), ([Some(1.0), None], [Some(1.0), Some(2.0)]));
        assert_eq!((dag.seconds(0), dag.seconds(1)), (1.0, 2.0));
    }

    #[test]
    #[should_panic(expected = "waits for itself or a later task")]
    fn a_circle_is_refused() {
        Dag::new([(0, 1.0, vec![1]), (0, 1.0, vec![0])]);
    }

    #[test]
    #[should_panic(expected = "can't run on its home")]
    fn a_home_that_cannot_run_its_task_is_refused() {
        let node = |home| Node {
            home: ProcessorId::new(home),
            seconds: vec![Some(1.0)],
            predecessors: vec![],
            kind: 0,
        };
        Dag::from_nodes(2, [node(0), node(1)]);
    }
}

//! Schedules of other systems, on the same tasks and costs: the order in which they would run the same work.
//!
//! They are not [policies](triad_plan::schedule::Policy): the engine does not run them. Each is a fixed order of all
//! tasks, some with barriers. [`Order::dag`] converts it to a dag that the simulator runs in order.

use serde::Serialize;

use triad_plan::schedule::Dag;
use triad_plan::tasks::PrefillTasks;

/// A system whose schedule is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// MLLM on an NPU: two chunks in lockstep. The second chunk runs one subgraph later than the first, and both
    /// advance when both are done. The next two chunks start when these are complete.
    Lockstep,
    /// The neuron cluster pipeline of PowerInfer-2 ([arXiv 2406.06282](https://arxiv.org/abs/2406.06282)): one layer
    /// after the other, each for the whole prompt, in clusters that go from one processor to the next without waiting
    /// for a whole matmul. Its clusters are columns of a matmul, and a prompt has all of them at once (its §4.1.1),
    /// while the CPU prepares weights. Here clusters are chunks, since these are the unit of tasks, and weights need no
    /// preparation.
    NeuronClusters,
}

impl System {
    /// All systems.
    pub const ALL: [Self; 2] = [Self::Lockstep, Self::NeuronClusters];

    /// Returns the name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lockstep => "two chunks in lockstep (MLLM)",
            Self::NeuronClusters => "neuron clusters (PowerInfer-2)",
        }
    }

    /// Returns the order in which the system runs the tasks of a prefill.
    pub fn order(self, tasks: &PrefillTasks) -> Order {
        let subgraphs = tasks
            .tasks
            .iter()
            .map(|task| task.task.subgraph + 1)
            .max()
            .unwrap_or(0);
        let stage = |task: usize| {
            let task = tasks.tasks[task].task;
            match self {
                // A pair of chunks has one more stage than there are subgraphs, since its second chunk is one stage
                // later.
                Self::Lockstep => task.chunk / 2 * (subgraphs + 1) + task.subgraph + task.chunk % 2,
                Self::NeuronClusters => task.subgraph,
            }
        };
        let mut order: Vec<_> = (0..tasks.tasks.len()).collect();
        order.sort_by_key(|task| (stage(*task), *task));
        Order {
            barriers: (self == Self::Lockstep)
                .then(|| order.iter().map(|task| stage(*task)).collect()),
            tasks: order,
        }
    }
}

/// All tasks of a prefill, in the order in which each processor runs its tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    tasks: Vec<usize>,
    /// Stage of each position in the order, ascending. No task starts before all tasks of earlier stages are done.
    barriers: Option<Vec<usize>>,
}

impl Order {
    /// Renumbers the tasks of `dag` by their positions in this order, with durations of `takes(task)` seconds. Run in
    /// order ([`Policy::InOrder`](triad_plan::schedule::Policy::InOrder)), they run like in the system.
    ///
    /// # Panics
    /// If the tasks of `dag` are not those of the order's prefill, or a time is negative or not finite.
    pub fn dag(&self, dag: &Dag, takes: impl Fn(usize) -> f64) -> Dag {
        let mut places = vec![0; dag.len()];
        self.tasks
            .iter()
            .enumerate()
            .for_each(|(place, task)| places[*task] = place);
        let node = |(place, task): (usize, &usize)| {
            let mut predecessors: Vec<_> = dag
                .predecessors(*task)
                .iter()
                .map(|before| places[*before])
                .collect();
            predecessors.extend(self.stage_before(place));
            predecessors.sort_unstable();
            predecessors.dedup();
            (dag.home(*task).index(), takes(*task), predecessors)
        };
        Dag::new(self.tasks.iter().enumerate().map(node)).with_bottleneck(dag.bottleneck())
    }

    /// Returns the positions of the stage before that of `place`.
    fn stage_before(&self, place: usize) -> std::ops::Range<usize> {
        let Some(stages) = &self.barriers else {
            return 0..0;
        };
        let end = stages.partition_point(|stage| *stage < stages[place]);
        let start = if end == 0 {
            0
        } else {
            stages.partition_point(|stage| *stage < stages[end - 1])
        };
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::family::shape;
    use triad_plan::device::DeviceProfile;
    use triad_plan::prefill::{Options, Prefill};
    use triad_plan::schedule::Policy;
    use triad_plan::simulate::simulate;

    fn tasks(prompt: usize, prune: f64) -> PrefillTasks {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let options = Options {
            window: Some(usize::MAX),
            prune,
            ..Options::paper(Policy::InOrder)
        };
        Prefill::new(&device, &shape("smollm2-135m").unwrap(), prompt, &options).tasks
    }

    /// Returns when each task of a prefill starts and ends.
    fn times(tasks: &PrefillTasks, system: System) -> Vec<(f64, f64)> {
        let order = system.order(tasks);
        let dag = order.dag(&tasks.dag, |task| tasks.dag.seconds(task));
        let timeline = simulate(&dag, Policy::InOrder, |place| dag.seconds(place));
        let mut times = vec![(0.0, 0.0); tasks.dag.len()];
        timeline
            .events()
            .iter()
            .for_each(|event| times[order.tasks[event.task]] = (event.start, event.end));
        times
    }

    #[test]
    fn every_task_runs_after_what_it_waits_for_by_every_system() {
        for (prompt, prune) in [(1, 0.0), (256, 0.0), (700, 0.85), (1280, 0.0)] {
            let tasks = tasks(prompt, prune);
            for system in System::ALL {
                let times = times(&tasks, system);
                for task in 0..tasks.dag.len() {
                    assert!(
                        times[task].1 > times[task].0,
                        "{system:?}: task {task} did not run"
                    );
                    for before in tasks.dag.predecessors(task) {
                        assert!(
                            times[*before].1 <= times[task].0,
                            "{system:?}: {task} began before {before} ended"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn in_lockstep_no_chunk_overtakes_its_neighbour_and_no_pair_begins_before_the_last_one_is_through()
     {
        let tasks = tasks(1024, 0.0);
        let times = times(&tasks, System::Lockstep);
        for (one, first) in tasks.tasks.iter().enumerate() {
            for (two, second) in tasks.tasks.iter().enumerate() {
                let (first, second) = (first.task, second.task);
                let in_step = first.chunk % 2 == 0 && second.chunk == first.chunk + 1;
                // The second chunk is one subgraph later than the first.
                let follows = in_step && second.subgraph >= first.subgraph;
                assert!(
                    !follows || times[one].1 <= times[two].0,
                    "{second:?} began before {first:?} ended"
                );
                // The first chunk's next subgraph waits for the second chunk's previous one.
                let waits = in_step && first.subgraph > second.subgraph + 1;
                if waits || second.chunk / 2 < first.chunk / 2 {
                    assert!(
                        times[two].1 <= times[one].0,
                        "{first:?} began before {second:?} ended"
                    );
                }
            }
        }
    }

    #[test]
    fn in_clusters_a_processor_ends_a_block_of_all_chunks_before_the_next_one() {
        let tasks = tasks(1024, 0.0);
        let times = times(&tasks, System::NeuronClusters);
        for (one, first) in tasks.tasks.iter().enumerate() {
            for (two, second) in tasks.tasks.iter().enumerate() {
                if tasks.dag.home(one) == tasks.dag.home(two)
                    && first.task.subgraph < second.task.subgraph
                {
                    assert!(
                        times[one].1 <= times[two].0,
                        "{first:?} did not end before {second:?} began"
                    );
                }
            }
        }
    }

    #[test]
    fn one_chunk_takes_what_it_takes_in_order_by_every_system() {
        let tasks = tasks(256, 1.0);
        let in_order =
            simulate(&tasks.dag, Policy::InOrder, |task| tasks.dag.seconds(task)).seconds();
        for system in System::ALL {
            let end = times(&tasks, system)
                .into_iter()
                .map(|(_, end)| end)
                .fold(0.0, f64::max);
            assert!(
                (end - in_order).abs() < 1e-9,
                "{system:?}: {end}, not {in_order}"
            );
        }
    }
}

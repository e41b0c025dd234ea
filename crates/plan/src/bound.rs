//! A lower bound of the time of all schedules. It is cheap to compute and usually a little below the shortest schedule.
//!
//! It is the largest bound of a single processor. All other processors are relaxed, and tasks on this one may be
//! interrupted. This problem is solved exactly by Jackson's rule (Carlier 1982).

use crate::processors::ProcessorId;
use crate::schedule::{Dag, Node};
use crate::timeline::Timeline;

/// Returns a lower bound in seconds for all schedules: the maximum of the longest path and, for each processor, of the
/// shortest preemptive schedule. In the latter, no task starts before its longest path from the start (head), and each
/// is followed by its longest path to the end (tail).
pub fn lower_bound(dag: &Dag) -> f64 {
    let paths = Paths::new(dag);
    let all = |processor| (0..dag.len()).filter(move |task| dag.home(*task) == processor);
    let of_processor = |processor| {
        jackson(
            all(processor)
                .map(|task| (paths.heads[task], dag.seconds(task), paths.tails[task]))
                .collect(),
        )
    };
    dag.processor_ids()
        .map(of_processor)
        .fold(dag.lower_bound(), f64::max)
}

/// Returns the [`lower_bound`] for tasks that take, on the processors where they ran, the time that they took there. A
/// run is never shorter than its own bound, whatever times were expected.
///
/// # Panics
/// If the timeline does not contain each task of `dag` once.
pub fn lower_bound_of_run(dag: &Dag, timeline: &Timeline) -> f64 {
    let mut ran = vec![None; dag.len()];
    for event in timeline.events() {
        let before = ran[event.task].replace((event.processor, event.end - event.start));
        assert!(before.is_none(), "task {} ran twice", event.task);
    }
    let node = |(task, ran): (usize, Option<_>)| {
        let (home, taken): (ProcessorId, f64) =
            ran.unwrap_or_else(|| panic!("task {task} did not run"));
        let mut seconds = vec![None; dag.processors()];
        seconds[home.index()] = Some(taken);
        Node {
            home,
            seconds,
            predecessors: dag.predecessors(task).to_vec(),
            kind: dag.kind(task),
        }
    };
    lower_bound(&Dag::from_nodes(
        dag.processors(),
        ran.into_iter().enumerate().map(node),
    ))
}

/// Longest paths from the start to each task, and from its end to the end of all tasks.
pub struct Paths {
    /// Seconds before each task can start.
    pub heads: Vec<f64>,
    /// Seconds that must follow the end of each task.
    pub tails: Vec<f64>,
}

impl Paths {
    /// Computes the paths of all tasks.
    pub fn new(dag: &Dag) -> Self {
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

/// Returns the length of the shortest preemptive schedule of tasks, given as (head, seconds, tail), on one processor.
/// It always runs the ready task with the longest tail.
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
        let place = (0..ready.len())
            .max_by(|a, b| ready[*a].0.total_cmp(&ready[*b].0))
            .expect("one is ready");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Policy;
    use crate::simulate::simulate;

    #[test]
    fn the_bound_includes_that_nothing_can_begin_at_once() {
        // The three tasks of the second processor wait for the first processor's.
        let dag = Dag::new([
            (0, 1.0, vec![]),
            (1, 2.0, vec![0]),
            (1, 2.0, vec![0]),
            (1, 2.0, vec![0]),
        ]);
        assert_eq!((dag.lower_bound(), lower_bound(&dag)), (6.0, 7.0));
    }

    #[test]
    fn the_bound_of_a_run_is_of_what_its_tasks_took() {
        let dag = Dag::new([
            (0, 1.0, vec![]),
            (1, 2.0, vec![0]),
            (1, 2.0, vec![0]),
            (1, 2.0, vec![0]),
        ]);
        let bound = |factor: f64| {
            let timeline = simulate(&dag, Policy::Fifo, |task| factor * dag.seconds(task));
            let bound = lower_bound_of_run(&dag, &timeline);
            assert!(bound <= timeline.seconds() + 1e-9);
            bound
        };
        assert_eq!([1.0, 0.5, 2.0].map(bound), [7.0, 3.5, 14.0]);
    }
}

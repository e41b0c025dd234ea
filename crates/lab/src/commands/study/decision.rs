//! Measures on this machine how long a schedule takes to decide.

use std::time::Instant;

use serde::Serialize;
use triad_model::family;
use triad_plan::graph::Graph;
use triad_plan::placement::Placement;
use triad_plan::planner::{Effort, plan};
use triad_plan::processors::Processors;
use triad_plan::schedule::{Dag, Policy, Schedule};

use triad_console::output;

/// A long prompt on a large model: 64 chunks of 192 subgraphs.
const SHAPE: &str = "llama-2-7b";
const CHUNKS: usize = 64;
const CHUNK: usize = 256;

/// Decision times of one policy in microseconds. A decision records that a task is complete and selects the next one.
#[derive(Serialize)]
pub struct Decisions {
    policy: Policy,
    tasks: usize,
    median_microseconds: f64,
    /// 99th percentile.
    percentile_99_microseconds: f64,
    largest_microseconds: f64,
}

/// Measures every policy.
pub fn measure() -> triad_model::Result<Vec<Decisions>> {
    let graph = Graph::new(&family::shape(SHAPE)?, CHUNKS * CHUNK, CHUNK);
    let processors = Processors::cpu_and_npu(None);
    let placement =
        Placement::new(&graph, &processors, |_, _| 1.0).expect("a CPU computes everything");
    // Any times suffice, since the number of decisions does not depend on them.
    let dag = Dag::of_prefill(&graph, &processors, &placement, |task, _| {
        1e-3 + graph.operations(task) as f64 * 1e-12
    });
    // A plan with minimal effort suffices, since the number of decisions does not depend on it.
    let plan = plan(&dag, 0.0, Effort { width: 1 }, &mut || true);
    let dag = dag.with_plan(&plan.order, 0.0);
    Ok(Policy::ALL
        .into_iter()
        .map(|policy| of_policy(&dag, policy))
        .collect())
}

fn of_policy(dag: &Dag, policy: Policy) -> Decisions {
    let mut schedule = Schedule::new(dag, policy);
    // The task of each processor, and when it ends.
    let mut running: Vec<Option<(usize, f64)>> = vec![None; dag.processors()];
    let (mut seconds, mut now) = (Vec::with_capacity(dag.len()), 0.0);
    let mut ended = None;
    while !schedule.is_complete() {
        for (processor, running) in dag
            .processor_ids()
            .zip(&mut running)
            .filter(|(_, running)| running.is_none())
        {
            let start = Instant::now();
            if let Some(task) = ended.take() {
                schedule.complete(task);
            }
            let next = schedule.next(processor);
            seconds.push(start.elapsed().as_secs_f64());
            *running = next.map(|task| (task, now + dag.seconds(task)));
        }
        let first = running.iter_mut().filter(|running| running.is_some());
        let first = first.min_by(|one, other| {
            one.map(|(_, end)| end)
                .partial_cmp(&other.map(|(_, end)| end))
                .expect("a time")
        });
        let Some((task, end)) = first.and_then(Option::take) else {
            break;
        };
        (ended, now) = (Some(task), end);
    }
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| 1e6 * seconds[((seconds.len() - 1) as f64 * share) as usize];
    Decisions {
        policy,
        tasks: dag.len(),
        median_microseconds: at(0.5),
        percentile_99_microseconds: at(0.99),
        largest_microseconds: at(1.0),
    }
}

/// Returns a table.
pub fn text(decisions: &[Decisions]) -> String {
    let row = |of: &Decisions| {
        let times = [
            of.median_microseconds,
            of.percentile_99_microseconds,
            of.largest_microseconds,
        ];
        [of.policy.name().to_owned()]
            .into_iter()
            .chain(times.map(|time| format!("{time:.2}")))
            .collect()
    };
    let rows: Vec<_> = decisions.iter().map(row).collect();
    let tasks = decisions.first().map_or(0, |of| of.tasks);
    format!(
        "measured here: a decision, of {} tasks ({CHUNKS} chunks of {SHAPE})\n\n{}",
        output::count(tasks),
        output::table(&["policy", "median µs", "99 %", "largest"], 1, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_decides_about_every_task() {
        let decisions = measure().unwrap();
        assert_eq!(decisions.len(), Policy::ALL.len());
        for of in decisions {
            assert_eq!(of.tasks, CHUNKS * 192);
            let times = [
                of.median_microseconds,
                of.percentile_99_microseconds,
                of.largest_microseconds,
            ];
            assert!(times.is_sorted() && times[0] > 0.0, "{times:?}");
        }
    }
}

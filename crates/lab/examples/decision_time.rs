//! Measures how long a schedule takes to decide in a prefill of 64 chunks and 200 subgraphs: `cargo run --release -p
//! triad-lab --example decision_time`. A decision is what a processor does between two tasks: it records that a task
//! is complete and how long it took, and selects the next one.

use std::time::Instant;

use triad_plan::graph::Graph;
use triad_plan::placement::Placement;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::{Dag, Policy, Schedule};

const CHUNKS: usize = 64;
/// Six subgraphs per layer: the fewest layers with at least 200 subgraphs.
const BLOCKS: usize = 34;
const REPEATS: usize = 5;

fn main() {
    let mut description = triad_model::family::shape("llama-2-7b").expect("a known shape");
    let block = description.blocks[0].clone();
    description.blocks.resize(BLOCKS, block);
    let graph = Graph::new(&description, CHUNKS * 256, 256);
    let processors = Processors::cpu_and_npu(None);
    let placement =
        Placement::new(&graph, &processors, |_, _| 1.0).expect("a CPU computes everything");
    let dag = Dag::of_prefill(&graph, &processors, &placement, |task, _| {
        1e-4 + graph.operations(task) as f64 / 1e13
    });
    println!(
        "{CHUNKS} chunks of {} subgraphs; microseconds of a decision",
        graph.subgraphs().len()
    );
    println!(
        "{:<14} {:>8} {:>8} {:>8}",
        "policy", "median", "99 %", "largest"
    );
    for policy in Policy::ALL {
        let mut times = Vec::new();
        for repeat in 0..REPEATS {
            decide(&dag, policy, repeat as u64 + 1, &mut times);
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| 1e6 * times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{:<14} {:>8.2} {:>8.2} {:>8.2}",
            policy.name(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

/// Runs all tasks, each with a random duration, and records the time of each decision.
fn decide(dag: &Dag, policy: Policy, seed: u64, times: &mut Vec<f64>) {
    let mut schedule = Schedule::new(dag, policy);
    let mut running: Vec<(Option<usize>, f64)> = dag
        .processor_ids()
        .map(|processor| (schedule.next(processor), 0.0))
        .collect();
    let mut random = seed;
    while !schedule.is_complete() {
        let busy = running
            .iter()
            .enumerate()
            .filter(|(_, (task, _))| task.is_some());
        let (processor, _) = busy
            .min_by(|a, b| a.1.1.total_cmp(&b.1.1))
            .expect("some processor works");
        let (task, end) = running[processor];
        let task = task.expect("it is busy");
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let seconds = dag.seconds(task) * (0.8 + 0.4 * (random >> 40) as f64 / f64::from(1 << 24));
        let start = Instant::now();
        schedule.complete(task);
        schedule.observe(task, seconds);
        let next = schedule.next(ProcessorId::new(processor));
        times.push(start.elapsed().as_secs_f64());
        running[processor] = (next, end + next.map_or(0.0, |next| dag.seconds(next)));
        // Processors that had no task may have one now.
        for (other, (task, idle_until)) in running.iter_mut().enumerate() {
            if task.is_none() {
                *task = schedule.next(ProcessorId::new(other));
                *idle_until = idle_until.max(end) + task.map_or(0.0, |task| dag.seconds(task));
            }
        }
    }
}

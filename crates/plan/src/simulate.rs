//! Schedules in virtual time: one prompt, or requests that arrive at any time. As in real time, a schedule gets to know what
//! a task took when it ends, and not before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use crate::passes::{PassId, Passes, Urgency};
use crate::processors::ProcessorId;
use crate::schedule::{Dag, Policy};
use crate::timeline::{Event, Timeline};

/// When a processor is done, and the processor, pass and task, and the task's seconds. Of two at one time the lower processor
/// comes first.
#[derive(Debug)]
struct Done(f64, ProcessorId, PassId, usize, f64);

impl PartialEq for Done {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Done {}

impl PartialOrd for Done {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Done {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// A task that begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    /// Number of the task.
    pub task: usize,
    /// Where.
    pub processor: ProcessorId,
    /// When.
    pub now: f64,
    /// Whether the processor had nothing to do just before.
    pub idle: bool,
}

/// What a task takes of its processor's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Takes {
    /// Seconds in front of it, such as for waking up, which are nothing to do with the task.
    pub before: f64,
    /// Its own seconds: what the schedule gets to know when it ends.
    pub seconds: f64,
}

impl From<f64> for Takes {
    fn from(seconds: f64) -> Self {
        Self { before: 0.0, seconds }
    }
}

/// Runs the tasks of `dag` by `policy`, each for `takes(task)` seconds, which the schedule does not have beforehand.
///
/// # Panics
/// If a task takes a negative time or one that is not finite.
pub fn simulate(dag: &Dag, policy: Policy, takes: impl Fn(usize) -> f64) -> Timeline {
    simulate_each(dag, policy, |begin| takes(begin.task).into())
}

/// As [`simulate`], each task for `takes(begin)`.
///
/// # Panics
/// If a task takes a negative time or one that is not finite.
pub fn simulate_each(dag: &Dag, policy: Policy, takes: impl Fn(Begin) -> Takes) -> Timeline {
    let prompt = [Request { at: 0.0, dag, work: Work::Prompt }];
    let served = simulate_requests(dag.processors(), policy, 0.0, &prompt, |_, begin| takes(begin));
    let events = served.events.into_iter().map(|(_, event)| event).collect();
    Timeline::new(events, dag.processors())
}

/// What arrives at some time.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// When it arrives, in seconds.
    pub at: f64,
    /// The tasks of a prompt, or of each step of decoding.
    pub dag: &'a Dag,
    /// Which of them it is.
    pub work: Work,
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Work {
    /// A prompt: one pass.
    Prompt,
    /// Sequences that decode: so many passes, each of which begins to wait when the one before it is complete.
    Decode {
        /// How many.
        steps: usize,
    },
}

/// A pass of a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServedPass {
    /// Index of the request.
    pub request: usize,
    /// When it began to wait.
    pub since: f64,
    /// When its first task began.
    pub start: f64,
    /// When its last task was complete.
    pub end: f64,
}

/// What became of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Served {
    /// Their passes, in the order in which they were added.
    pub passes: Vec<ServedPass>,
    /// Index of the pass, and the event; in the order in which events began.
    pub events: Vec<(usize, Event)>,
}

/// Runs `requests` on `processors` processors, each task for `takes(dag, begin)`, with the
/// dag of its request. Steps of decoding yield to prompts for
/// `max_stall` seconds: see [`Passes`].
///
/// # Panics
/// If a request arrives before 0 or at a time that is not finite, or has no task; if a task takes a negative time or one that
/// is not finite.
pub fn simulate_requests(
    processors: usize,
    policy: Policy,
    max_stall: f64,
    requests: &[Request],
    takes: impl Fn(&Dag, Begin) -> Takes,
) -> Served {
    let is_valid = |request: &Request| request.at >= 0.0 && request.at.is_finite() && request.dag.len() > 0;
    assert!(requests.iter().all(is_valid), "requests have tasks, and arrive at a time from 0 on");
    let mut passes = Passes::new(processors, policy, max_stall);
    let mut served = Served { passes: Vec::new(), events: Vec::new() };
    // The last one is the next to arrive; of those that arrive at once, the first of the list.
    let mut arriving: Vec<usize> = (0..requests.len()).collect();
    arriving.sort_by(|one, other| requests[*other].at.total_cmp(&requests[*one].at).then(other.cmp(one)));
    let mut steps_left: Vec<usize> = requests.iter().map(|request| request.work.passes()).collect();
    // Since when each processor has nothing to do; none while it works.
    let mut idle_since = vec![Some(f64::NEG_INFINITY); processors];
    let mut running = BinaryHeap::new();
    let mut now = 0.0;
    let mut ids = Vec::new();
    // Requests whose next pass begins to wait now.
    let mut waiting = Vec::new();
    loop {
        while let Some(request) = arriving.pop_if(|request| requests[*request].at <= now) {
            waiting.push(request);
        }
        for index in waiting.drain(..) {
            if steps_left[index] == 0 {
                continue;
            }
            steps_left[index] -= 1;
            let Request { dag, work, .. } = requests[index];
            let urgency = if work == Work::Prompt { Urgency::Prefill } else { Urgency::Decode { since: now } };
            ids.push(passes.add(dag, urgency));
            served.passes.push(ServedPass { request: index, since: now, start: f64::NAN, end: f64::NAN });
        }
        for (index, idle_since) in idle_since.iter_mut().enumerate() {
            let processor = ProcessorId::new(index);
            if let Some(since) = *idle_since
                && let Some((id, task)) = passes.next(processor, now)
            {
                let pass = ids.binary_search(&id).expect("it was added");
                let dag = requests[served.passes[pass].request].dag;
                let Takes { before, seconds } = takes(dag, Begin { task, processor, now, idle: since < now });
                let is_valid = before >= 0.0 && seconds >= 0.0 && (before + seconds).is_finite();
                assert!(is_valid, "task {task} takes {seconds} seconds behind {before}");
                let end = now + before + seconds;
                *idle_since = None;
                served.events.push((pass, Event { task, processor, start: now, end }));
                let start = &mut served.passes[pass].start;
                *start = start.min(now);
                running.push(Reverse(Done(end, processor, id, task, seconds)));
            }
        }
        let end = running.peek().map_or(f64::INFINITY, |Reverse(Done(end, ..))| *end);
        let arrival = arriving.last().map_or(f64::INFINITY, |request| requests[*request].at);
        now = end.min(arrival);
        if now.is_infinite() {
            break;
        }
        // All that end now, before the next tasks are chosen.
        while let Some(Reverse(Done(end, processor, id, task, seconds))) = running.peek()
            && *end == now
        {
            idle_since[processor.index()] = Some(now);
            passes.observe(*id, *task, *seconds);
            if passes.complete(*id, *task) {
                let pass = &mut served.passes[ids.binary_search(id).expect("it was added")];
                pass.end = now;
                waiting.push(pass.request);
            }
            running.pop();
        }
    }
    assert!(passes.is_empty(), "a task is ready as long as one is left, since none waits for a later one");
    served
}

impl Work {
    fn passes(self) -> usize {
        match self {
            Self::Prompt => 1,
            Self::Decode { steps } => steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Format, Graph};
    use crate::placement::Placement;
    use crate::processors::Processors;
    use crate::schedule::{Node, Schedule};
    use proptest::prelude::*;
    use triad_model::family::shape;

    const NPU: ProcessorId = ProcessorId::new(1);

    prop_compose! {
        fn dags()(count in 1usize..60)(
            tasks in prop::collection::vec((0usize..3, 0f64..10.0, prop::collection::vec(any::<prop::sample::Index>(), 0..4)), count),
        ) -> Dag {
            Dag::new(tasks.into_iter().enumerate().map(|(task, (home, seconds, before))| {
                let before = if task == 0 { vec![] } else { before.iter().map(|other| other.index(task)).collect() };
                (home, seconds, before)
            }))
        }
    }

    proptest! {
        #[test]
        fn every_task_runs_once_after_its_predecessors_and_alone_on_its_processor(dag in dags(), noise in 0.1f64..3.0) {
            for policy in Policy::ALL {
                // Tasks take other times than expected.
                let takes = |task: usize| dag.seconds(task) * if task.is_multiple_of(3) { noise } else { 1.0 };
                let timeline = simulate(&dag, policy, takes);
                let mut of_task = vec![None; dag.len()];
                for event in timeline.events() {
                    prop_assert_eq!(event.processor, dag.home(event.task));
                    prop_assert!(of_task[event.task].replace(*event).is_none(), "task {} ran twice", event.task);
                }
                let of_task: Vec<_> = of_task.into_iter().map(|event| event.expect("every task ran")).collect();
                for event in &of_task {
                    prop_assert!(dag.predecessors(event.task).iter().all(|other| of_task[*other].end <= event.start));
                }
                for processor in dag.processor_ids() {
                    let events: Vec<_> = timeline.events().iter().filter(|event| event.processor == processor).collect();
                    prop_assert!(events.windows(2).all(|pair| pair[0].end <= pair[1].start), "{policy:?}");
                }
            }
        }

        #[test]
        fn no_policy_is_faster_than_the_bound_and_none_slower_than_one_task_after_the_other(dag in dags()) {
            let total: f64 = (0..dag.len()).map(|task| dag.seconds(task)).sum();
            for policy in Policy::ALL {
                let seconds = simulate(&dag, policy, |task| dag.seconds(task)).seconds();
                prop_assert!(dag.lower_bound() <= seconds + 1e-9 && seconds <= total + 1e-9, "{policy:?}: {seconds}");
            }
        }

        #[test]
        fn a_schedule_goes_on_from_any_order_of_completions(dag in dags(), choices in prop::collection::vec(0usize..8, 300)) {
            for policy in Policy::ALL {
                let mut schedule = Schedule::new(&dag, policy);
                let mut running: Vec<Option<usize>> = vec![None; dag.processors()];
                let mut choices = choices.iter().cycle();
                while !schedule.is_complete() {
                    for (processor, running) in dag.processor_ids().zip(&mut running) {
                        *running = running.take().or_else(|| schedule.next(processor));
                    }
                    let busy: Vec<_> = (0..running.len()).filter(|processor| running[*processor].is_some()).collect();
                    prop_assert!(!busy.is_empty(), "{policy:?} does not go on");
                    let processor = busy[choices.next().unwrap() % busy.len()];
                    schedule.complete(running[processor].take().unwrap());
                }
            }
        }
    }

    #[test]
    fn a_schedule_gets_to_know_what_tasks_took() {
        let node = |seconds, predecessors, kind| Node {
            home: ProcessorId::new(0),
            seconds: vec![Some(seconds)],
            predecessors,
            kind,
        };
        let dag = Dag::from_nodes(1, [node(1.0, vec![], 0), node(1.0, vec![0], 0), node(1.5, vec![0], 1)]);
        let order = |first: f64| {
            let takes = |task: usize| if task == 0 { first } else { dag.seconds(task) };
            let timeline = simulate(&dag, Policy::CriticalPath, takes);
            timeline.events().iter().map(|event| event.task).collect::<Vec<_>>()
        };
        assert_eq!(order(1.0), [0, 2, 1], "the longest first");
        assert_eq!(order(10.0), [0, 1, 2], "those of the first one's kind may take as long");
    }

    /// Qwen1.5-1.8B as the paper has it at 256 tokens: 315 ms on the NPU, half of that on the CPU.
    fn qwen(prompt: usize) -> Dag {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), prompt, 256);
        let processors = Processors::cpu_and_npu(Some(4 << 30));
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let operations = |format: Format| -> u128 {
            let of_format = graph.subgraphs().iter().filter(|subgraph| subgraph.role.format() == format);
            of_format.map(|subgraph| subgraph.operations(256, 0)).sum()
        };
        let npu = 0.315 / operations(Format::Int8) as f64;
        Dag::of_prefill(&graph, &processors, &placement, |task, processor| {
            if processor == NPU { graph.operations(task) as f64 * npu } else { 0.315 / 2.0 / 72.0 }
        })
    }

    #[test]
    fn out_of_order_the_npu_of_four_chunks_has_almost_no_bubbles_and_in_order_a_third() {
        let dag = qwen(1024);
        let bubbles = |policy| simulate(&dag, policy, |task| dag.seconds(task)).bubble_rate(NPU);
        assert!((0.3..0.34).contains(&bubbles(Policy::InOrder)), "{}", bubbles(Policy::InOrder));
        for policy in [Policy::Fifo, Policy::NpuFirst, Policy::Paper, Policy::CriticalPath] {
            assert!(bubbles(policy) < 0.06, "{policy:?}: {}", bubbles(policy));
        }
    }
}

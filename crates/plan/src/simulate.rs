//! Simulation of schedules in virtual time: one prompt, or requests that arrive at any time. As in real time, a
//! schedule learns a task's time only when the task ends.

use serde::Serialize;

use crate::passes::{PassId, Passes, Urgency};
use crate::processors::ProcessorId;
use crate::random::{Random, mixed};
use crate::schedule::{Dag, Policy};
use crate::timeline::{Event, Timeline};

/// A task that starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    /// Number of the task.
    pub task: usize,
    /// The processor that runs it.
    pub processor: ProcessorId,
    /// Start time in seconds.
    pub now: f64,
    /// Whether the processor was idle just before.
    pub idle: bool,
}

/// Processor time of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Takes {
    /// Seconds before the task's own work, such as for waking up. They don't count as time of the task.
    pub before: f64,
    /// Seconds of the task while no other processor works.
    pub seconds: f64,
    /// Relative slowdown while another processor works, because memory, caches and power are shared: 0.5 makes each
    /// second 1.5 seconds.
    pub concurrent: f64,
}

impl From<f64> for Takes {
    fn from(seconds: f64) -> Self {
        Self {
            before: 0.0,
            seconds,
            concurrent: 0.0,
        }
    }
}

/// A task that a processor is running.
#[derive(Debug)]
struct Running {
    pass: PassId,
    task: usize,
    /// Index of its event.
    event: usize,
    /// Time at which it ends if the number of working processors does not change.
    end: f64,
    /// Total seconds of the task itself, which the schedule receives when the task ends.
    seconds: f64,
    concurrent: f64,
    /// Whether another processor works at the same time.
    is_concurrent: bool,
}

impl Running {
    /// Updates the end time when other processors start or stop working at `now`.
    fn set_concurrent(&mut self, is_concurrent: bool, now: f64) {
        if self.is_concurrent != is_concurrent && self.concurrent != 0.0 {
            let factor = 1.0 + self.concurrent;
            let left = (self.end - now) * if is_concurrent { factor } else { 1.0 / factor };
            self.seconds += now + left - self.end;
            self.end = now + left;
        }
        self.is_concurrent = is_concurrent;
    }
}

/// Runs the tasks of `dag` by `policy`, each for `takes(task)` seconds. The schedule doesn't know these times
/// beforehand.
///
/// # Panics
/// If a task takes a negative time or one that is not finite.
pub fn simulate(dag: &Dag, policy: Policy, takes: impl Fn(usize) -> f64) -> Timeline {
    simulate_each(dag, policy, |begin| takes(begin.task).into())
}

/// Runs the tasks as [`simulate`] does, each for `takes(begin)`.
///
/// # Panics
/// If a task takes a negative time or one that is not finite.
pub fn simulate_each(dag: &Dag, policy: Policy, takes: impl Fn(Begin) -> Takes) -> Timeline {
    let prompt = [Request {
        at: 0.0,
        dag,
        work: Work::Prompt,
    }];
    let served = simulate_requests(dag.processors(), policy, 0.0, &prompt, |_, begin| {
        takes(begin)
    });
    served.timeline(dag.processors())
}

/// A model of random effects in real time. `chance` is a random number between 0 and 1.
pub trait RealTime {
    /// Returns the time of a task.
    fn takes(&self, begin: Begin, chance: f64) -> Takes;

    /// Returns the seconds until an idle processor notices that a task is ready. It then chooses among the tasks that
    /// are ready at that time.
    fn notices(&self, begin: Begin, chance: f64) -> f64;
}

/// Runs [`simulate_each`] `runs` times with the random times of `real_time`, with the `schedules` in turn. The
/// schedules must be of the same tasks; their expected times may differ.
///
/// Returns the runs with their policies, sorted by time, the shortest first. Several runs are needed because under most
/// policies small differences decide which of two chunks is first from then on.
///
/// # Panics
/// If a task takes a negative time or one that is not finite, or if there is no schedule.
pub fn simulate_varied(
    schedules: &[(Dag, Policy)],
    runs: usize,
    real_time: &impl RealTime,
) -> Vec<(Policy, Timeline)> {
    let run = |run: usize| {
        let (dag, policy) = &schedules[run % schedules.len()];
        let chance = |task: usize, of: usize| {
            Random::new(mixed(((run * dag.len() + task) * 2 + of) as u64)).uniform()
        };
        let takes = |_: &Dag, begin: Begin| real_time.takes(begin, chance(begin.task, 0));
        let notices = |begin: Begin| real_time.notices(begin, chance(begin.task, 1));
        let prompt = [Request {
            at: 0.0,
            dag,
            work: Work::Prompt,
        }];
        let served = simulate_noticed(
            dag.processors(),
            *policy,
            0.0,
            &prompt,
            takes,
            Some(&notices),
        );
        (*policy, served.timeline(dag.processors()))
    };
    let mut runs: Vec<_> = (0..runs).map(run).collect();
    runs.sort_by(|one, other| one.1.seconds().total_cmp(&other.1.seconds()));
    runs
}

/// A request that arrives at a given time.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Arrival time in seconds.
    pub at: f64,
    /// The tasks of a prompt, or of each decode step.
    pub dag: &'a Dag,
    /// Kind of work.
    pub work: Work,
}

/// The work of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Work {
    /// A prompt, which is one pass.
    Prompt,
    /// Sequences that decode in several passes. Each pass starts to wait when the previous one is complete.
    Decode {
        /// Number of passes.
        steps: usize,
    },
}

/// A pass of a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServedPass {
    /// Index of the request.
    pub request: usize,
    /// Time at which it started to wait.
    pub since: f64,
    /// Start time of its first task.
    pub start: f64,
    /// End time of its last task.
    pub end: f64,
}

/// The result of simulated requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Served {
    /// The passes in the order in which they were added.
    pub passes: Vec<ServedPass>,
    /// Index of the pass, and the event, in order of start time.
    pub events: Vec<(usize, Event)>,
}

/// Runs `requests` on `processors` processors, each task for `takes(dag, begin)` with the dag of its request. Decode
/// steps yield to prompts for up to `max_stall` seconds: see [`Passes`].
///
/// # Panics
/// If a request arrives before 0 or at a time that is not finite, or has no task, or if a task takes a negative time or
/// one that is not finite.
pub fn simulate_requests(
    processors: usize,
    policy: Policy,
    max_stall: f64,
    requests: &[Request],
    takes: impl Fn(&Dag, Begin) -> Takes,
) -> Served {
    simulate_noticed(processors, policy, max_stall, requests, takes, None)
}

/// Runs [`simulate_requests`] where an idle processor notices a ready task only after `notices(begin)` seconds.
fn simulate_noticed(
    processors: usize,
    policy: Policy,
    max_stall: f64,
    requests: &[Request],
    takes: impl Fn(&Dag, Begin) -> Takes,
    notices: Option<&dyn Fn(Begin) -> f64>,
) -> Served {
    let is_valid =
        |request: &Request| request.at >= 0.0 && request.at.is_finite() && request.dag.len() > 0;
    assert!(
        requests.iter().all(is_valid),
        "requests have tasks, and arrive at a time from 0 on"
    );
    let mut passes = Passes::new(processors, policy, max_stall);
    let mut served = Served {
        passes: Vec::new(),
        events: Vec::new(),
    };
    // The last element arrives next. Of requests that arrive at the same time, the first in the list is served first.
    let mut arriving: Vec<usize> = (0..requests.len()).collect();
    arriving.sort_by(|one, other| {
        requests[*other]
            .at
            .total_cmp(&requests[*one].at)
            .then(other.cmp(one))
    });
    let mut steps_left: Vec<usize> = requests
        .iter()
        .map(|request| request.work.passes())
        .collect();
    // The time since which each processor has been idle; `None` while it works.
    let mut idle_since = vec![Some(f64::NEG_INFINITY); processors];
    let mut running: Vec<Option<Running>> = (0..processors).map(|_| None).collect();
    // The time at which each idle processor notices a ready task.
    let mut noticed: Vec<Option<f64>> = vec![None; processors];
    let mut now = 0.0;
    let mut ids = Vec::new();
    // Requests whose next pass starts to wait now.
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
            let urgency = if work == Work::Prompt {
                Urgency::Prefill
            } else {
                Urgency::Decode { since: now }
            };
            ids.push(passes.add(dag, urgency));
            served.passes.push(ServedPass {
                request: index,
                since: now,
                start: f64::NAN,
                end: f64::NAN,
            });
        }
        for (index, idle_since) in idle_since.iter_mut().enumerate() {
            let processor = ProcessorId::new(index);
            let Some(since) = *idle_since else { continue };
            if since < now && noticed[index].is_none() {
                let first =
                    notices.and_then(|notices| Some((notices, passes.peek(processor, now)?.1)));
                noticed[index] = first.map(|(notices, task)| {
                    now + notices(Begin {
                        task,
                        processor,
                        now,
                        idle: true,
                    })
                    .max(0.0)
                });
            }
            if noticed[index].is_some_and(|at| at > now) {
                continue;
            }
            noticed[index] = None;
            if let Some((id, task)) = passes.next(processor, now) {
                let pass = ids.binary_search(&id).expect("it was added");
                let dag = requests[served.passes[pass].request].dag;
                let Takes {
                    before,
                    seconds,
                    concurrent,
                } = takes(
                    dag,
                    Begin {
                        task,
                        processor,
                        now,
                        idle: since < now,
                    },
                );
                let is_valid = before >= 0.0 && seconds >= 0.0 && (before + seconds).is_finite();
                assert!(
                    is_valid,
                    "task {task} takes {seconds} seconds after {before}"
                );
                assert!(
                    concurrent > -1.0 && concurrent.is_finite(),
                    "task {task} has a slowdown of {concurrent} next to others"
                );
                let end = now + before + seconds;
                *idle_since = None;
                let start = &mut served.passes[pass].start;
                *start = start.min(now);
                let event = served.events.len();
                served.events.push((
                    pass,
                    Event {
                        task,
                        processor,
                        start: now,
                        end,
                    },
                ));
                running[index] = Some(Running {
                    pass: id,
                    task,
                    event,
                    end,
                    seconds,
                    concurrent,
                    is_concurrent: false,
                });
            }
        }
        let is_concurrent = running.iter().flatten().count() > 1;
        running
            .iter_mut()
            .flatten()
            .for_each(|running| running.set_concurrent(is_concurrent, now));
        let end = running
            .iter()
            .flatten()
            .map(|running| running.end)
            .fold(f64::INFINITY, f64::min);
        let arrival = arriving
            .last()
            .map_or(f64::INFINITY, |request| requests[*request].at);
        let notice = noticed
            .iter()
            .flatten()
            .copied()
            .fold(f64::INFINITY, f64::min);
        now = end.min(arrival).min(notice);
        if now.is_infinite() {
            break;
        }
        // Complete all tasks that end now before the next ones are chosen.
        for (running, idle_since) in running.iter_mut().zip(&mut idle_since) {
            let Some(Running {
                pass: id,
                task,
                event,
                seconds,
                ..
            }) = running.take_if(|running| running.end == now)
            else {
                continue;
            };
            *idle_since = Some(now);
            served.events[event].1.end = now;
            let is_complete = passes.complete(id, task);
            passes.observe(id, task, seconds);
            if is_complete {
                let pass = &mut served.passes[ids.binary_search(&id).expect("it was added")];
                pass.end = now;
                waiting.push(pass.request);
            }
        }
    }
    assert!(
        passes.is_empty(),
        "a task is ready as long as one is left, since none waits for a later one"
    );
    served
}

impl Served {
    /// Returns the events as a timeline.
    fn timeline(self, processors: usize) -> Timeline {
        Timeline::new(
            self.events.into_iter().map(|(_, event)| event).collect(),
            processors,
        )
    }
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
                // The actual times differ from the expected ones.
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
                        let first = schedule.peek(processor);
                        *running = running.take().or_else(|| schedule.next(processor).inspect(|task| {
                            assert_eq!(first, Some(*task), "{policy:?}: another task than the one that was shown");
                        }));
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
    fn tasks_are_longer_while_another_processor_works() {
        let dag = Dag::new([
            (0, 4.0, vec![]),
            (1, 2.0, vec![]),
            (0, 3.0, vec![0]),
            (1, 1.0, vec![2]),
        ]);
        let takes = |begin: Begin| {
            let concurrent = [0.5, 0.0, 9.0, 9.0][begin.task];
            Takes {
                concurrent,
                ..dag.seconds(begin.task).into()
            }
        };
        let timeline = simulate_each(&dag, Policy::Fifo, takes);
        let ends: Vec<_> = timeline
            .events()
            .iter()
            .map(|event| (event.task, event.end))
            .collect();
        // In two seconds next to the other task, the first one does the work of 4/3 seconds alone.
        let first = 2.0 + 4.0 - 2.0 / 1.5;
        let expected = [(0, first), (1, 2.0), (2, first + 3.0), (3, first + 4.0)];
        for ((task, end), (expected_task, expected_end)) in ends.into_iter().zip(expected) {
            assert!(
                task == expected_task && (end - expected_end).abs() < 1e-12,
                "{task} ends at {end}"
            );
        }
    }

    /// Processors notice a ready task after this many seconds. Tasks take their expected time.
    struct Noticed<'a>(&'a Dag, f64);

    impl RealTime for Noticed<'_> {
        fn takes(&self, begin: Begin, _: f64) -> Takes {
            self.0.seconds(begin.task).into()
        }

        fn notices(&self, begin: Begin, chance: f64) -> f64 {
            assert!(begin.idle && (0.0..1.0).contains(&chance));
            self.1
        }
    }

    #[test]
    fn an_idle_processor_chooses_when_it_notices() {
        // The CPU makes a short path of the NPU ready, and half a second later a long one.
        let dag = Dag::new([
            (0, 1.0, vec![]),
            (0, 0.5, vec![0]),
            (1, 1.0, vec![0]),
            (1, 2.0, vec![1]),
        ]);
        let on_npu = |seconds: f64| {
            let schedule = [(dag.clone(), Policy::CriticalPath)];
            let (policy, timeline) =
                simulate_varied(&schedule, 3, &Noticed(&dag, seconds)).swap_remove(1);
            assert_eq!(policy, Policy::CriticalPath);
            let events = timeline
                .events()
                .iter()
                .filter(|event| event.processor == NPU);
            events
                .map(|event| (event.task, event.start))
                .collect::<Vec<_>>()
        };
        assert_eq!(on_npu(0.0), [(2, 1.0), (3, 2.0)]);
        // The first task of the CPU starts late, too.
        assert_eq!(on_npu(0.25), [(2, 1.5), (3, 2.5)]);
        assert_eq!(on_npu(0.75), [(3, 2.5), (2, 4.5)], "by then both are ready");
    }

    #[test]
    fn a_schedule_gets_to_know_what_tasks_took() {
        let node = |seconds, predecessors, kind| Node {
            home: ProcessorId::new(0),
            seconds: vec![Some(seconds)],
            predecessors,
            kind,
        };
        let dag = Dag::from_nodes(
            1,
            [
                node(1.0, vec![], 0),
                node(1.0, vec![0], 0),
                node(1.5, vec![0], 1),
            ],
        );
        let order = |first: f64| {
            let takes = |task: usize| if task == 0 { first } else { dag.seconds(task) };
            let timeline = simulate(&dag, Policy::CriticalPath, takes);
            timeline
                .events()
                .iter()
                .map(|event| event.task)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(1.0), [0, 2, 1], "the longest first");
        assert_eq!(
            order(10.0),
            [0, 1, 2],
            "those of the first one's kind may take as long"
        );
    }

    /// Returns the tasks of Qwen1.5-1.8B with the paper's times for 256 tokens: 315 ms on the NPU, half of that on the
    /// CPU.
    fn qwen(prompt: usize) -> Dag {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), prompt, 256);
        let processors = Processors::cpu_and_npu(Some(4 << 30));
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let operations = |format: Format| -> u128 {
            let of_format = graph
                .subgraphs()
                .iter()
                .filter(|subgraph| subgraph.role.format() == format);
            of_format.map(|subgraph| subgraph.operations(256, 0)).sum()
        };
        let npu = 0.315 / operations(Format::Int8) as f64;
        Dag::of_prefill(&graph, &processors, &placement, |task, processor| {
            if processor == NPU {
                graph.operations(task) as f64 * npu
            } else {
                0.315 / 2.0 / 72.0
            }
        })
    }

    #[test]
    fn out_of_order_the_npu_of_four_chunks_has_almost_no_bubbles_and_in_order_a_third() {
        let dag = qwen(1024);
        let bubbles = |policy| simulate(&dag, policy, |task| dag.seconds(task)).bubble_rate(NPU);
        assert!(
            (0.3..0.34).contains(&bubbles(Policy::InOrder)),
            "{}",
            bubbles(Policy::InOrder)
        );
        for policy in [
            Policy::Fifo,
            Policy::NpuFirst,
            Policy::Paper,
            Policy::CriticalPath,
        ] {
            assert!(bubbles(policy) < 0.06, "{policy:?}: {}", bubbles(policy));
        }
    }
}

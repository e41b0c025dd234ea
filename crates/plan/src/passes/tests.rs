//! Tests with passes that arrive at any time, tasks of any length, and processors lost at any step.

use proptest::prelude::*;

use super::*;
use crate::schedule::Node;
use crate::simulate::{Request, Work, simulate_requests};

const PROCESSORS: usize = 3;
/// Tolerance for comparing sums of times.
const ROUNDING: f64 = 1e-9;

prop_compose! {
    /// Generates tasks of 0.1 to 2 seconds, each with a home and other processors that can run it.
    fn dags()(count in 1usize..25)(
        tasks in prop::collection::vec(
            (0usize..PROCESSORS, prop::collection::vec(prop::option::of(0.1f64..2.0), PROCESSORS), 0.1f64..2.0,
             prop::collection::vec(any::<prop::sample::Index>(), 0..4)),
            count,
        ),
    ) -> Dag {
        Dag::from_nodes(PROCESSORS, tasks.into_iter().enumerate().map(|(task, (home, mut seconds, at_home, before))| {
            seconds[home] = Some(at_home);
            let predecessors = if task == 0 { vec![] } else { before.iter().map(|other| other.index(task)).collect() };
            Node { home: ProcessorId::new(home), seconds, predecessors, kind: 0 }
        }))
    }
}

fn chain(processor: usize, seconds: &[f64]) -> Dag {
    let before = |task: usize| task.checked_sub(1).into_iter().collect();
    Dag::new(
        seconds
            .iter()
            .enumerate()
            .map(|(task, seconds)| (processor, *seconds, before(task))),
    )
}

/// A driver that checks the tasks of each processor.
struct Driver<'a> {
    dags: &'a [Dag],
    passes: Passes<&'a Dag>,
    ids: Vec<PassId>,
    /// For each added pass, whether each task is complete.
    done: Vec<Vec<bool>>,
    running: Vec<Option<(PassId, usize)>>,
    is_lost: Vec<bool>,
    cancelled: Vec<PassId>,
}

impl<'a> Driver<'a> {
    fn new(dags: &'a [Dag], policy: Policy, max_stall: f64) -> Self {
        Self {
            dags,
            passes: Passes::new(PROCESSORS, policy, max_stall),
            ids: Vec::new(),
            done: Vec::new(),
            running: vec![None; PROCESSORS],
            is_lost: vec![false; PROCESSORS],
            cancelled: Vec::new(),
        }
    }

    fn add(&mut self, urgency: Urgency) {
        let dag = &self.dags[self.ids.len()];
        self.done.push(vec![false; dag.len()]);
        self.ids.push(self.passes.add(dag, urgency));
    }

    fn place(&self, id: PassId) -> usize {
        self.ids.iter().position(|other| *other == id).unwrap()
    }

    /// Starts a task on each idle processor. No processor may stay idle while a task is ready for it.
    fn dispatch(&mut self, now: f64, policy: Policy) {
        for index in 0..PROCESSORS {
            let processor = ProcessorId::new(index);
            if self.running[index].is_some() {
                assert_eq!(self.passes.next(processor, now), None, "one task at a time");
                continue;
            }
            self.running[index] = self.passes.next(processor, now);
            assert_eq!(self.passes.running(processor), self.running[index]);
            let Some((id, task)) = self.running[index] else {
                assert!(
                    self.is_lost[index]
                        || policy == Policy::InOrder
                        || self.ready_for(processor).is_none()
                );
                continue;
            };
            assert!(!self.is_lost[index] && !self.cancelled.contains(&id));
            let place = self.place(id);
            assert!(!self.done[place][task], "task {task} of {id:?} runs again");
            assert!(
                self.running
                    .iter()
                    .filter(|running| **running == Some((id, task)))
                    .count()
                    == 1,
                "at once"
            );
            assert!(
                self.dags[place]
                    .predecessors(task)
                    .iter()
                    .all(|before| self.done[place][*before])
            );
            assert!(
                self.dags[place].seconds_on(task, processor).is_some(),
                "it can run there"
            );
        }
    }

    /// Returns a task that is ready for a processor and not running.
    fn ready_for(&self, processor: ProcessorId) -> Option<(PassId, usize)> {
        let of_pass = |(place, id): (usize, &PassId)| {
            let schedule = self
                .passes
                .schedule(*id)
                .filter(|_| !self.cancelled.contains(id))?;
            let is_ready = |task: &usize| {
                schedule.home(*task) == processor
                    && !self.done[place][*task]
                    && !self.running.contains(&Some((*id, *task)))
                    && self.dags[place]
                        .predecessors(*task)
                        .iter()
                        .all(|before| self.done[place][*before])
            };
            (0..self.dags[place].len())
                .find(is_ready)
                .map(|task| (*id, task))
        };
        self.ids.iter().enumerate().find_map(of_pass)
    }

    fn complete(&mut self, processor: usize) {
        let (id, task) = self.running[processor].take().unwrap();
        let place = self.place(id);
        self.done[place][task] = true;
        let is_last = self.done[place].iter().all(|done| *done);
        assert_eq!(self.passes.complete(id, task), is_last);
        assert!(!is_last || self.passes.is_complete(id));
    }

    fn lose(&mut self, processor: usize) {
        self.running[processor] = None;
        self.is_lost[processor] = true;
        self.passes.lose(ProcessorId::new(processor));
    }

    /// Returns whether tasks of a pass can't be completed any more: no processor is left for them or one of their
    /// predecessors.
    fn is_blocked(&self, place: usize) -> bool {
        let can_run = |task: usize| {
            (0..PROCESSORS).any(|index| {
                !self.is_lost[index]
                    && self.dags[place]
                        .seconds_on(task, ProcessorId::new(index))
                        .is_some()
            })
        };
        (0..self.dags[place].len()).any(|task| !self.done[place][task] && !can_run(task))
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add { decode: bool },
    Complete(usize),
    Lose(usize),
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any::<bool>().prop_map(|decode| Step::Add { decode }),
        30 => (0usize..PROCESSORS).prop_map(Step::Complete),
        1 => (0usize..PROCESSORS).prop_map(Step::Lose),
        1 => (0usize..8).prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn every_task_runs_once_after_its_predecessors_whatever_arrives_is_lost_or_cancelled(
        dags in prop::collection::vec(dags(), 1..6),
        steps in steps(),
        policy in 0usize..5,
        max_stall in 0f64..5.0,
    ) {
        let policy = Policy::ALL[policy];
        let mut driver = Driver::new(&dags, policy, max_stall);
        let mut now = 0.0;
        for step in steps {
            now += 0.5;
            match step {
                Step::Add { decode } if driver.ids.len() < dags.len() => {
                    driver.add(if decode { Urgency::Decode { since: now } } else { Urgency::Prefill });
                }
                Step::Complete(processor) if driver.running[processor].is_some() => driver.complete(processor),
                Step::Lose(processor) => driver.lose(processor),
                Step::Cancel(place) if place < driver.ids.len() => {
                    let id = driver.ids[place];
                    driver.passes.cancel(id);
                    driver.cancelled.push(id);
                }
                _ => continue,
            }
            driver.dispatch(now, policy);
        }
        while driver.ids.len() < dags.len() {
            driver.add(Urgency::Prefill);
        }
        driver.dispatch(now, policy);
        while let Some(processor) = (0..PROCESSORS).find(|index| driver.running[*index].is_some()) {
            driver.complete(processor);
            driver.dispatch(now, policy);
        }
        for (place, id) in driver.ids.iter().enumerate() {
            let is_cancelled = driver.cancelled.contains(id);
            let is_done = driver.done[place].iter().all(|done| *done);
            if is_cancelled || !driver.is_blocked(place) {
                prop_assert!(driver.passes.is_complete(*id) && (is_cancelled || is_done), "{policy:?}: {id:?}");
                prop_assert!(driver.passes.orphans(*id).is_empty());
            } else {
                prop_assert!(!driver.passes.is_complete(*id) && !driver.passes.orphans(*id).is_empty());
            }
        }
    }

    #[test]
    fn a_step_of_decoding_waits_no_longer_than_the_stall_and_one_task(
        prompts in prop::collection::vec((0f64..20.0, dags()), 1..5),
        lengths in prop::collection::vec(0.01f64..0.5, 1..6),
        (processor, steps, at) in (0usize..PROCESSORS, 1usize..8, 0f64..10.0),
        (policy, max_stall) in (0usize..5, 0f64..6.0),
    ) {
        let decode = chain(processor, &lengths);
        let requests: Vec<_> = prompts
            .iter()
            .map(|(at, dag)| Request { at: *at, dag, work: Work::Prompt })
            .chain([Request { at, dag: &decode, work: Work::Decode { steps } }])
            .collect();
        let of_decode = requests.len() - 1;
        let served = simulate_requests(PROCESSORS, Policy::ALL[policy], max_stall, &requests, |dag, begin| {
            dag.seconds(begin.task).into()
        });
        let longest = prompts.iter().flat_map(|(_, dag)| (0..dag.len()).map(|task| dag.seconds(task)));
        let longest = longest.fold(0.0, f64::max);
        let own: f64 = lengths.iter().sum();
        let waited: Vec<_> = served.passes.iter().filter(|pass| pass.request == of_decode).collect();
        prop_assert_eq!(waited.len(), steps);
        prop_assert!(waited[0].since == at && waited.windows(2).all(|pair| pair[1].since == pair[0].end));
        for pass in waited {
            prop_assert!(pass.start <= pass.since + max_stall + longest + ROUNDING, "{pass:?}, {longest}");
            prop_assert!(pass.end <= pass.since + max_stall + longest + own + ROUNDING, "{pass:?}, {longest}, {own}");
        }
    }
}

const CPU: ProcessorId = ProcessorId::new(0);

#[test]
fn an_earlier_prompt_goes_first_and_a_later_one_fills_its_gaps() {
    let first = Dag::new([(0, 1.0, vec![]), (1, 2.0, vec![0]), (0, 1.0, vec![1])]);
    let second = Dag::new([
        (0, 1.0, vec![]),
        (0, 1.0, vec![0]),
        (0, 1.0, vec![1]),
        (0, 1.0, vec![2]),
    ]);
    let requests = [&first, &second].map(|dag| Request {
        at: 0.0,
        dag,
        work: Work::Prompt,
    });
    let served = simulate_requests(2, Policy::Fifo, 0.0, &requests, |dag, begin| {
        dag.seconds(begin.task).into()
    });
    let on_cpu: Vec<_> = served
        .events
        .iter()
        .filter(|(_, event)| event.processor == CPU)
        .collect();
    let order: Vec<_> = on_cpu
        .iter()
        .map(|(pass, event)| (*pass, event.task))
        .collect();
    assert_eq!(order, [(0, 0), (1, 0), (1, 1), (0, 2), (1, 2), (1, 3)]);
}

#[test]
fn a_step_yields_for_the_stall_and_then_goes_first() {
    let prompt = chain(0, &[1.0; 6]);
    let step = chain(0, &[1.0; 2]);
    for (max_stall, start) in [(0.0, 1.0), (2.0, 3.0), (f64::INFINITY, 6.0)] {
        let mut passes = Passes::new(1, Policy::Fifo, max_stall);
        let prompt = passes.add(&prompt, Urgency::Prefill);
        let (mut now, mut begun) = (0.0, Vec::new());
        let mut step_id = None;
        while let Some((pass, task)) = passes.next(CPU, now) {
            if step_id.is_none() {
                step_id = Some(passes.add(&step, Urgency::Decode { since: 1.0 }));
            }
            begun.push((pass, now));
            now += 1.0;
            passes.complete(pass, task);
        }
        let steps: Vec<_> = begun
            .iter()
            .filter(|(pass, _)| *pass != prompt)
            .map(|(_, now)| *now)
            .collect();
        assert_eq!(steps, [start, start + 1.0], "a stall of {max_stall} s");
        assert!(passes.is_empty() && passes.is_complete(prompt));
    }
}

#[test]
fn a_step_takes_a_processor_that_would_idle() {
    let prompt = Dag::new([(1, 5.0, vec![]), (0, 1.0, vec![0])]);
    let step = chain(0, &[1.0]);
    let mut passes = Passes::new(2, Policy::CriticalPath, 100.0);
    passes.add(&prompt, Urgency::Prefill);
    let step = passes.add(&step, Urgency::Decode { since: 0.0 });
    assert_eq!(passes.next(CPU, 0.0), Some((step, 0)));
}

#[test]
fn of_a_cancelled_pass_what_runs_ends_and_nothing_starts() {
    let prompt = chain(0, &[1.0; 3]);
    let mut passes = Passes::new(1, Policy::Fifo, 0.0);
    let [cancelled, other] = [(); 2].map(|()| passes.add(&prompt, Urgency::Prefill));
    assert_eq!(passes.next(CPU, 0.0), Some((cancelled, 0)));
    passes.cancel(cancelled);
    assert!(!passes.is_complete(cancelled), "its task runs");
    assert!(!passes.complete(cancelled, 0));
    assert!(passes.is_complete(cancelled));
    assert_eq!(passes.next(CPU, 1.0), Some((other, 0)));
    passes.cancel(other);
    passes.lose(CPU);
    assert!(
        passes.is_complete(other) && passes.is_empty(),
        "what ran was lost with its processor"
    );
}

#[test]
fn a_pass_that_is_added_after_a_loss_goes_to_those_that_are_left() {
    let uniform = Dag::new([(0, 1.0, vec![]), (1, 1.0, vec![0])]);
    let node = Node {
        home: CPU,
        seconds: vec![Some(1.0)],
        predecessors: vec![],
        kind: 0,
    };
    let cpu_alone = Dag::from_nodes(2, [node]);
    let mut passes = Passes::new(2, Policy::Fifo, 0.0);
    passes.lose(CPU);
    let moved = passes.add(&uniform, Urgency::Prefill);
    let stuck = passes.add(&cpu_alone, Urgency::Prefill);
    assert_eq!(
        (passes.orphans(moved), passes.orphans(stuck)),
        (&[][..], &[0][..])
    );
    assert_eq!(passes.next(ProcessorId::new(1), 0.0), Some((moved, 0)));
    assert_eq!(passes.next(CPU, 0.0), None);
    passes.cancel(stuck);
    assert!(passes.is_complete(stuck));
}

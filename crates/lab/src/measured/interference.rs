//! Measures on this machine what other programs cost a prompt on several processors, for each policy.
//!
//! Another program is a thread on one core, or a device's process that is stopped for a while. Its use is measured: the
//! CPU time of its thread, or the time for which the process was stopped.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use triad_engine::{Cancel, Cores, Session};
use triad_hetero::{Costs, HeteroEngine};
use triad_plan::schedule::Policy;

use crate::error::{Error, Result};
use triad_kernels::timing::median;

/// Bytes that are read repeatedly to slow memory: more than caches hold.
const STREAMED: usize = 128 << 20;
/// Time for which a process is stopped.
const FROZEN: Duration = Duration::from_secs(1);
/// Start of that time, as a fraction of a prompt's undisturbed time.
const FROZEN_AFTER: f64 = 0.3;
/// Interval in which an idle thread checks whether the prompt is over.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Activity of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It computes all the time.
    Busy,
    /// It alternately computes for 10 ms and sleeps for 10 ms.
    Half,
    /// It computes for 100 ms of every 400 ms.
    Bursts,
    /// It reads memory all the time, more than caches hold.
    Memory,
    /// The processes of devices are stopped for a second, starting a third of the way through the prompt.
    Frozen,
}

/// Another program.
#[derive(Clone, Debug, Serialize)]
pub struct Disturbance {
    /// Its activity.
    pub kind: Kind,
    /// Processor whose core it shares, for people; `None` if it has its own core.
    pub next_to: Option<String>,
    /// Its core; `None` for a stopped process.
    pub core: Option<usize>,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Prompts per policy, without disturbance and with each one.
    pub repeat: usize,
    /// Policies, which run in turns.
    pub policies: Vec<Policy>,
    /// Disturbances, which run in turns.
    pub disturbances: Vec<Disturbance>,
}

/// Cost of a disturbance for a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The policy.
    pub policy: Policy,
    /// The disturbance.
    pub disturbance: Disturbance,
    /// Median seconds of a prompt without the disturbance.
    pub alone_seconds: f64,
    /// Median seconds of a prompt with the disturbance.
    pub concurrent_seconds: f64,
    /// Median CPU seconds of the other program, or seconds for which the process was stopped.
    pub taken_seconds: f64,
    /// Median joules of the processors during a prompt without and with the other program (whose energy is included),
    /// if the machine counts energy.
    pub joules: Option<[f64; 2]>,
}

impl Outcome {
    /// Returns the seconds by which the prompt was delayed.
    pub fn delay(&self) -> f64 {
        self.concurrent_seconds - self.alone_seconds
    }

    /// Returns the delay per second that the other program took.
    pub fn delay_for_each(&self) -> f64 {
        self.delay() / self.taken_seconds.max(f64::MIN_POSITIVE)
    }
}

/// One prompt.
#[derive(Debug, PartialEq)]
struct Run {
    seconds: f64,
    /// Seconds that the other program took.
    taken: f64,
    joules: Option<f64>,
}

/// Runs `plan` on `engine`: in each round, all policies without and with each disturbance. `joules` reads the machine's
/// energy counters, and returns `None` if there are none. `progress` is called with the number of completed prompts and
/// the total.
///
/// # Errors
/// If `cancel` is set, a prompt fails, a thread can't be bound to its core, or there is no process to stop.
pub fn run(
    engine: &HeteroEngine,
    plan: &Plan,
    cancel: &Cancel,
    joules: &dyn Fn() -> Option<f64>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Outcome>> {
    let Plan {
        prompt,
        repeat,
        policies,
        disturbances,
    } = plan;
    let vocab = engine.model().description().vocab;
    let prompt: Vec<_> = (0..*prompt)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect();
    let mut session = engine.session();
    // An unmeasured prompt, from which the engine learns the costs of tasks.
    session.prefill(&prompt, cancel, |_| {})?;
    let costs = engine.costs();
    let of_policy = || (0..=disturbances.len()).map(|_| Vec::new()).collect();
    let mut runs: Vec<Vec<Vec<Run>>> = policies.iter().map(|_| of_policy()).collect();
    let (mut done, all) = (0, repeat * policies.len() * (disturbances.len() + 1));
    for _ in 0..*repeat {
        for (policy, runs) in policies.iter().zip(&mut runs) {
            for (index, runs) in runs.iter_mut().enumerate() {
                let other = index.checked_sub(1).map(|index| &disturbances[index]);
                let alone = runs.first().map_or(1.0, |run| run.seconds);
                let before = joules();
                let run = prefill(
                    (engine, &mut session),
                    &prompt,
                    (*policy, &costs),
                    (other, alone),
                    cancel,
                )?;
                let joules = before.zip(joules()).map(|(before, after)| after - before);
                runs.push(Run { joules, ..run });
                done += 1;
                progress(done, all);
            }
        }
    }
    let outcomes = policies.iter().zip(runs).flat_map(|(policy, mut runs)| {
        let alone = medians(&runs.remove(0));
        disturbances
            .iter()
            .zip(runs)
            .map(move |(disturbance, runs)| {
                let loaded = medians(&runs);
                Outcome {
                    policy: *policy,
                    disturbance: disturbance.clone(),
                    alone_seconds: alone.seconds,
                    concurrent_seconds: loaded.seconds,
                    taken_seconds: loaded.taken,
                    joules: alone.joules.zip(loaded.joules).map(<[f64; 2]>::from),
                }
            })
    });
    Ok(outcomes.collect())
}

/// Runs a prompt, with another program if there is one. `alone` is the approximate time of an undisturbed prompt.
fn prefill(
    (engine, session): (&HeteroEngine, &mut Session),
    prompt: &[u32],
    (policy, costs): (Policy, &Costs),
    (other, alone): (Option<&Disturbance>, f64),
    cancel: &Cancel,
) -> Result<Run> {
    session.truncate(0);
    engine.set_policy(policy);
    // Restores the costs, so that an earlier disturbed prompt does not influence the expectations.
    engine.set_costs(costs.clone());
    engine.plan_ahead(prompt.len());
    let (is_over, has_begun) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let other =
            other.map(|other| scope.spawn(|| disturb(other, alone, (&has_begun, &is_over))));
        other.iter().for_each(|_| {
            has_begun.wait();
        });
        let start = Instant::now();
        let outcome = session.prefill(prompt, cancel, |_| {});
        let seconds = start.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        let taken = other.map_or(Ok(0.0), |other| {
            other.join().expect("a disturbance does not panic")
        });
        outcome?;
        Ok(Run {
            seconds,
            taken: taken?,
            joules: None,
        })
    })
}

/// Acts as the other program from `has_begun` until `is_over`. Returns the seconds that it took.
fn disturb(
    disturbance: &Disturbance,
    alone: f64,
    (has_begun, is_over): (&Barrier, &AtomicBool),
) -> Result<f64> {
    let kept = disturbance
        .core
        .map_or(Ok(()), |core| Cores::from_iter([core]).keep_this_thread());
    let memory = if disturbance.kind == Kind::Memory {
        vec![1; STREAMED / size_of::<u64>()]
    } else {
        Vec::new()
    };
    has_begun.wait();
    kept.map_err(|source| Error::Interference {
        problem: "no thread for it",
        source,
    })?;
    let spent = || {
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
    };
    let before = spent();
    match disturbance.kind {
        Kind::Busy => compute(Duration::from_secs(3600), Duration::ZERO, is_over),
        Kind::Half => compute(
            Duration::from_millis(10),
            Duration::from_millis(10),
            is_over,
        ),
        Kind::Bursts => compute(
            Duration::from_millis(100),
            Duration::from_millis(300),
            is_over,
        ),
        Kind::Memory => stream(&memory, is_over),
        Kind::Frozen => return freeze(alone, is_over),
    }
    Ok(spent() - before)
}

/// Alternately computes for `busy` and sleeps for `idle`.
fn compute(busy: Duration, idle: Duration, is_over: &AtomicBool) {
    let mut value = 1u64;
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        while start.elapsed() < busy && !is_over.load(Ordering::Relaxed) {
            for _ in 0..1000 {
                value = black_box(
                    value
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1),
                );
            }
        }
        sleep_until(start + busy + idle, is_over);
    }
}

/// Reads memory until `is_over`.
fn stream(memory: &[u64], is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        for part in memory.chunks(1 << 17) {
            black_box(part.iter().fold(0u64, |sum, value| sum ^ value));
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

fn sleep_until(end: Instant, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Stops the child processes of this process for a second or until `is_over`. Returns the seconds for which they were
/// stopped.
fn freeze(alone: f64, is_over: &AtomicBool) -> Result<f64> {
    let stopped = |source| Error::Interference {
        problem: "no process can be stopped",
        source,
    };
    let processes = children().map_err(stopped)?;
    if processes.is_empty() {
        return Err(stopped(io::Error::new(
            io::ErrorKind::NotFound,
            "no device is a process of its own",
        )));
    }
    sleep_until(
        Instant::now() + Duration::from_secs_f64(FROZEN_AFTER * alone),
        is_over,
    );
    if is_over.load(Ordering::Relaxed) {
        return Ok(0.0);
    }
    let start = Instant::now();
    let mut frozen = Stopped(Vec::new());
    for process in processes {
        kill_process(process, Signal::STOP).map_err(|error| stopped(error.into()))?;
        frozen.0.push(process);
    }
    sleep_until(start + FROZEN, is_over);
    drop(frozen);
    Ok(start.elapsed().as_secs_f64())
}

/// Stopped processes. Dropping this value continues them.
struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in &self.0 {
            // A process that has ended in the meantime needs no signal.
            let _ = kill_process(*process, Signal::CONT);
        }
    }
}

/// Returns the processes that threads of this process have started.
fn children() -> io::Result<Vec<Pid>> {
    let mut all = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_whitespace()
                .filter_map(|number| Pid::from_raw(number.parse().ok()?)),
        );
    }
    Ok(all)
}

/// Returns the medians of seconds, taken seconds and joules, each computed separately, of at least one prompt.
fn medians(runs: &[Run]) -> Run {
    let of = |part: fn(&Run) -> f64| median(&runs.iter().map(part).collect::<Vec<_>>());
    let joules = runs
        .iter()
        .map(|run| run.joules)
        .collect::<Option<Vec<_>>>()
        .map(|values| median(&values));
    Run {
        seconds: of(|run| run.seconds),
        taken: of(|run| run.taken),
        joules,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_that_computes_half_the_time_takes_no_more_and_a_busy_one_more_than_that() {
        let run = |kind| {
            let (is_over, has_begun) = (AtomicBool::new(false), Barrier::new(2));
            let other = Disturbance {
                kind,
                next_to: None,
                core: None,
            };
            thread::scope(|scope| {
                let taken = scope.spawn(|| disturb(&other, 1.0, (&has_begun, &is_over)));
                has_begun.wait();
                thread::sleep(Duration::from_millis(300));
                is_over.store(true, Ordering::Relaxed);
                taken.join().unwrap().unwrap()
            })
        };
        let [busy, half] = [Kind::Busy, Kind::Half].map(run);
        assert!(half > 0.0 && half < busy, "{half} of {busy} s");
    }

    #[test]
    fn a_process_is_stopped_and_goes_on() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(children().unwrap().contains(&pid));
        let state = || {
            let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            text.rsplit(')')
                .next()
                .unwrap()
                .trim_start()
                .chars()
                .next()
                .unwrap()
        };
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = Stopped(vec![pid]);
        while state() != 'T' {
            thread::sleep(POLL_INTERVAL);
        }
        drop(stopped);
        while state() == 'T' {
            thread::sleep(POLL_INTERVAL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn medians_are_of_seconds_of_what_was_taken_and_of_joules_each_by_itself() {
        let run = |(seconds, taken, joules)| Run {
            seconds,
            taken,
            joules,
        };
        let three = [
            (3.0, 0.1, Some(7.0)),
            (1.0, 0.3, Some(9.0)),
            (2.0, 0.2, Some(8.0)),
        ]
        .map(run);
        assert_eq!(medians(&three), run((2.0, 0.2, Some(8.0))));
        let two = [(1.0, 0.0, Some(1.0)), (2.0, 1.0, None)].map(run);
        assert_eq!(
            medians(&two),
            run((1.5, 0.5, None)),
            "a counter that was not read each time counts nothing"
        );
    }
}

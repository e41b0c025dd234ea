//! A thread for each processor, as long as the engine lives: it takes tasks, runs them, and gives them back. Where there is
//! one processor alone, the threads that wait for it take its tasks, too ([`help`]).
//!
//! A processor that panics, reports an error or takes too long for a task is lost until nothing is left to compute. Another
//! one runs its part or shadow, or takes the chunk that it had, from its tokens on, where nobody knows what its buffers
//! hold. A thread that hangs keeps its buffers and is left alone. Where it hangs within attention it holds the pages of a
//! block, too, and whoever needs these waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pass::Hidden;
use super::programs::DeviceBackend;
use super::state::{Job, State};
use super::wait::{SPIN, Wait, WaitUse, sleep_and_poll};
use super::{Moment, Shared, Unit};
use crate::error::{Error, FailureReason, Result};
use crate::linear::OwnKernels;
use triad_kernels::lock;

/// How often a worker that waits looks whether another one takes too long.
const LOOK: Duration = Duration::from_millis(20);
/// The same of an engine with one processor, where there is no other one.
const LOOK_ALONE: Duration = Duration::from_millis(200);

/// The life of a worker.
pub(super) fn serve(shared: &Arc<Shared>, index: usize) {
    if shared.units.len() == 1 {
        return serve_tasks(shared, index);
    }
    // Nobody else takes this processor's tasks. To keep a thread on its cores takes the system longer than a short task.
    shared.units[index]
        .pool()
        .install(|| serve_tasks(shared, index));
}

fn serve_tasks(shared: &Shared, index: usize) {
    let (mut state, mut has_worked) = (lock(&shared.state), false);
    while !state.is_closing {
        let job = state.take(shared, index);
        let has_job = job.is_some();
        state = match job {
            Some(job) => {
                drop(state);
                work(shared, index, job, &|| false);
                lock(&shared.state)
            }
            None => wait(shared, index, state, has_worked),
        };
        has_worked = has_job;
    }
}

/// Of an engine with one processor, its tasks on this thread, which waits for some of them anyway: nobody has to be woken
/// for a step. Ends when `is_enough`, or when there is no task now. Returns whether there was one.
pub(super) fn help(shared: &Shared, is_enough: &dyn Fn() -> bool) -> bool {
    if shared.units.len() > 1 {
        return false;
    }
    let job = {
        let mut state = lock(&shared.state);
        let job = state.take(shared, 0);
        if job.is_none() && state.is_left_alone() {
            // A step that waits for its other sequences: somebody has to look when it has waited enough.
            shared.tell(&mut state);
        }
        job
    };
    let Some(job) = job else { return false };
    work(shared, 0, job, is_enough);
    true
}

/// Runs a job and those behind it.
fn work(shared: &Shared, index: usize, job: Job, is_enough: &dyn Fn() -> bool) {
    let unit = &shared.units[index];
    unit.pool().install(|| {
        let mut next = Some(job);
        while let Some(job) = next {
            let outcome = run(shared, unit, index, &job);
            let mut state = lock(&shared.state);
            state.give_back(shared, index, job, outcome);
            next = if is_enough() {
                None
            } else {
                state.take(shared, index)
            };
            if shared.units.len() > 1 || (next.is_none() && state.is_left_alone()) {
                shared.tell(&mut state);
            }
        }
    });
}

/// Runs a job.
fn run(
    shared: &Shared,
    unit: &Unit,
    index: usize,
    job: &Job,
) -> Result<Vec<Hidden>, FailureReason> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        probe(shared, index, Moment::Before)?;
        let Job {
            pass, number, slot, ..
        } = job;
        let mut kernels = OwnKernels(shared.model.weights());
        let hidden = match (&unit.whole, &unit.programs) {
            (Some(whole), _) if !pass.has_adapters() => pass.perform_whole(shared, *number, whole),
            (_, Some(programs)) => {
                let mut backend = DeviceBackend {
                    programs: &mut lock(programs),
                    kernels,
                };
                pass.perform(shared, *number, slot.as_deref(), &mut backend)
            }
            (_, None) => pass.perform(shared, *number, slot.as_deref(), &mut kernels),
        }?;
        probe(shared, index, Moment::Behind)?;
        Ok(hidden)
    }));
    match outcome {
        Ok(outcome) => outcome.map_err(|error: Error| FailureReason::Error(Arc::new(error))),
        Err(panic) => Err(FailureReason::Panic(message(&*panic).to_owned())),
    }
}

/// Calls the probe of a test.
fn probe(shared: &Shared, index: usize, moment: Moment) -> Result<()> {
    let probe = lock(&shared.probe).clone();
    probe.map_or(Ok(()), |probe| probe(index, moment))
}

/// Until something happens, and at times without that. `has_worked` is whether the worker comes from a task.
fn wait<'a>(
    shared: &'a Shared,
    index: usize,
    mut state: MutexGuard<'a, State>,
    has_worked: bool,
) -> MutexGuard<'a, State> {
    let polls = shared.units.len() > 1 && shared.settings.wait == Wait::Predicted;
    let has_nothing = shared.units.len() > 1 && !state.is_closing && state.has_nothing_for(index);
    let expected = state.next_end(index);
    // Behind a step that ends all work there mostly is another one at once: it polls for that, once.
    if has_nothing && !(polls && has_worked && expected.is_none()) {
        (state, _) = shared
            .idle
            .wait_timeout(state, LOOK)
            .unwrap_or_else(PoisonError::into_inner);
        if state.lose_hung(shared) {
            shared.tell(&mut state);
        }
        return state;
    }
    let told = shared.told.load(Ordering::Relaxed);
    let begin = Instant::now();
    // The tasks of a processor alone are mostly taken by who waits for them.
    let look = if shared.units.len() == 1 {
        LOOK_ALONE
    } else {
        LOOK
    };
    let mut used = WaitUse::default();
    let (sleep, polled) = sleep_and_poll(begin, expected);
    // Beside what takes longer than that, to be woken takes nothing: it blocks at once.
    if polls && sleep.is_none_or(|sleep| sleep < look) {
        if let Some(sleep) = sleep {
            // What ends earlier than expected wakes it.
            state = blocked(shared, state, sleep);
        }
        drop(state);
        let awake = Instant::now();
        while shared.told.load(Ordering::Relaxed) == told && Instant::now() < polled {
            if awake.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                // Whoever is to tell may be waiting for this core.
                std::thread::yield_now();
            }
        }
        used.slept_seconds = (awake - begin).as_secs_f64();
        used.polled_seconds = awake.elapsed().as_secs_f64();
        state = lock(&shared.state);
        if has_nothing {
            return state;
        }
    }
    // It is told under the lock: nothing is missed in between.
    if shared.told.load(Ordering::Relaxed) == told && !state.is_closing {
        let now = Instant::now();
        let look = state
            .next_look()
            .map_or(look, |at| at.saturating_duration_since(now).min(look));
        state = blocked(shared, state, look);
        used.blocked_seconds = now.elapsed().as_secs_f64();
    }
    used.waits = u64::from(shared.told.load(Ordering::Relaxed) != told);
    if let Some(expected) = expected {
        state.waited(index, used, expected);
    }
    if shared.units.len() > 1 && state.lose_hung(shared) {
        shared.tell(&mut state);
    }
    state
}

/// Until something is told, and for so long at most.
fn blocked<'a>(
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    most: Duration,
) -> MutexGuard<'a, State> {
    shared.blocked.fetch_add(1, Ordering::Relaxed);
    let (state, _) = shared
        .changed
        .wait_timeout(state, most)
        .unwrap_or_else(PoisonError::into_inner);
    shared.blocked.fetch_sub(1, Ordering::Relaxed);
    state
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

//! The workers: one thread per processor for the lifetime of the engine. A worker takes tasks, runs them and returns
//! their results. With a single processor, the threads that wait for results take tasks, too ([`run_inline`]).
//!
//! A processor that panics, returns an error or exceeds the time limit is lost until nothing is left to compute.
//! Another one then runs its part or shadow. If the state of the chunk's buffers is unknown, it restarts the chunk from
//! its tokens. A thread that hangs keeps its buffers and is not joined. If it hangs within attention, it also holds the
//! lock on a block's pages of the KV cache, and other users of these pages wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use triad_engine::executor::panic_message;
use triad_engine::linear::{Backend, CpuBackend};
use triad_kernels::lock;

use crate::dispatcher::{Dispatcher, TaskRun};
use crate::failure::FailureReason;
use crate::fixed_point::FixedBackend;
use crate::programs::DeviceBackend;
use crate::shared::{HeteroInner, Moment};
use crate::task_graph::PendingLogits;
use crate::wait::{SPIN, Wait, WaitUse, sleep_and_poll};
use crate::workers::Worker;

/// How often a waiting worker checks whether another one hangs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same for an engine with one processor, which has no other worker.
const POLL_INTERVAL_ALONE: Duration = Duration::from_millis(200);

/// Runs a worker until the engine closes.
pub(crate) fn serve(shared: &Arc<HeteroInner>, index: usize) {
    if shared.workers.len() == 1 {
        return serve_tasks(shared, index);
    }
    // No other thread takes this processor's tasks. Keeping a thread on the cores for a single task takes the system
    // longer than a short task.
    shared.workers[index]
        .pool()
        .install(|| serve_tasks(shared, index));
}

fn serve_tasks(shared: &HeteroInner, index: usize) {
    let (mut state, mut has_worked) = (lock(&shared.state), false);
    while !state.is_closing {
        let job = state.next_task(shared, index);
        let has_job = job.is_some();
        state = shared.end_batches(state);
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

/// With one processor, runs its tasks on this thread, which waits for some of them anyway, so that no thread has to be
/// woken for a step. Ends at `is_enough`, or when there is no task. Returns whether there was one.
pub(crate) fn run_inline(shared: &HeteroInner, is_enough: &dyn Fn() -> bool) -> bool {
    if shared.workers.len() > 1 {
        return false;
    }
    let job = {
        let mut state = lock(&shared.state);
        let job = state.next_task(shared, 0);
        drop(shared.end_batches(state));
        job
    };
    let Some(job) = job else { return false };
    work(shared, 0, job, is_enough);
    true
}

/// Runs a task and those that follow it.
fn work(shared: &HeteroInner, index: usize, job: TaskRun, is_enough: &dyn Fn() -> bool) {
    let worker = &shared.workers[index];
    worker.pool().install(|| {
        let mut next = Some(job);
        while let Some(job) = next {
            let outcome = run(shared, worker, index, &job);
            let mut state = lock(&shared.state);
            state.complete_task(shared, index, job, outcome);
            state = shared.end_batches(state);
            next = if is_enough() {
                None
            } else {
                state.next_task(shared, index)
            };
            state = shared.end_batches(state);
            if shared.workers.len() > 1 || (next.is_none() && state.is_stalled()) {
                shared.notify(&mut state);
            }
        }
    });
}

fn run(
    shared: &HeteroInner,
    worker: &Worker,
    index: usize,
    job: &TaskRun,
) -> Result<Vec<PendingLogits>, FailureReason> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        probe(shared, index, Moment::Before)?;
        let TaskRun {
            pass, number, slot, ..
        } = job;
        let mut kernels = CpuBackend(&shared.forward.model().weights().blocks);
        let perform = |backend: &mut dyn Backend| match &shared.fixed {
            Some(fixed) => {
                let mut backend = FixedBackend { fixed, backend };
                pass.perform(shared, *number, slot.as_deref(), &mut backend)
            }
            None => pass.perform(shared, *number, slot.as_deref(), backend),
        };
        let hidden = match (&worker.whole, &worker.programs) {
            (Some(whole), _) if !pass.has_adapters() => pass.perform_whole(shared, *number, whole),
            (_, Some(programs)) => perform(&mut DeviceBackend {
                programs: &mut lock(programs),
                kernels,
            }),
            (_, None) => perform(&mut kernels),
        }?;
        probe(shared, index, Moment::After)?;
        Ok(hidden)
    }));
    match outcome {
        Ok(outcome) => {
            outcome.map_err(|error: triad_engine::Error| FailureReason::Error(Arc::new(error)))
        }
        Err(panic) => Err(FailureReason::Panic(panic_message(&*panic).to_owned())),
    }
}

/// Calls the probe of a test.
fn probe(shared: &HeteroInner, index: usize, moment: Moment) -> triad_engine::Result<()> {
    let probe = lock(&shared.probe).clone();
    probe.map_or(Ok(()), |probe| probe(index, moment))
}

/// Waits until a notification or a timeout. `has_worked` is whether the worker has just run a task.
fn wait<'a>(
    shared: &'a HeteroInner,
    index: usize,
    mut state: MutexGuard<'a, Dispatcher>,
    has_worked: bool,
) -> MutexGuard<'a, Dispatcher> {
    let polls = shared.workers.len() > 1 && shared.settings.wait == Wait::Predicted;
    let has_nothing = shared.workers.len() > 1 && !state.is_closing && state.is_idle_for(index);
    let expected = state.next_end(index);
    // After a step that ends all work, the next one mostly follows at once: poll for it, once.
    if has_nothing && !(polls && has_worked && expected.is_none()) {
        (state, _) = shared
            .idle
            .wait_timeout(state, POLL_INTERVAL)
            .unwrap_or_else(PoisonError::into_inner);
        if state.lose_hung(shared) {
            shared.notify(&mut state);
        }
        return shared.end_batches(state);
    }
    let notifications = shared.notifications.load(Ordering::Relaxed);
    let begin = Instant::now();
    // With one processor, the threads that wait for its tasks mostly run them.
    let look = if shared.workers.len() == 1 {
        POLL_INTERVAL_ALONE
    } else {
        POLL_INTERVAL
    };
    let mut used = WaitUse::default();
    let (sleep, polled) = sleep_and_poll(begin, expected);
    // For longer waits the time to wake up does not matter: block at once.
    if polls && sleep.is_none_or(|sleep| sleep < look) {
        if let Some(sleep) = sleep {
            // A task that ends earlier than expected wakes it.
            state = blocked(shared, state, sleep);
        }
        drop(state);
        let awake = Instant::now();
        while shared.notifications.load(Ordering::Relaxed) == notifications
            && Instant::now() < polled
        {
            if awake.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                // The thread that is about to notify may be waiting for this core.
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
    // Notifications are sent under the lock, so none is missed in between.
    if shared.notifications.load(Ordering::Relaxed) == notifications && !state.is_closing {
        let now = Instant::now();
        state = blocked(shared, state, look);
        used.blocked_seconds = now.elapsed().as_secs_f64();
    }
    used.waits = u64::from(shared.notifications.load(Ordering::Relaxed) != notifications);
    if let Some(expected) = expected {
        state.waited(index, used, expected);
    }
    if shared.workers.len() > 1 && state.lose_hung(shared) {
        shared.notify(&mut state);
    }
    shared.end_batches(state)
}

/// Blocks until a notification, and at most for `most`.
fn blocked<'a>(
    shared: &'a HeteroInner,
    state: MutexGuard<'a, Dispatcher>,
    most: Duration,
) -> MutexGuard<'a, Dispatcher> {
    shared.blocked.fetch_add(1, Ordering::Relaxed);
    let (state, _) = shared
        .changed
        .wait_timeout(state, most)
        .unwrap_or_else(PoisonError::into_inner);
    shared.blocked.fetch_sub(1, Ordering::Relaxed);
    state
}

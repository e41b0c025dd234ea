//! The data that the threads of a pool share: the current job, and [the protocol](super#the-protocol) by which a caller
//! and its workers compute it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::spin::{SpinBeforeSleep, spin_until};
use super::state::{AtomicState, State};
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, UnsafeCell, lock, wait};

/// Index of the caller among the threads of a team.
const CALLER: usize = 0;

/// A caller and its workers. [`Pool::install`](super::Pool::install) ensures that at most one thread at a time is the
/// caller.
pub(super) struct Team {
    state: AtomicState,
    /// The job: written by the caller while no worker is active, read by active workers.
    job: UnsafeCell<Option<Job>>,
    /// For each thread, the caller first: the first remaining task of its share of the job.
    next_tasks: Box<[NextTask]>,
    /// Held by a worker from before it is counted as sleeping until it waits; taken by wakers before they notify.
    sleep: Mutex<()>,
    wake: Condvar,
    /// The payload of the first panic in a task of the job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the one caller while no worker is active, and read by active workers; entering and
// leaving order these accesses.
#[allow(unsafe_code)]
unsafe impl Sync for Team {}
// SAFETY: only active workers use the target of `job`, while the caller waits for them.
#[allow(unsafe_code)]
unsafe impl Send for Team {}

/// On its own cache line, since only its thread increments it, except at the end of a job.
#[repr(align(64))]
struct NextTask(AtomicUsize);

/// The tasks of an operator.
#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    /// Tasks that a thread takes at a time.
    grain: usize,
    /// The function; valid while a worker is active.
    work: *const (dyn Fn(usize) + Sync),
}

impl Job {
    /// Returns the first task of a thread's share; shares are equal up to a grain.
    fn share(&self, thread: usize, threads: usize) -> usize {
        let grains = self.tasks.div_ceil(self.grain);
        (grains * thread / threads * self.grain).min(self.tasks)
    }
}

/// A guard for a published job. Dropping it closes the job and waits until all workers have left.
struct Published<'a>(&'a AtomicState);

impl Drop for Published<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.close();
        spin_until(|| self.0.all_left());
    }
}

impl Team {
    /// Creates a team of `threads` threads, including the caller.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            state: AtomicState::new(),
            job: UnsafeCell::new(None),
            next_tasks: (0..threads)
                .map(|_| NextTask(AtomicUsize::new(0)))
                .collect(),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Runs all tasks of an operator on this thread, the caller, and on the workers that enter in time.
    ///
    /// # Panics
    /// With the payload of the first task that panics, after all threads have left the job.
    pub(super) fn run(&self, tasks: usize, grain: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. Active workers use the pointer, and `Published` waits for them, even after
        // a panic.
        #[allow(unsafe_code)]
        let work = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(work)
        };
        let job = Job { tasks, grain, work };
        self.job.with_mut(|place| {
            // SAFETY: no worker is active: the previous job was closed, and all workers left it.
            #[allow(unsafe_code)]
            unsafe {
                *place = Some(job);
            }
        });
        for (thread, next) in self.next_tasks.iter().enumerate() {
            next.0
                .store(job.share(thread, self.next_tasks.len()), Ordering::Relaxed);
        }
        let worker_sleeps = self.state.publish();
        let published = Published(&self.state);
        if worker_sleeps {
            self.wake_workers();
        }
        self.take_tasks(job, CALLER);
        drop(published);
        let panic = lock(&self.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Runs the worker with index `thread`: takes part in jobs until [`Team::shut_down`].
    pub(super) fn serve(&self, thread: usize) {
        let mut last = 0;
        while let Some(state) = self.wait_for_job(last) {
            last = state.job();
            if self.state.enter(state) {
                // SAFETY: this worker is active, so nothing writes the job.
                #[allow(unsafe_code)]
                let job = self.job.with(|job| unsafe { *job });
                self.take_tasks(job.expect("a published job"), thread);
                self.state.leave();
            }
        }
    }

    /// Ends the workers. There must be no job.
    pub(super) fn shut_down(&self) {
        self.state.shut_down();
        self.wake_workers();
    }

    /// Takes tasks until none is left: first those of this thread's share, then those of the others, going backwards
    /// and around from the previous thread. Does not panic: the first payload is stored, and ends the job.
    fn take_tasks(&self, job: Job, thread: usize) {
        let threads = self.next_tasks.len();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for share in (0..=thread).rev().chain((thread + 1..threads).rev()) {
                let end = job.share(share + 1, threads);
                loop {
                    let first = self.next_tasks[share]
                        .0
                        .fetch_add(job.grain, Ordering::Relaxed);
                    if first >= end {
                        break;
                    }
                    for task in first..(first + job.grain).min(end) {
                        // SAFETY: this thread is active or the caller, so the closure still exists.
                        #[allow(unsafe_code)]
                        unsafe {
                            (*job.work)(task);
                        }
                    }
                }
            }
        }));
        if let Err(payload) = outcome {
            for next in &self.next_tasks {
                next.0.store(job.tasks, Ordering::Relaxed);
            }
            let mut first = lock(&self.panic);
            match &*first {
                None => *first = Some(payload),
                // Dropping it could panic again.
                Some(_) => std::mem::forget(payload),
            }
        }
    }

    /// Returns the state as soon as a job other than `last` is open; `None` after [`Team::shut_down`].
    fn wait_for_job(&self, last: u64) -> Option<State> {
        let is_new = |state: State| state.is_open() && state.job() != last;
        let mut spin = SpinBeforeSleep::new();
        loop {
            let state = self.state.load();
            if state.is_shut_down() {
                return None;
            }
            if is_new(state) {
                return Some(state);
            }
            if !spin.again() {
                break;
            }
        }
        let mut guard = lock(&self.sleep);
        let mut state = self.state.begin_sleep();
        while !state.is_shut_down() && !is_new(state) {
            guard = wait(&self.wake, guard);
            // Reads the latest state: wakers take the lock after their transition.
            state = self.state.load();
        }
        self.state.end_sleep();
        (!state.is_shut_down()).then_some(state)
    }

    fn wake_workers(&self) {
        // Once the lock is free, every worker that is counted as sleeping is waiting.
        drop(lock(&self.sleep));
        self.wake.notify_all();
    }
}

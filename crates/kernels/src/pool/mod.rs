//! A thread pool that computes the tasks of one operator.
//!
//! [`Pool::install`] makes a pool current. Inside it, [`for_each`] runs the tasks of an operator, its *job*, on the
//! calling thread, the *caller*, and on the *workers* of the pool. Each thread has a share of the tasks and takes them
//! one after the other; then it takes the remaining tasks of other shares. If tasks are in the order of rows, the rows
//! that a thread has computed in one operator are therefore in its cache in the next. Outside a pool, and inside a
//! task, [`for_each`] is a loop. Operators follow each other within microseconds: a worker without a job spins for a
//! while, since waking a thread takes longer, and then sleeps. Jobs need no allocation.
//!
//! `current` holds the pool that is installed on a thread, `team` runs jobs, `state` is the word that its threads
//! share, and `spin` defines how long they spin. Primitives are those of the standard library or, to check the
//! protocol, of loom.
//!
//! # The protocol
//!
//! One atomic word holds the number of the job, whether it is open, whether the pool is shut down, and how many workers
//! are active (in the job) and asleep:
//!
//! | transition | by | when | effect |
//! | --- | --- | --- | --- |
//! | publish | caller | closed, none active | number + 1, open; returns whether workers are asleep |
//! | enter | worker | open, with a number that it did not enter before | active + 1 |
//! | leave | worker | it found no more tasks | active − 1 |
//! | close | caller | it found no more tasks | closed; then the caller waits until none is active |
//! | begin sleep | worker | spun in vain, holds the lock | asleep + 1; returns the state |
//! | end sleep | worker | woken, holds the lock | asleep − 1 |
//! | shut down | dropping thread | closed | shut down; workers return |
//!
//! ```text
//!            publish              close             all left
//! caller:  ───────────▶  open  ───────────▶ closed ───────────▶ returns; the next job may be written
//!
//!            sees an open job, enters                  leaves
//! worker:  ─────────────────────────────▶ takes tasks ────────▶ spins ──▶ sleeps
//! ```
//!
//! The invariants, and why they hold:
//!
//! - *A job is written while no worker reads it.* Workers read it between enter and leave. The caller writes the next
//!   one after it has closed the last, after which none enters, and has seen that none is active. Publish releases to
//!   enter, and leave releases to the caller, so that a job and its results are visible; all transitions are
//!   read-modify-writes, which continue each other's release sequences.
//! - *Closures live long enough*, for the same reason: `run` returns, or panics, after all workers have left.
//! - *Each task runs once*: threads take the numbers of a share from one counter, which is set between jobs.
//! - *No wake-up is lost.* Publish and begin sleep change the same word, so one of the two sees the other. If begin
//!   sleep comes second, it returns the new job, and the worker does not wait. If publish comes second, it returns that
//!   a worker is asleep, and the caller takes the lock before it notifies; the worker holds that lock until it waits.
//! - *A late worker costs nothing*: it misses the job. The caller does not wait for workers that did not enter.
//!
//! `loom_tests` checks the orders of these steps (with up to three preemptions), and every value that a load may
//! return, for a caller and up to two workers: `.ci/run loom`.

mod current;
#[cfg(all(test, loom))]
mod loom_tests;
mod spin;
mod state;
mod team;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lock::lock;
use std::thread::JoinHandle;

use crate::cores::Cores;
use current::{Current, this_thread};
pub use current::{for_each, for_each_of, threads};
use team::Team;

/// A thread pool: the thread that calls [`Pool::install`], and workers. Dropping the pool ends the workers.
pub struct Pool {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// The cores for the installing thread while the pool is installed, if they are restricted.
    cores: Option<Cores>,
    /// The lock that the installing thread holds.
    installed: Mutex<()>,
    /// [`this_thread`] of the installing thread; zero if there is none.
    owner: AtomicUsize,
}

impl Pool {
    /// Creates a pool of `threads` threads, including the installing one. If the machine has cores of several speeds,
    /// threads stay on the fast ones if there are enough of these; the system chooses the core of each thread.
    ///
    /// # Errors
    /// If the system refuses a thread, or there are more than 32,768.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn new(threads: usize) -> io::Result<Self> {
        let fast = Cores::fast().filter(|fast| fast.len() >= threads);
        Self::start(threads, |_| fast)
    }

    /// Creates a pool of `threads` threads on any cores; the installing thread keeps its own.
    ///
    /// # Errors
    /// As for [`Pool::new`].
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn anywhere(threads: usize) -> io::Result<Self> {
        Self::start(threads, |_| None)
    }

    /// Creates a pool of one thread on each of `cores`; the installing thread runs on the first of them while the pool
    /// is installed.
    ///
    /// # Errors
    /// If the system refuses a thread, or does not let this process run on one of the cores.
    ///
    /// # Panics
    /// If `cores` is empty.
    pub fn pinned(cores: &Cores) -> io::Result<Self> {
        let cores: Vec<_> = cores.iter().collect();
        for core in &cores {
            // Checked here, where the error can be returned.
            let unknown = || {
                io::Error::other("the system does not report the cores that this thread may run on")
            };
            let before = Cores::of_this_thread().ok_or_else(unknown)?;
            Cores::one(*core).keep_this_thread()?;
            before.keep_this_thread()?;
        }
        Self::start(cores.len(), |index| Some(Cores::one(cores[index])))
    }

    /// Starts the threads. Thread 0 is the installing one; `cores` returns the cores of each thread, if they are
    /// restricted.
    fn start(threads: usize, cores: impl Fn(usize) -> Option<Cores>) -> io::Result<Self> {
        assert!(threads > 0, "expected at least one thread");
        if threads - 1 > state::MAX_WORKERS {
            let reason = format!(
                "{threads} threads in a pool of at most {}",
                state::MAX_WORKERS + 1
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut pool = Self {
            team: Arc::new(Team::new(threads)),
            workers: Vec::new(),
            cores: cores(0),
            installed: Mutex::new(()),
            owner: AtomicUsize::new(0),
        };
        for index in 1..threads {
            let (team, cores) = (Arc::clone(&pool.team), cores(index));
            let worker = std::thread::Builder::new()
                .name(format!("triad-{index}"))
                .spawn(move || {
                    // If the system refuses, the thread runs on any core.
                    let _ = cores.map_or(Ok(()), |cores| cores.keep_this_thread());
                    current::become_worker(threads);
                    team.serve(index);
                });
            pool.workers.push(worker?);
        }
        Ok(pool)
    }

    /// Returns the number of threads, including the installing one.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` on this thread, where every [`for_each`] then uses the pool's workers. Several threads may call it
    /// concurrently: each waits until no other thread has the pool installed. Inside an `install` of the same pool, and
    /// inside a task of any pool, it only calls `work`.
    ///
    /// Two threads that install two pools in opposite order, one inside the other, can deadlock.
    ///
    /// # Panics
    /// If `work` or one of its tasks panics, with the same payload. The pool stays usable.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        // No other thread stores this thread's identity.
        let is_installed = self.owner.load(Ordering::Relaxed) == this_thread();
        if is_installed || current::in_task() {
            return work();
        }
        let _installed = Installed::new(self);
        work()
    }

    /// Runs `first` on this thread and `second` concurrently on a worker; returns the result of `first` when both are
    /// done. If no worker is free in time, `second` runs after `first` on this thread.
    ///
    /// # Panics
    /// If one of the two panics, with the same payload.
    pub fn join<R: Send>(
        &self,
        first: impl FnOnce() -> R + Send,
        second: impl FnOnce() + Send,
    ) -> R {
        let caller = this_thread();
        let (first, second, result) = (
            Mutex::new(Some(first)),
            Mutex::new(Some(second)),
            Mutex::new(None),
        );
        // Two tasks that run one of the two functions each: the caller prefers `first`, a worker `second`, unless it is
        // taken.
        let task = |_| {
            let is_caller = this_thread() == caller;
            for prefers_first in [is_caller, !is_caller] {
                if prefers_first {
                    let taken = lock(&first).take();
                    if let Some(first) = taken {
                        let value = first();
                        *lock(&result) = Some(value);
                        return;
                    }
                } else {
                    let taken = lock(&second).take();
                    if let Some(second) = taken {
                        return second();
                    }
                }
            }
        };
        self.install(|| for_each(2, 1, task));
        result
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .expect("`first` ran, or its panic was passed on")
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .field("cores", &self.cores)
            .finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.team.shut_down();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks.
            let _ = worker.join();
        }
    }
}

/// A guard: while it exists, this thread has the pool installed.
struct Installed<'a> {
    pool: &'a Pool,
    _lock: MutexGuard<'a, ()>,
    /// The previously installed pool of this thread.
    outer: Option<Current>,
    /// The cores of this thread before, if they were changed.
    cores: Option<Cores>,
}

impl<'a> Installed<'a> {
    fn new(pool: &'a Pool) -> Self {
        let guard = lock(&pool.installed);
        pool.owner.store(this_thread(), Ordering::Relaxed);
        let cores = pool.cores.and_then(|cores| {
            let before = Cores::of_this_thread()?;
            cores.keep_this_thread().is_ok().then_some(before)
        });
        let outer = Current::new(&pool.team, pool.threads()).replace();
        Self {
            pool,
            _lock: guard,
            outer: Some(outer),
            cores,
        }
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            outer.replace();
        }
        self.pool.owner.store(0, Ordering::Relaxed);
        let _ = self
            .cores
            .take()
            .map_or(Ok(()), |cores| cores.keep_this_thread());
    }
}

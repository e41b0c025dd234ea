//! The state of a team in one atomic word, and its transitions: see [the protocol](super#the-protocol).
//!
//! All transitions are read-modify-write operations on this one word. Each therefore acts on the latest state, and none
//! of them needs sequential consistency.

use crate::sync::{AtomicU64, Ordering};

/// The state at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

/// One active worker; the lowest 15 bits count them.
const ACTIVE: u64 = 1;
/// One sleeping worker; the next 15 bits count them.
const SLEEPING: u64 = 1 << 15;
/// Flag: the pool is being dropped.
const SHUT_DOWN: u64 = 1 << 30;
/// Flag: the job accepts workers.
const OPEN: u64 = 1 << 31;
/// One job; the upper 32 bits are the job's number, which wraps around.
const JOB: u64 = 1 << 32;

/// Maximum number of workers that a state can count.
pub(super) const MAX_WORKERS: usize = (SLEEPING / ACTIVE) as usize - 1;

impl State {
    /// Returns the job's number; zero before the first one.
    pub(super) fn job(self) -> u64 {
        self.0 / JOB
    }

    pub(super) fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    pub(super) fn is_shut_down(self) -> bool {
        self.0 & SHUT_DOWN != 0
    }

    /// Returns the number of workers that sleep or are about to.
    fn sleeping(self) -> u64 {
        self.0 % SHUT_DOWN / SLEEPING
    }

    /// Returns the number of workers that have entered the job and not left it.
    fn active(self) -> u64 {
        self.0 % SLEEPING
    }
}

/// The state that the threads of a team share.
pub(super) struct AtomicState(AtomicU64);

impl AtomicState {
    /// Creates a closed state, before the first job.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the state, without ordering: any action on it must be a transition.
    #[inline]
    pub(super) fn load(&self) -> State {
        State(self.0.load(Ordering::Relaxed))
    }

    /// Opens the next job. Returns whether a worker sleeps, which must then be woken. The previous job must be closed
    /// and have no active workers.
    ///
    /// Releases the job's description to workers that enter.
    #[inline]
    pub(super) fn publish(&self) -> bool {
        let before = State(self.0.fetch_add(JOB | OPEN, Ordering::Release));
        debug_assert!(
            !before.is_open() && before.active() == 0,
            "expected one job at a time"
        );
        before.sleeping() > 0
    }

    /// Enters the job of `seen` as a worker; returns false if it is already closed.
    #[inline]
    pub(super) fn enter(&self, seen: State) -> bool {
        let mut now = seen;
        while now.is_open() && now.job() == seen.job() {
            match self.0.compare_exchange_weak(
                now.0,
                now.0 + ACTIVE,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(other) => now = State(other),
            }
        }
        false
    }

    /// Leaves the job as a worker. Releases the writes of its tasks to the caller.
    #[inline]
    pub(super) fn leave(&self) {
        self.0.fetch_sub(ACTIVE, Ordering::Release);
    }

    /// Closes the job, so that no further worker enters it.
    #[inline]
    pub(super) fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Returns whether all workers have left; if so, acquires the writes of their tasks.
    #[inline]
    pub(super) fn all_left(&self) -> bool {
        State(self.0.load(Ordering::Acquire)).active() == 0
    }

    /// Registers a worker that is about to sleep and holds the lock that wakers take. Returns the latest state: if that
    /// has a new job, the worker must not wait, since its publisher did not count this worker.
    pub(super) fn begin_sleep(&self) -> State {
        State(self.0.fetch_add(SLEEPING, Ordering::Relaxed))
    }

    /// Registers that a worker no longer sleeps.
    pub(super) fn end_sleep(&self) {
        self.0.fetch_sub(SLEEPING, Ordering::Relaxed);
    }

    /// Makes workers return; there must be no job, now or later.
    pub(super) fn shut_down(&self) {
        self.0.fetch_or(SHUT_DOWN, Ordering::Relaxed);
    }
}

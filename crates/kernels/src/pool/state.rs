//! The state of a team in one atomic word, and its transitions: see [the protocol](super#the-protocol).
//!
//! All transitions are read-modify-write operations on this one word. Each therefore acts on the latest state, and none
//! of them needs sequential consistency.

use crate::sync::{AtomicU64, Ordering};

/// The state at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

/// One worker in the number of active ones, in the lowest 15 bits.
const ACTIVE: u64 = 1;
/// One worker in the number of sleeping ones, in the next 15 bits.
const SLEEPING: u64 = 1 << 15;
/// The pool is being dropped.
const SHUT_DOWN: u64 = 1 << 30;
/// The job accepts workers.
const OPEN: u64 = 1 << 31;
/// One in the job's number, in the upper 32 bits, which wraps around.
const JOB: u64 = 1 << 32;

/// Workers that a state can count.
pub(super) const MOST_WORKERS: usize = (SLEEPING / ACTIVE) as usize - 1;

impl State {
    /// The job's number; before the first one, zero.
    pub(super) fn job(self) -> u64 {
        self.0 / JOB
    }

    pub(super) fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    pub(super) fn is_shut_down(self) -> bool {
        self.0 & SHUT_DOWN != 0
    }

    /// Workers that sleep or are about to.
    fn sleeping(self) -> u64 {
        self.0 % SHUT_DOWN / SLEEPING
    }

    /// Workers that entered the job and have not left it.
    fn active(self) -> u64 {
        self.0 % SLEEPING
    }
}

/// The state that the threads of a team share.
pub(super) struct AtomicState(AtomicU64);

impl AtomicState {
    /// Closed, before the first job.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The state, without ordering: whoever acts on it does so by a transition.
    #[inline]
    pub(super) fn load(&self) -> State {
        State(self.0.load(Ordering::Relaxed))
    }

    /// Opens the next job. Returns whether a worker sleeps, which must then be woken. The job before is closed and has no
    /// active workers.
    ///
    /// Releases what describes the job to workers that enter.
    #[inline]
    pub(super) fn publish(&self) -> bool {
        let before = State(self.0.fetch_add(JOB | OPEN, Ordering::Release));
        debug_assert!(
            !before.is_open() && before.active() == 0,
            "one job at a time"
        );
        before.sleeping() > 0
    }

    /// A worker enters the job of `seen`; false if that is closed by now.
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

    /// A worker leaves the job. Releases what its tasks wrote to the caller.
    #[inline]
    pub(super) fn leave(&self) {
        self.0.fetch_sub(ACTIVE, Ordering::Release);
    }

    /// No worker enters the job any more.
    #[inline]
    pub(super) fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Whether all workers have left; if so, acquires what their tasks wrote.
    #[inline]
    pub(super) fn all_left(&self) -> bool {
        State(self.0.load(Ordering::Acquire)).active() == 0
    }

    /// A worker is about to sleep, while it holds the lock that wakers take. Returns the latest state: if that has a new
    /// job the worker must not wait, since whoever published it did not count this worker.
    pub(super) fn begin_sleep(&self) -> State {
        State(self.0.fetch_add(SLEEPING, Ordering::Relaxed))
    }

    /// A worker no longer sleeps.
    pub(super) fn end_sleep(&self) {
        self.0.fetch_sub(SLEEPING, Ordering::Relaxed);
    }

    /// Workers return; there is no job, and there will be none.
    pub(super) fn shut_down(&self) {
        self.0.fetch_or(SHUT_DOWN, Ordering::Relaxed);
    }
}

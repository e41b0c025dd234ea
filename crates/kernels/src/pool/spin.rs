//! The spinning of threads: the only part of the protocol that depends on time. Under loom, which has no clock, a
//! worker checks once before it sleeps.

use crate::sync::{spin_loop, yield_now};

/// Iterations between two reads of the clock, or two calls of `yield_now`.
const ITERATIONS: u32 = 64;
/// Iterations before a thread that waits for another one's task first calls `yield_now`.
const ITERATIONS_BEFORE_YIELD: u32 = 64 * ITERATIONS;

/// Time that a worker without a job spins before it sleeps: longer than the time between two operators of a pass.
#[cfg(not(loom))]
pub(super) const SPIN: std::time::Duration = std::time::Duration::from_micros(200);

/// Spins for [`SPIN`].
pub(super) struct SpinBeforeSleep {
    iterations: u32,
    #[cfg(not(loom))]
    start: std::time::Instant,
}

impl SpinBeforeSleep {
    pub(super) fn new() -> Self {
        Self {
            iterations: 0,
            #[cfg(not(loom))]
            start: std::time::Instant::now(),
        }
    }

    /// Spins once; returns false when the time is over.
    #[inline]
    pub(super) fn again(&mut self) -> bool {
        spin_loop();
        self.iterations = self.iterations.wrapping_add(1);
        #[cfg(not(loom))]
        let again = !self.iterations.is_multiple_of(ITERATIONS) || self.start.elapsed() < SPIN;
        #[cfg(loom)]
        let again = false;
        again
    }
}

/// Spins until `is_done`.
#[inline]
pub(super) fn spin_until(is_done: impl Fn() -> bool) {
    let mut iterations = 0u32;
    while !is_done() {
        iterations = iterations.saturating_add(1);
        if iterations > ITERATIONS_BEFORE_YIELD && iterations.is_multiple_of(ITERATIONS) {
            // The other thread may have no core but this one.
            yield_now();
        }
        spin_loop();
    }
}

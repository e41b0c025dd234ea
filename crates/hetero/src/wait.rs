//! How a worker waits for tasks of other processors (HeteroLLM, §4.2): it blocks until it is woken, or sleeps for most
//! of the expected time and then polls.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How a worker without a task waits for other processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// It blocks until it is woken. Uses no CPU time, but waking up takes the system a while.
    Blocking,
    /// It sleeps until shortly before another processor's task is expected to end, and then polls. It is woken if the
    /// task ends earlier, or much later. After a task that ends all work it polls for a moment.
    Predicted,
}

impl Wait {
    /// All ways to wait.
    pub const ALL: [Self; 2] = [Self::Blocking, Self::Predicted];

    /// Returns the name for output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Predicted => "predicted",
        }
    }
}

/// How long a worker polls after the expected time, or if none is known, before it blocks. Falling asleep and waking up
/// takes as long as a small task.
pub(super) const POLL: Duration = Duration::from_micros(200);
/// How long a worker polls before it yields its core: yielding it and getting it back takes as long as a join.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// How long before the expected end a worker wakes up, in time and as a share of the wait: the system sleeps some 50 µs
/// longer than requested, and task times vary by a few percent.
const MARGIN: (Duration, f64) = (Duration::from_micros(100), 0.05);

/// The time a worker spent waiting for other processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitUse {
    /// How often a worker waited for a task of another processor.
    pub waits: u64,
    /// Seconds of sleep until a predicted time.
    pub slept_seconds: f64,
    /// Seconds of polling.
    pub polled_seconds: f64,
    /// Seconds blocked until woken.
    pub blocked_seconds: f64,
    /// Seconds between the end of a task and its detection, in total.
    pub late_seconds: f64,
    /// Seconds between the predicted end of a task and its end, in total.
    pub error_seconds: f64,
}

impl WaitUse {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            waits: self.waits + other.waits,
            slept_seconds: self.slept_seconds + other.slept_seconds,
            polled_seconds: self.polled_seconds + other.polled_seconds,
            blocked_seconds: self.blocked_seconds + other.blocked_seconds,
            late_seconds: self.late_seconds + other.late_seconds,
            error_seconds: self.error_seconds + other.error_seconds,
        }
    }

    /// Returns the difference from `before`.
    #[must_use]
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            waits: self.waits - before.waits,
            slept_seconds: self.slept_seconds - before.slept_seconds,
            polled_seconds: self.polled_seconds - before.polled_seconds,
            blocked_seconds: self.blocked_seconds - before.blocked_seconds,
            late_seconds: self.late_seconds - before.late_seconds,
            error_seconds: self.error_seconds - before.error_seconds,
        }
    }
}

/// Returns how long to sleep and when to stop polling, for an event at an expected time, if that is known.
pub(super) fn sleep_and_poll(
    now: Instant,
    expected: Option<Instant>,
) -> (Option<Duration>, Instant) {
    let Some(left) = expected.map(|expected| expected.saturating_duration_since(now)) else {
        return (None, now + POLL);
    };
    let sleep = left.saturating_sub(MARGIN.0.max(left.mul_f64(MARGIN.1)));
    // Shorter sleeps take longer than requested.
    let sleep = (sleep >= MARGIN.0).then_some(sleep);
    (sleep, now + left + POLL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_before_what_is_expected_and_polling_after_it() {
        let now = Instant::now();
        for micros in [0, 50, 150, 199, 201, 500, 1000, 10_000, 10_000_000] {
            let left = Duration::from_micros(micros);
            let (sleep, polled) = sleep_and_poll(now, Some(now + left));
            let sleep = sleep.unwrap_or(Duration::ZERO);
            assert!(sleep == Duration::ZERO || sleep >= MARGIN.0, "{micros}");
            assert!(sleep + MARGIN.0.min(left) <= left, "{micros}: {sleep:?}");
            assert_eq!(polled, now + left + POLL);
            let margin = MARGIN.0.max(left.mul_f64(MARGIN.1));
            assert!(
                left.saturating_sub(sleep) <= margin + MARGIN.0,
                "{micros}: polls for long after {sleep:?}"
            );
        }
        assert_eq!(
            sleep_and_poll(now, Some(now + Duration::from_micros(500))).0,
            Some(Duration::from_micros(400))
        );
        assert_eq!(
            sleep_and_poll(now + POLL, Some(now)),
            (None, now + 2 * POLL),
            "late"
        );
        assert_eq!(sleep_and_poll(now, None), (None, now + POLL));
    }
}

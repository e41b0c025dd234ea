//! How a worker waits for what other processors compute (HeteroLLM, §4.2): blocked until it is woken, or asleep for most
//! of the time that the other one is expected to take, and then polling.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How a worker without a task waits for those of other processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Until it is woken. Nothing is spent, but to wake up takes the system a while.
    Blocking,
    /// It sleeps until shortly before the next task of another processor is expected to end, and polls from then on.
    /// Where one ends earlier, or far later, it is woken. Behind a task that ends all work it polls for a moment.
    Predicted,
}

impl Wait {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Blocking, Self::Predicted];

    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Predicted => "predicted",
        }
    }
}

/// How long a worker polls for what was expected by now, or was not expected at any time, before it blocks: falling
/// asleep and waking up takes as long as a small task.
pub(super) const POLL: Duration = Duration::from_micros(200);
/// How long it polls without giving its core to others: to give it away and get it back takes as long as a join.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// How long before the expected end it wakes up: a sleep of the system takes longer than asked for by some 50 µs, and
/// tasks vary by a few percent.
const MARGIN: (Duration, f64) = (Duration::from_micros(100), 0.05);

/// What waiting for other processors took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitUse {
    /// Times that a worker waited for a task of another processor.
    pub waits: u64,
    /// Seconds asleep for a predicted time.
    pub slept_seconds: f64,
    /// Seconds of polling.
    pub polled_seconds: f64,
    /// Seconds blocked until woken.
    pub blocked_seconds: f64,
    /// Seconds between an end and its being noticed, of all waits together.
    pub late_seconds: f64,
    /// How far ends were from what was predicted, in seconds, of all waits together.
    pub error_seconds: f64,
}

impl WaitUse {
    /// Both together.
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

    /// Since it was `before`.
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

/// How long to sleep and when to stop polling, for something that is expected at a time, if that is known.
pub(super) fn sleep_and_poll(
    now: Instant,
    expected: Option<Instant>,
) -> (Option<Duration>, Instant) {
    let Some(left) = expected.map(|expected| expected.saturating_duration_since(now)) else {
        return (None, now + POLL);
    };
    let sleep = left.saturating_sub(MARGIN.0.max(left.mul_f64(MARGIN.1)));
    // Shorter ones are longer than asked for.
    let sleep = (sleep >= MARGIN.0).then_some(sleep);
    (sleep, now + left + POLL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_before_what_is_expected_and_polling_behind_it() {
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
                "{micros}: polls for long behind {sleep:?}"
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

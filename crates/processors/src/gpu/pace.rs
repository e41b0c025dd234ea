//! Time slices: how much work fits into a submission that is to take no longer than a given time, so that what others
//! submit to the GPU, such as the frames of a game, does not wait for long (HeteroLLM, §5.5).
//!
//! What work takes is learnt from how long submissions took. Another application's work may have run in between, so what is
//! faster than expected is believed at once, and what is slower little by little.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// What a unit of work, a multiplication or addition, takes before anything is known: so much that the first submissions
/// are short on any GPU.
const GUESS: f64 = 1e-9;
/// How much of a difference is believed of what took longer than expected.
const GAIN: f64 = 0.1;
/// Nothing takes less, so that an expectation of nothing can be corrected.
const LEAST: f64 = 1e-18;

/// What kinds of work take, by what submissions took.
#[derive(Debug)]
pub(super) struct Pace<K> {
    slice: f64,
    /// Of a unit of each kind.
    seconds: HashMap<K, f64>,
}

impl<K: Copy + Eq + Hash> Pace<K> {
    /// For submissions of at most about this time.
    pub fn new(slice: Duration) -> Self {
        Self {
            slice: slice.as_secs_f64(),
            seconds: HashMap::new(),
        }
    }

    /// Whether work of so many expected seconds fits into a submission.
    pub fn fits(&self, seconds: f64) -> bool {
        seconds <= self.slice
    }

    /// What so many units are expected to take.
    pub fn seconds(&self, kind: K, units: f64) -> f64 {
        units * self.of_unit(kind)
    }

    /// How many of `count` things of `units` each go into a submission: in multiples of `step`, and one step at least.
    pub fn count(&self, kind: K, units: f64, count: usize, step: usize) -> usize {
        // As many as may be are no problem: a float that is too large becomes the largest integer.
        let fitting = (self.slice / self.seconds(kind, units)) as usize;
        (fitting / step * step).max(step).min(count)
    }

    /// A submission of so many units of each kind took so long.
    pub fn learn(&mut self, done: &[(K, f64)], seconds: f64) {
        let expected: f64 = done
            .iter()
            .map(|(kind, units)| self.seconds(*kind, *units))
            .sum();
        if expected <= 0.0 || !seconds.is_finite() {
            return;
        }
        let error = seconds / expected - 1.0;
        let believed = if error < 0.0 { error } else { GAIN * error };
        let shares: Vec<_> = done
            .iter()
            .map(|(kind, units)| (*kind, self.seconds(*kind, *units) / expected))
            .collect();
        for (kind, share) in shares {
            // What had most of the time has most of the error.
            let of_unit = self.of_unit(kind) * (1.0 + share * believed);
            self.seconds.insert(kind, of_unit.max(LEAST));
        }
    }

    fn of_unit(&self, kind: K) -> f64 {
        self.seconds.get(&kind).copied().unwrap_or(GUESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(4);

    #[test]
    fn submissions_get_as_long_as_the_slice_whatever_the_speed_of_the_gpu() {
        for true_seconds in [1e-13, 3e-11, 1e-9, 2e-8] {
            let mut pace = Pace::new(SLICE);
            let mut latest = 0.0;
            for _ in 0..200 {
                let count = pace.count('m', 1e4, usize::MAX, 64);
                latest = count as f64 * 1e4 * true_seconds;
                pace.learn(&[('m', count as f64 * 1e4)], latest);
            }
            // One step, 64 things, may be longer than the slice.
            let longest = SLICE.as_secs_f64().max(64.0 * 1e4 * true_seconds);
            assert!(
                latest <= 1.01 * longest && latest > 0.8 * longest,
                "{true_seconds}: {latest}"
            );
        }
    }

    #[test]
    fn the_first_submissions_are_short_and_one_that_was_kept_waiting_changes_little() {
        let mut pace = Pace::new(SLICE);
        assert_eq!(pace.count('m', 1e6, 100, 1), 4);
        pace.learn(&[('m', 4e6)], 4e-5);
        let before = pace.count('m', 1e6, usize::MAX, 1);
        assert!((399..=400).contains(&before), "{before}");
        // Somebody else's frame ran first.
        pace.learn(&[('m', 4e8)], 4e-3 + 3e-3);
        assert!(pace.count('m', 1e6, usize::MAX, 1) > before * 9 / 10);
        assert!(pace.count('m', 1e6, usize::MAX, 1) < before);
    }

    #[test]
    fn there_is_always_a_step_and_never_more_than_there_is() {
        let pace = Pace::new(Duration::from_nanos(1));
        assert_eq!(pace.count('m', 1e12, 1000, 64), 64);
        assert_eq!(pace.count('m', 1e12, 10, 64), 10);
        assert_eq!(Pace::new(SLICE).count('m', 1e-9, 1000, 64), 1000);
    }
}

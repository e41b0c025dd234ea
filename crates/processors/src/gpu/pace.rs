//! Time slices. Estimates how much work fits into a submission of limited length, so that other submissions to the GPU,
//! such as the frames of a game, do not wait for long (HeteroLLM, §5.5).
//!
//! The cost of work is learnt from the duration of submissions. Another application's work may have run in between. So
//! a shorter time than expected is adopted at once, and a longer one only gradually.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Initial estimate of the seconds of a unit of work (one multiplication or addition). It is so high that the first
/// submissions are short on any GPU.
const GUESS: f64 = 1e-9;
/// Fraction of the relative error that is adopted when a submission took longer than expected.
const GAIN: f64 = 0.1;
/// Lower bound of an estimate, so that an estimate of zero can be corrected.
const MIN: f64 = 1e-18;

/// Estimated cost of each kind of work.
#[derive(Debug)]
pub(super) struct Pace<K> {
    slice: f64,
    /// Seconds per unit of each kind.
    seconds: HashMap<K, f64>,
}

impl<K: Copy + Eq + Hash> Pace<K> {
    /// Creates estimates for submissions of at most about `slice`.
    pub fn new(slice: Duration) -> Self {
        Self {
            slice: slice.as_secs_f64(),
            seconds: HashMap::new(),
        }
    }

    /// Returns whether work of `seconds` expected seconds fits into a submission.
    pub fn fits(&self, seconds: f64) -> bool {
        seconds <= self.slice
    }

    /// Returns the expected seconds of `units` units.
    pub fn seconds(&self, kind: K, units: f64) -> f64 {
        units * self.of_unit(kind)
    }

    /// Returns how many of `count` items of `units` units each go into a submission: a multiple of `step`, and at least
    /// one step, but at most `count`.
    pub fn count(&self, kind: K, units: f64, count: usize, step: usize) -> usize {
        // If the quotient exceeds the integer range, the cast saturates.
        let fitting = (self.slice / self.seconds(kind, units)) as usize;
        (fitting / step * step).max(step).min(count)
    }

    /// Updates the estimates from a submission of these units that took `seconds`.
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
            // Distributes the error in proportion to the expected time.
            let of_unit = self.of_unit(kind) * (1.0 + share * believed);
            self.seconds.insert(kind, of_unit.max(MIN));
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
            // One step of 64 items may take longer than the slice.
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
        // Simulates another application's frame that ran first.
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

//! Decides whether decode steps that a plan cuts are cut: compares recent times of cut and of whole steps. Plans use
//! the times that `triad profile` measured. If another program uses one of the processors, each step waits for the part
//! of that processor.

use triad_kernels::timing::median;

/// Maximum steps of each kind that are compared.
const LATEST: usize = 5;
/// Minimum steps of the other kind before it can be preferred.
const FEWEST: usize = 3;
/// One in this many steps is of the other kind: before that has run [`FEWEST`] times, and afterwards.
const EVERY: [usize; 2] = [4, 64];
/// The other kind is preferred if it takes less than this share of the time: single steps differ by more.
const WORTH_IT: f64 = 0.97;

/// Alternates between cut and whole steps. Steps are cut until both kinds have been measured.
#[derive(Debug, Default)]
pub(super) struct CutSelector {
    /// Seconds of the latest steps: whole ones, and cut ones.
    taken: [Vec<f64>; 2],
    prefers_whole: bool,
    steps: usize,
}

impl CutSelector {
    /// Returns whether the next step is cut.
    pub(super) fn next_is_cut(&mut self) -> bool {
        self.steps += 1;
        let is_known = self.taken[usize::from(self.prefers_whole)].len() >= FEWEST;
        // The kind that is not preferred is the rarer one.
        let is_tried = self.steps.is_multiple_of(EVERY[usize::from(is_known)]);
        is_tried == self.prefers_whole
    }

    /// Records the seconds of a step.
    pub(super) fn observe(&mut self, is_cut: bool, seconds: f64) {
        let taken = &mut self.taken[usize::from(is_cut)];
        if taken.len() == LATEST {
            taken.remove(0);
        }
        taken.push(seconds);
        let [preferred, other] = [!self.prefers_whole, self.prefers_whole]
            .map(|is_cut| &self.taken[usize::from(is_cut)]);
        if other.len() >= FEWEST
            && !preferred.is_empty()
            && median(other) < WORTH_IT * median(preferred)
        {
            self.prefers_whole = !self.prefers_whole;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs steps of the given seconds, whole or cut; returns the share of those that were cut.
    fn run(trial: &mut CutSelector, steps: usize, mut seconds: impl FnMut(bool) -> f64) -> f64 {
        let mut cut = 0;
        for _ in 0..steps {
            let is_cut = trial.next_is_cut();
            cut += usize::from(is_cut);
            trial.observe(is_cut, seconds(is_cut));
        }
        cut as f64 / steps as f64
    }

    #[test]
    fn the_first_steps_are_cut() {
        let mut trial = CutSelector::default();
        assert_eq!(
            [(); 5].map(|()| trial.next_is_cut()),
            [true, true, true, false, true]
        );
    }

    proptest! {
        #[test]
        fn steps_are_of_the_faster_kind_but_for_one_in_sixty_four(
            whole in 0.001f64..0.1, cut in 0.001f64..0.1, noise in prop::collection::vec(0.98f64..1.02, 1000),
        ) {
            prop_assume!((cut / whole).ln().abs() > 0.1);
            let mut noise = noise.into_iter().cycle();
            let mut trial = CutSelector::default();
            run(&mut trial, 20, |is_cut| noise.next().unwrap() * if is_cut { cut } else { whole });
            let share = run(&mut trial, 640, |is_cut| noise.next().unwrap() * if is_cut { cut } else { whole });
            prop_assert_eq!(share, if cut < whole { 630.0 / 640.0 } else { 10.0 / 640.0 });
        }

        #[test]
        fn a_kind_that_becomes_slower_is_left_and_taken_again(slower in 1.2f64..5.0) {
            let mut trial = CutSelector::default();
            run(&mut trial, 100, |is_cut| if is_cut { 1.0 } else { 1.5 });
            for (cut, whole) in [(1.5 * slower, 1.5), (1.0, 1.5)] {
                let seconds = |is_cut| if is_cut { cut } else { whole };
                // Enough tries to change the median of the latest.
                run(&mut trial, 64 * LATEST, seconds);
                let share = run(&mut trial, 640, seconds);
                prop_assert!((share < 0.5) == (whole < cut), "{share} are cut");
            }
        }
    }
}

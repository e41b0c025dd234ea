//! Which steps of decode are cut, where a plan cuts them: whichever took less lately. A plan goes by what `triad profile` measured;
//! another program on one of the processors makes each step wait for the part of that one.

use triad_kernels::timing::median;

/// Steps of each kind that are compared, at most.
const LATEST: usize = 5;
/// Steps of the other kind that are needed to prefer it, at least.
const FEWEST: usize = 3;
/// The other kind is tried once in so many steps: while it has run less than [`FEWEST`] times, and later.
const EVERY: [usize; 2] = [4, 64];
/// The other kind is preferred where it takes less than this share of the time: single steps differ by more.
const WORTH_IT: f64 = 0.97;

/// Two kinds of steps in turns. Until both have been measured, steps are cut.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// What the latest steps took, in seconds: whole ones, and cut ones.
    taken: [Vec<f64>; 2],
    prefers_whole: bool,
    steps: usize,
}

impl Trial {
    /// Whether the next step is cut.
    pub(super) fn next_is_cut(&mut self) -> bool {
        self.steps += 1;
        let is_known = self.taken[usize::from(self.prefers_whole)].len() >= FEWEST;
        // The rarer kind is the one that is not preferred.
        let is_tried = self.steps.is_multiple_of(EVERY[usize::from(is_known)]);
        is_tried == self.prefers_whole
    }

    /// A step took so many seconds.
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

    /// Runs steps that take so long, whole and cut; returns the share of those that were cut.
    fn run(trial: &mut Trial, steps: usize, mut seconds: impl FnMut(bool) -> f64) -> f64 {
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
        let mut trial = Trial::default();
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
            let mut trial = Trial::default();
            run(&mut trial, 20, |is_cut| noise.next().unwrap() * if is_cut { cut } else { whole });
            let share = run(&mut trial, 640, |is_cut| noise.next().unwrap() * if is_cut { cut } else { whole });
            prop_assert_eq!(share, if cut < whole { 630.0 / 640.0 } else { 10.0 / 640.0 });
        }

        #[test]
        fn a_kind_that_becomes_slower_is_left_and_taken_again(slower in 1.2f64..5.0) {
            let mut trial = Trial::default();
            run(&mut trial, 100, |is_cut| if is_cut { 1.0 } else { 1.5 });
            for (cut, whole) in [(1.5 * slower, 1.5), (1.0, 1.5)] {
                let seconds = |is_cut| if is_cut { cut } else { whole };
                // As many tries as make the middle one of the latest.
                run(&mut trial, 64 * LATEST, seconds);
                let share = run(&mut trial, 640, seconds);
                prop_assert!((share < 0.5) == (whole < cut), "{share} are cut");
            }
        }
    }
}

//! The arithmetic in which each token of a session was computed.

use std::ops::Range;

use triad_kernels::Phase;

/// The ends of runs of tokens that were computed in one arithmetic: prompt, answer, prompt and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    /// Ascending; the first run is a prompt, and may be empty.
    ends: Vec<usize>,
}

impl Phases {
    /// Creates the runs with these ends. Returns `None` if they do not ascend to `tokens`.
    pub(crate) fn new(ends: Vec<usize>, tokens: usize) -> Option<Self> {
        let is_valid = ends.is_sorted_by(|end, next| end < next)
            && ends.last().copied().unwrap_or(0) == tokens;
        is_valid.then_some(Self { ends })
    }

    /// Returns the ends of the runs.
    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Returns the number of leading tokens that were computed as a prompt.
    pub(crate) fn prefilled(&self) -> usize {
        self.ends.first().copied().unwrap_or(0)
    }

    /// Adds tokens up to `end`.
    pub(crate) fn extend(&mut self, end: usize, phase: Phase) {
        let place = self.ends.len().checked_sub(1);
        match place {
            Some(place) if phase_of(place) == phase => self.ends[place] = end,
            Some(_) => self.ends.push(end),
            None => {
                if phase == Phase::Decode {
                    self.ends.push(0);
                }
                self.ends.push(end);
            }
        }
    }

    /// Forgets the tokens from `length` on.
    pub(crate) fn truncate(&mut self, length: usize) {
        let is_whole = |end: &&usize| **end < length;
        let whole = self.ends.iter().take_while(is_whole).count();
        if let Some(end) = self.ends.get_mut(whole) {
            *end = length;
            self.ends.truncate(whole + 1);
        }
        if length == 0 {
            self.ends.clear();
        }
    }

    /// Returns the tokens from `position` on that were computed like the one there, and how.
    pub(crate) fn run_at(&self, position: usize) -> Option<(Range<usize>, Phase)> {
        let place = self.ends.iter().position(|end| *end > position)?;
        Some((position..self.ends[place], phase_of(place)))
    }
}

fn phase_of(place: usize) -> Phase {
    if place.is_multiple_of(2) {
        Phase::Prefill
    } else {
        Phase::Decode
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_token_keeps_the_arithmetic_in_which_it_was_computed(
            steps in prop::collection::vec((any::<bool>(), 1usize..9, 0f64..1.0), 0..12),
        ) {
            let (mut phases, mut expected) = (Phases::default(), Vec::new());
            for (is_prompt, count, kept) in steps {
                let phase = if is_prompt { Phase::Prefill } else { Phase::Decode };
                expected.extend(std::iter::repeat_n(phase, count));
                phases.extend(expected.len(), phase);
                if kept < 0.5 {
                    expected.truncate((2.0 * kept * expected.len() as f64) as usize);
                    phases.truncate(expected.len());
                }
                let prompt = expected.iter().take_while(|phase| **phase == Phase::Prefill).count();
                prop_assert_eq!(phases.prefilled(), prompt);
                prop_assert_eq!(Phases::new(phases.ends.clone(), expected.len()), Some(phases.clone()));
                let mut found = Vec::new();
                while let Some((run, phase)) = phases.run_at(found.len()) {
                    prop_assert!(!run.is_empty());
                    found.extend(run.map(|_| phase));
                }
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}

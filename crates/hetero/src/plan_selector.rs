//! Selects plans of prompts by how much longer than expected they took recently: by kind for several processors, and
//! for each processor alone. The joint search uses the times that `triad profile` measured. If another program uses one
//! of the processors, now or while the profile was made, prompts on several processors wait for the slowest one.

use std::collections::BTreeMap;

use triad_plan::joint::{Candidate, CandidateId, fastest};

/// The number of latest prompts of a plan that count. [`Bucket::multiple`] says how missing ones count.
const LATEST: usize = 3;
/// The number of later prompts of about the same length for which a prompt's time counts.
const COUNTS_FOR: usize = 64;
/// One prompt in `EVERY` is computed by another kind of plan, unless that is expected to take longer than `TRIED` times
/// the fastest by the measurements, or than `TRIED_LATE` times by what is known since.
const EVERY: usize = 16;
const TRIED: f64 = 1.25;
const TRIED_LATE: f64 = 2.0;
/// If several processors take `LATE` times as long as expected, each processor alone is tried, unless it was measured
/// to take longer than `TRIED_ALONE` times that.
const LATE: f64 = 1.1;
const TRIED_ALONE: f64 = 4.0;

/// Times of prompts as multiples of the expected times, by length in steps of half an octave.
#[derive(Debug, Default)]
pub(super) struct PlanSelector(BTreeMap<i32, Bucket>);

/// Prompts of about one length.
#[derive(Debug, Default)]
struct Bucket {
    prompts: usize,
    plans: BTreeMap<CandidateId, Runs>,
}

/// The latest prompts of a plan, by their numbers in the bucket.
#[derive(Debug, Default)]
struct Runs {
    all: Vec<usize>,
    /// The undisturbed ones, with their multiples of the expected time.
    measured: Vec<(usize, f64)>,
}

impl PlanSelector {
    /// Records a prompt that has ended, and the multiple of its expected time if that is known and nothing disturbed
    /// it.
    pub(super) fn ran(&mut self, rows: usize, id: CandidateId, multiple: Option<f64>) {
        let bucket = self.0.entry(half_octave(rows)).or_default();
        let runs = bucket.plans.entry(id).or_default();
        push(&mut runs.all, bucket.prompts);
        multiple
            .into_iter()
            .for_each(|multiple| push(&mut runs.measured, (bucket.prompts, multiple)));
        bucket.prompts += 1;
    }

    /// Returns the plan of the next prompt of `rows` rows.
    pub(super) fn choose(&self, rows: usize, candidates: &[Candidate]) -> CandidateId {
        let Some(bucket) = self.0.get(&half_octave(rows)) else {
            return fastest(candidates, |_| 1.0);
        };
        let best = fastest(candidates, |id| bucket.multiple(id));
        let measured = |id| {
            candidates
                .iter()
                .find(|one| one.id == id)
                .and_then(Candidate::measured_seconds)
        };
        let takes_at_most = |id, times: f64| {
            measured(id)
                .zip(measured(best))
                .is_some_and(|(other, best)| other <= times * best)
        };
        let late = bucket.multiple(best);
        let of = |is_tried: &dyn Fn(CandidateId) -> bool| {
            let tried: Vec<_> = candidates
                .iter()
                .filter(|one| is_tried(one.id))
                .copied()
                .collect();
            (!tried.is_empty()).then(|| fastest(&tried, |id| bucket.multiple(id)))
        };
        let is_alone = |id: CandidateId| {
            id.is_alone() && bucket.runs(id) <= LATEST / 2 && takes_at_most(id, TRIED_ALONE * late)
        };
        if !best.is_alone()
            && late > LATE
            && let Some(alone) = of(&is_alone)
        {
            return alone;
        }
        if !(bucket.prompts + 1).is_multiple_of(EVERY) {
            return best;
        }
        // A single processor is compared with several: a disturbance of one kind of these mostly affects all of that
        // kind.
        let is_other = |id: CandidateId| {
            id.is_alone() != best.is_alone()
                && takes_at_most(id, TRIED)
                && takes_at_most(id, TRIED_LATE * late / bucket.multiple(id))
        };
        of(&is_other).unwrap_or(best)
    }
}

impl Bucket {
    /// Returns how many of the latest prompts used a plan, disturbed or not; [`LATEST`] at most.
    fn runs(&self, id: CandidateId) -> usize {
        let all = self.plans.get(&id).into_iter().flat_map(|runs| &runs.all);
        all.filter(|prompt| *prompt + COUNTS_FOR > self.prompts)
            .count()
    }

    /// Returns the multiples of the latest undisturbed prompts of a plan, as far as they count.
    fn latest(&self, id: CandidateId) -> Vec<f64> {
        let measured = self
            .plans
            .get(&id)
            .into_iter()
            .flat_map(|runs| &runs.measured);
        measured
            .filter(|(prompt, _)| prompt + COUNTS_FOR > self.prompts)
            .map(|(_, multiple)| *multiple)
            .collect()
    }

    /// Returns the multiple of the expected time that a plan takes. If nothing is known, a single processor is on time,
    /// and several are as late as the least late plan of several processors with enough known times.
    fn multiple(&self, id: CandidateId) -> f64 {
        let of = |mut latest: Vec<f64>, missing: f64| {
            latest.resize(LATEST, missing);
            latest.sort_by(f64::total_cmp);
            latest[LATEST / 2]
        };
        let several = self
            .plans
            .keys()
            .filter(|id| !id.is_alone())
            .map(|id| self.latest(*id));
        let known = several.filter(|latest| latest.len() > LATEST / 2);
        let missing = match id.is_alone() {
            true => 1.0,
            false => known
                .map(|latest| of(latest, 1.0))
                .min_by(f64::total_cmp)
                .unwrap_or(1.0),
        };
        of(self.latest(id), missing)
    }
}

/// Appends to the latest, and removes the first if there are too many.
fn push<T>(latest: &mut Vec<T>, one: T) {
    if latest.len() == LATEST {
        latest.remove(0);
    }
    latest.push(one);
}

/// Returns the number of half octaves up to a length.
fn half_octave(rows: usize) -> i32 {
    (2.0 * (rows as f64).log2()).floor() as i32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use triad_plan::joint::Kind;
    use triad_plan::partition::energy::Objective;
    use triad_plan::processors::ProcessorId;

    use super::*;

    const FIRST: CandidateId = CandidateId::alone(ProcessorId::new(0));
    const SECOND: CandidateId = CandidateId::alone(ProcessorId::new(1));

    /// One processor takes `alone` times as long as the fastest two plans of several.
    fn candidates(alone: f64) -> [Candidate; 3] {
        [
            (Kind::Mixed.into(), 1.0),
            (Kind::Tensor.into(), 1.01),
            (FIRST, alone),
        ]
        .map(candidate)
    }

    fn candidate((id, factor): (CandidateId, f64)) -> Candidate {
        Candidate {
            id,
            seconds: 0.1,
            factor: Some(factor),
            joules: None,
            objective: Objective::Latency,
        }
    }

    /// Returns the plans of some prompts, with the given multiples of the measured time; `None`: others run
    /// concurrently.
    fn run<M: Into<Option<f64>>>(
        plan_selector: &mut PlanSelector,
        (rows, prompts): (usize, usize),
        candidates: &[Candidate],
        mut multiple: impl FnMut(CandidateId) -> M,
    ) -> Vec<CandidateId> {
        let prompt = |_| {
            let id = plan_selector.choose(rows, candidates);
            plan_selector.ran(rows, id, multiple(id).into());
            id
        };
        (0..prompts).map(prompt).collect()
    }

    fn share(chosen: &[CandidateId], id: impl Into<CandidateId>) -> f64 {
        let id = id.into();
        chosen.iter().filter(|one| **one == id).count() as f64 / chosen.len() as f64
    }

    #[test]
    fn two_late_prompts_make_a_kind_late_and_one_does_not() {
        let mut plan_selector = PlanSelector::default();
        let mut late = [2.0, 1.0, 2.0, 2.0].into_iter();
        let chosen = run(&mut plan_selector, (300, 5), &candidates(1.5), |_| {
            late.next().unwrap_or(1.0)
        });
        let mixed = CandidateId::from(Kind::Mixed);
        assert_eq!(chosen, [mixed, mixed, mixed, FIRST, FIRST]);
        // Lengths in the same bucket.
        assert_eq!(
            [270, 350].map(|rows| plan_selector.choose(rows, &candidates(1.5))),
            [FIRST; 2]
        );
        assert_eq!(
            [250, 370].map(|rows| plan_selector.choose(rows, &candidates(1.5))),
            [mixed; 2]
        );
    }

    #[test]
    fn kinds_that_are_expected_to_take_much_longer_are_not_tried() {
        let chosen = run(
            &mut PlanSelector::default(),
            (64, 200),
            &candidates(TRIED + 0.01),
            |_| 1.0,
        );
        assert_eq!(share(&chosen, Kind::Mixed), 1.0);
        let chosen = run(
            &mut PlanSelector::default(),
            (64, 200),
            &candidates(TRIED - 0.01),
            |_| 1.0,
        );
        assert_eq!(share(&chosen, FIRST), 12.0 / 200.0);
    }

    #[test]
    fn one_processor_alone_is_tried_where_several_are_late_however_slow_it_was_when_it_was_measured()
     {
        // As if the profile was made while another program ran.
        let chosen = run(
            &mut PlanSelector::default(),
            (64, 40),
            &candidates(2.5),
            |id| {
                if id == FIRST { 0.4 } else { 1.6 }
            },
        );
        assert!(share(&chosen[2..], FIRST) > 0.9, "{chosen:?}");
        // If it is no faster than it was, once in a while; if it is far slower, never.
        let chosen = run(
            &mut PlanSelector::default(),
            (64, 400),
            &candidates(2.5),
            |_| 1.6,
        );
        assert!((0.02..0.04).contains(&share(&chosen, FIRST)), "{chosen:?}");
        let chosen = run(
            &mut PlanSelector::default(),
            (64, 400),
            &candidates(1.6 * TRIED_ALONE + 0.01),
            |_| 1.6,
        );
        assert_eq!(share(&chosen, FIRST), 0.0);
    }

    #[test]
    fn prompts_with_others_are_tried_as_seldom_as_others() {
        for (alone, late, before) in [
            (1.2, 1.0, 14),
            (1.2, 1.0, 15),
            (1.2, 1.0, 16),
            (1.5, 1.3, 2),
            (1.5, 1.3, 3),
        ] {
            let mut plan_selector = PlanSelector::default();
            run(&mut plan_selector, (64, before), &candidates(alone), |_| {
                late
            });
            let chosen = run(&mut plan_selector, (64, 160), &candidates(alone), |_| None);
            assert!(
                share(&chosen, FIRST) <= 0.075,
                "{late} late {before} times: {chosen:?}"
            );
        }
    }

    #[test]
    fn a_kind_that_is_known_to_be_late_or_was_never_measured_is_not_tried() {
        let mut plan_selector = PlanSelector::default();
        let slow = |id| if id == FIRST { 1.0 } else { 3.0 };
        let chosen = run(&mut plan_selector, (64, 40), &candidates(1.2), slow);
        assert_eq!(share(&chosen[2..], FIRST), 1.0, "{chosen:?}");
        let mut only_alone = candidates(1.2);
        only_alone[..2].iter_mut().for_each(|one| one.factor = None);
        let chosen = run(&mut PlanSelector::default(), (64, 40), &only_alone, |_| 1.0);
        assert_eq!(share(&chosen, FIRST), 1.0, "{chosen:?}");
    }

    #[test]
    fn of_several_processors_the_one_that_is_not_late_computes_alone() {
        // As with a program on the second processor: whatever waits for that is late.
        let busy = |id| if id == FIRST { 1.0 } else { 2.0 };
        for (several, fewest) in [(1.2, 0.9), (0.6, 0.85)] {
            let all = [(Kind::Mixed.into(), several), (SECOND, 1.0), (FIRST, 1.01)].map(candidate);
            let chosen = run(&mut PlanSelector::default(), (64, 200), &all, busy);
            assert!(share(&chosen, FIRST) > fewest, "{several}: {chosen:?}");
            assert!(share(&chosen[4..20], SECOND) < 0.1, "{several}: {chosen:?}");
        }
        // A processor is not used if it is slower by more than the other one is late.
        let all = [(Kind::Mixed.into(), 1.2), (SECOND, 1.0), (FIRST, 2.1)].map(candidate);
        let chosen = run(&mut PlanSelector::default(), (64, 200), &all, busy);
        assert_eq!(share(&chosen, FIRST), 0.0, "{chosen:?}");
    }

    proptest! {
        #[test]
        fn prompts_are_of_the_kind_that_is_fastest_as_they_run(
            alone in 1.06f64..1.2, several_late in 0.8f64..3.0, all_late in 0.5f64..3.0, rows in 1usize..5000,
            noise in prop::collection::vec(0.99f64..1.01, 100),
        ) {
            // Several processors are worth it if they are faster by this factor.
            let advantage = alone / (1.05 * several_late);
            prop_assume!(advantage.ln().abs() > 0.03);
            let mut noise = noise.into_iter().cycle();
            let multiple = |id| {
                let late = if id == FIRST { 1.0 } else { several_late };
                all_late * late * noise.next().unwrap()
            };
            let mut plan_selector = PlanSelector::default();
            let chosen = run(&mut plan_selector, (rows, 400), &candidates(alone), multiple);
            let of_alone = share(&chosen[40..], FIRST);
            prop_assert_eq!(of_alone < 0.5, advantage > 1.0, "{} by one alone", of_alone);
            prop_assert!(of_alone.min(1.0 - of_alone) < 0.08, "{of_alone} by one alone");
        }

        #[test]
        fn a_kind_that_was_late_for_a_while_is_taken_again(late in 1.3f64..4.0, alone in 1.06f64..3.0) {
            let mut plan_selector = PlanSelector::default();
            let slow = |id| if id == FIRST { 1.0 } else { late };
            run(&mut plan_selector, (512, 40), &candidates(alone), slow);
            run(&mut plan_selector, (512, 80), &candidates(alone), |_| 1.0);
            let chosen = run(&mut plan_selector, (512, 160), &candidates(alone), |_| 1.0);
            prop_assert!(share(&chosen, Kind::Mixed) > 0.9, "{chosen:?}");
        }
    }
}

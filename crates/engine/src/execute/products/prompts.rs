//! What whole prompts take by each kind of plan, beside what the joint search expects of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use triad_kernels::timing::median;
use triad_plan::joint::{Candidate, Kind, MeasuredPrompt};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::execute::Engine;
use crate::execute::profile::run_prompt;

/// The shortest prompt; others are two, four and more times as long.
const SHORTEST: usize = 64;
/// Kinds of plans that are expected to take longer than so many times the fastest are not measured.
const SLOWEST: f64 = 1.5;
/// Rounds of a length: as many as are expected to take so many seconds by the fastest plan, at least and at most so many. Plans
/// differ by less than prompts do among themselves.
const SECONDS: f64 = 1.0;
const ROUNDS: RangeInclusive<usize> = 3..=24;

/// What a prompt took in a round, and what the search expects of it.
#[derive(Clone, Copy)]
struct Taken {
    seconds: f64,
    simulated: f64,
}

/// The lengths of prompts that are measured, up to the context of an engine, with the kinds of plans of each and the seconds that
/// the fastest is expected to take. Nothing where prompts are not planned.
fn measured_kinds(engine: &Engine) -> Vec<(usize, Vec<Kind>, f64)> {
    let most = engine.session().context();
    let lengths = std::iter::successors(Some(SHORTEST.min(most)), |length| Some(2 * length));
    let kinds = |rows| {
        let candidates = &engine.planned(rows)?.plan.candidates;
        let fastest = candidates.first()?.seconds;
        let is_measured = |one: &&Candidate| one.id.is_alone() || one.seconds <= SLOWEST * fastest;
        let kinds: BTreeSet<Kind> = candidates
            .iter()
            .filter(is_measured)
            .map(|one| one.id.kind)
            .collect();
        Some((rows, kinds.into_iter().collect(), fastest))
    };
    lengths
        .take_while(|length| *length <= most)
        .map_while(kinds)
        .collect()
}

/// Runs prompts up to the context of an engine whose prompts are planned ([`EngineOptions::joint`]): of each length and
/// kind of plan `repeat`, at least three, and more of short ones, in turns, behind one that does not count. Returns how their
/// medians compare with what was expected. `progress` is called with the number of prompts that are done, and of all.
///
/// # Errors
/// If `cancel` is set, or a processor fails.
///
/// [`EngineOptions::joint`]: crate::EngineOptions::joint
pub fn measure_prompts(
    engine: &Engine,
    repeat: usize,
    cancel: &Cancel,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<MeasuredPrompt>> {
    let measured = measure(engine, repeat, cancel, &mut progress);
    engine.state().set_plan_kind(None);
    measured
}

/// The same, leaving the engine with what it measured last.
fn measure(
    engine: &Engine,
    repeat: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<MeasuredPrompt>> {
    let (mut session, mut measured, mut done) = (engine.session(), Vec::new(), 0);
    let costs = engine.costs();
    let all = measured_kinds(engine);
    let least = repeat.max(*ROUNDS.start());
    let rounds =
        |fastest: f64| ((SECONDS / fastest) as usize).clamp(least, least.max(*ROUNDS.end()));
    let prompts = all
        .iter()
        .map(|(_, kinds, fastest)| kinds.len() * (1 + rounds(*fastest)))
        .sum();
    for (rows, kinds, fastest) in all {
        let prompt = crate::execute::any_tokens(rows, engine.model().description().vocab);
        let mut taken = Vec::new();
        for round in 0..=rounds(fastest) {
            let mut of_round = BTreeMap::new();
            for kind in &kinds {
                engine.state().set_plan_kind(Some(*kind));
                // As a process begins with them: each prompt changes them.
                engine.set_costs(costs.clone());
                engine.plan_ahead(rows);
                let expected = engine
                    .planned(rows)
                    .filter(|planned| planned.plan.id.kind == *kind);
                let seconds = run_prompt(&mut session, &prompt, cancel)?
                    .timeline
                    .seconds();
                if let Some(planned) = expected {
                    of_round.insert(
                        *kind,
                        Taken {
                            seconds,
                            simulated: planned.plan.seconds,
                        },
                    );
                }
                done += 1;
                progress(done, prompts);
            }
            if round > 0 {
                taken.push(of_round);
            }
        }
        let prompt = MeasuredPrompt {
            rows,
            factors: factors(&taken),
        };
        // Of a clock that stood still, or a prompt that nothing was known of, nothing is learned.
        measured.extend(prompt.is_plausible().then_some(prompt));
    }
    Ok(measured)
}

/// Of each kind, what its prompts took as a multiple of what was expected, given rounds in turns. The times of several processors
/// are those of one alone by the median of the ratios in a round: a machine's speed changes from one round to the next by more
/// than kinds differ.
fn factors(rounds: &[BTreeMap<Kind, Taken>]) -> BTreeMap<Kind, f64> {
    let each = |value: &dyn Fn(&BTreeMap<Kind, Taken>) -> Option<f64>| {
        median(&rounds.iter().filter_map(value).collect::<Vec<_>>())
    };
    let multiple = |taken: &Taken| taken.seconds / taken.simulated;
    let of_alone = each(&|round| round.get(&Kind::Alone).map(multiple));
    let kinds: BTreeSet<Kind> = rounds.iter().flat_map(BTreeMap::keys).copied().collect();
    let factor = |kind: Kind| {
        let over_alone =
            each(&|round| Some(multiple(round.get(&kind)?) / multiple(round.get(&Kind::Alone)?)));
        if over_alone > 0.0 {
            over_alone * of_alone
        } else {
            each(&|round| round.get(&kind).map(multiple))
        }
    };
    kinds.into_iter().map(|kind| (kind, factor(kind))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_compared_with_one_processor_alone_round_by_round() {
        let taken = |seconds| Taken {
            seconds,
            simulated: 2.0,
        };
        // Two of the rounds end in a faster minute.
        let times = [(1.0, 0.9), (2.0, 1.8), (3.0, 2.7), (4.0, 1.0), (5.0, 1.1)];
        let round = |(alone, mixed)| {
            BTreeMap::from([(Kind::Alone, taken(alone)), (Kind::Mixed, taken(mixed))])
        };
        let of_rounds = factors(&times.map(round));
        assert_eq!(of_rounds[&Kind::Alone], 1.5);
        assert!(
            (of_rounds[&Kind::Mixed] - 0.9 * 1.5).abs() < 1e-12,
            "{}",
            of_rounds[&Kind::Mixed]
        );
        // Where no processor computes a prompt alone, a kind has the median of its own times.
        let without = times.map(|(_, mixed)| BTreeMap::from([(Kind::Mixed, taken(mixed))]));
        assert_eq!(factors(&without), BTreeMap::from([(Kind::Mixed, 0.55)]));
        assert_eq!(factors(&[]), BTreeMap::new());
    }
}

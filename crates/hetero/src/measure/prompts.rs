//! Measures whole prompts with each kind of plan, and compares them with what the joint search expects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use triad_kernels::timing::median;
use triad_plan::joint::{Candidate, Kind, MeasuredPrompt};

use crate::engine::HeteroEngine;
use crate::error::Result;
use crate::profile::run_prompt;
use triad_engine::Cancel;

/// The shortest prompt; others are two, four and more times as long.
const SHORTEST: usize = 64;
/// Kinds of plans are not measured if they are expected to take longer than this multiple of the fastest.
const SLOWEST: f64 = 1.5;
/// Rounds of a length: as many as fit into `SECONDS` with the fastest plan, within these limits. Plans differ by less
/// than repeated prompts do.
const SECONDS: f64 = 1.0;
const ROUNDS: RangeInclusive<usize> = 3..=24;

/// The time of a prompt in a round, and the expected time.
#[derive(Clone, Copy)]
struct Taken {
    seconds: f64,
    simulated: f64,
}

/// Returns the lengths of prompts to measure, up to the context of an engine, with the kinds of plans of each and the
/// expected seconds of the fastest. Empty if prompts are not planned.
fn measured_kinds(engine: &HeteroEngine) -> Vec<(usize, Vec<Kind>, f64)> {
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

/// Runs prompts up to the context of an engine that plans prompts ([`HeteroOptions::joint`]). Each length and kind of
/// plan runs `repeat` times, at least three and more often if short, in turn, after one that does not count. Returns
/// their medians as multiples of the expected times. `progress` is called with the number of finished prompts and the
/// number of all.
///
/// # Errors
/// If `cancel` is set, or a processor fails.
///
/// [`HeteroOptions::joint`]: crate::HeteroOptions::joint
pub fn measure_prompts(
    engine: &HeteroEngine,
    repeat: usize,
    cancel: &Cancel,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<MeasuredPrompt>> {
    let measured = measure(engine, repeat, cancel, &mut progress);
    engine.state().set_plan_kind(None);
    measured
}

/// The same, but the engine keeps selecting the last measured kind of plan.
fn measure(
    engine: &HeteroEngine,
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
        let prompt = crate::any_tokens(rows, engine.model().description().vocab);
        let mut taken = Vec::new();
        for round in 0..=rounds(fastest) {
            let mut of_round = BTreeMap::new();
            for kind in &kinds {
                engine.state().set_plan_kind(Some(*kind));
                // The costs with which a process begins: each prompt changes them.
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
        // Skips lengths with implausible times: the clock stood still, or nothing was known of the prompt.
        measured.extend(prompt.is_plausible().then_some(prompt));
    }
    Ok(measured)
}

/// Returns, by kind, the times as multiples of the expected ones, from rounds in turn. Kinds of several processors are
/// compared with a single processor by the median of the ratios within rounds: a machine's speed changes more between
/// rounds than kinds differ.
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
        // In two of the rounds the machine becomes faster between the two prompts.
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
        // If no processor computes a prompt alone, a kind has the median of its own times.
        let without = times.map(|(_, mixed)| BTreeMap::from([(Kind::Mixed, taken(mixed))]));
        assert_eq!(factors(&without), BTreeMap::from([(Kind::Mixed, 0.55)]));
        assert_eq!(factors(&[]), BTreeMap::new());
    }
}

//! What whole prompts take by each kind of plan, beside what the joint search expects of it.

use std::collections::BTreeMap;

use triad_plan::joint::{Candidate, Kind, MeasuredPrompt};

use super::median;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::execute::Engine;
use crate::execute::profile::run_prompt;

/// The shortest prompt; others are two, four and more times as long.
const SHORTEST: usize = 64;
/// Kinds of plans that are expected to take longer than so many times the fastest are not measured.
const SLOWEST: f64 = 1.5;
/// Rounds of a length, at least, and tokens of all of them: plans differ by less than short prompts do among themselves.
const ROUNDS: usize = 3;
const TOKENS: usize = 768;

/// The lengths of prompts that are measured, up to the context of an engine, and the kinds of plans of each. Nothing where
/// prompts are not planned.
fn measured_kinds(engine: &Engine) -> Vec<(usize, Vec<Kind>)> {
    let most = engine.session().context();
    let lengths = std::iter::successors(Some(SHORTEST.min(most)), |length| Some(2 * length));
    let kinds = |rows| {
        let candidates = &engine.planned(rows)?.plan.candidates;
        let fastest = candidates.first()?.seconds;
        let is_measured = |one: &&Candidate| one.kind == Kind::Alone || one.seconds <= SLOWEST * fastest;
        Some((rows, candidates.iter().filter(is_measured).map(|one| one.kind).collect()))
    };
    lengths.take_while(|length| *length <= most).map_while(kinds).collect()
}

/// Runs prompts up to the context of an engine whose prompts are planned ([`EngineOptions::joint`]): of each length and
/// kind of plan `repeat`, at least three, and more of short ones, in turns, behind one that does not count. Returns their
/// medians beside what was expected. `progress` is called with the number of prompts that are done, and of all.
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
    let rounds = |rows| repeat.max(ROUNDS).max(TOKENS / rows);
    let prompts = all.iter().map(|(rows, kinds)| kinds.len() * (1 + rounds(*rows))).sum();
    for (rows, kinds) in all {
        let prompt = crate::execute::any_tokens(rows, engine.model().description().vocab);
        let mut factors: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
        for round in 0..=rounds(rows) {
            for kind in &kinds {
                engine.state().set_plan_kind(Some(*kind));
                // As a process begins with them: each prompt changes them.
                engine.set_costs(costs.clone());
                engine.plan_ahead(rows);
                let expected = engine.planned(rows).filter(|planned| planned.plan.kind == *kind);
                let execution = run_prompt(&mut session, &prompt, cancel)?;
                if let Some(planned) = expected.filter(|_| round > 0) {
                    let factor = execution.timeline.seconds() / planned.plan.seconds;
                    factors.entry(*kind).or_default().push(factor);
                }
                done += 1;
                progress(done, prompts);
            }
        }
        let factors = factors.into_iter().map(|(kind, factors)| (kind, median(factors))).collect();
        let prompt = MeasuredPrompt { rows, factors };
        // Of a clock that stood still, or a prompt that nothing was known of, nothing is learned.
        measured.extend(prompt.is_plausible().then_some(prompt));
    }
    Ok(measured)
}

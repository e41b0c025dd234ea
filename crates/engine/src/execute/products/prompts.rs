//! What whole prompts take, by one processor alone and by several, beside what the joint search expects of both.

use triad_plan::joint::{Kind, MeasuredPrompt, Who};

use super::median;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::execute::Engine;
use crate::execute::profile::run_prompt;

/// The shortest prompt; others are two, four and more times as long.
const SHORTEST: usize = 64;

/// Lengths of the prompts of an engine.
fn lengths(engine: &Engine) -> impl Iterator<Item = usize> {
    let most = engine.session().context();
    std::iter::successors(Some(SHORTEST.min(most)), |length| Some(2 * length)).take_while(move |length| *length <= most)
}

/// How many prompts [`measure_prompts`] runs.
pub fn measured_prompts(engine: &Engine, repeat: usize) -> usize {
    2 * lengths(engine).count() * (1 + repeat)
}

/// Runs prompts up to the context of an engine whose prompts are planned ([`EngineOptions::joint`]), of each length
/// `repeat` by one processor and as many by several, in turns, behind one of each that does not count. Returns their
/// medians beside what was expected; nothing where no processor computes a prompt alone. `progress` is called with the
/// number of prompts that are done, of [`measured_prompts`].
///
/// # Errors
/// If `cancel` is set, or a processor fails.
///
/// [`EngineOptions::joint`]: crate::EngineOptions::joint
pub fn measure_prompts(
    engine: &Engine,
    repeat: usize,
    cancel: &Cancel,
    mut progress: impl FnMut(usize),
) -> Result<Vec<MeasuredPrompt>> {
    let measured = measure(engine, repeat, cancel, &mut progress);
    engine.state().set_who(Who::Any);
    measured
}

/// The same, leaving the engine with what it measured last.
fn measure(
    engine: &Engine,
    repeat: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<MeasuredPrompt>> {
    let (mut session, mut measured, mut done) = (engine.session(), Vec::new(), 0);
    let costs = engine.costs();
    for rows in lengths(engine) {
        let prompt = crate::execute::any_tokens(rows, engine.model().description().vocab);
        let mut factors = [Vec::new(), Vec::new()];
        for round in 0..=repeat {
            for (who, factors) in [Who::One, Who::Several].into_iter().zip(&mut factors) {
                engine.state().set_who(who);
                // As a process begins with them: each prompt changes them.
                engine.set_costs(costs.clone());
                let Some(expected) = engine.planned(rows) else { return Ok(Vec::new()) };
                if who == Who::One && expected.plan.kind != Kind::Alone {
                    return Ok(Vec::new());
                }
                engine.plan_ahead(rows);
                let execution = run_prompt(&mut session, &prompt, cancel)?;
                if round > 0 {
                    factors.push(execution.timeline.seconds() / expected.plan.seconds);
                }
                done += 1;
                progress(done);
            }
        }
        let [alone, several] = factors.map(median);
        let prompt = MeasuredPrompt { rows, alone, several };
        // Of a clock that stood still, or a prompt that nothing was known of, nothing is learned.
        measured.extend(prompt.is_plausible().then_some(prompt));
    }
    Ok(measured)
}

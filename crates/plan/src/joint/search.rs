//! Search of candidates for a prompt, with their simulated times.

use std::sync::Arc;

use super::division::Division;
use super::{
    Best, Candidate, CandidateId, Found, JointPlan, Kind, MeasuredPrompt, Prompt, PromptPlanner,
};
use crate::processors::ProcessorId;
use crate::schedule::parts::CutError;

/// Chunk lengths of candidates are multiples of this number of rows.
const ROWS: usize = 32;
/// Number of additional chunk counts to try, beyond the smallest possible one.
const MORE_CHUNKS: usize = 3;
/// Minimum speedup that an additional processor must bring to be used. The simulation omits most of the time for
/// waiting and for shared memory, and the measured prompts may have left the processor nearly idle.
const WORTH_IT: f64 = 1.05;

pub(super) fn search(joint: &PromptPlanner, prompt: &Prompt) -> Result<JointPlan, CutError> {
    let mut without = Vec::new();
    let mut found = candidates(joint, prompt, &without)?;
    // Omit the slowest processor if the result is as good. With two processors, one alone is already a candidate.
    for _ in 2..joint.processors().count() {
        let Some(fastest) = several(&found) else {
            break;
        };
        let division = Division::new(joint, prompt, fastest.chunk, &without);
        let others = joint
            .processors()
            .filter(|processor| !without.contains(processor));
        let seconds = |processor: &ProcessorId| division.seconds_alone(*processor);
        let Some(slowest) = others.max_by(|a, b| seconds(a).total_cmp(&seconds(b))) else {
            break;
        };
        without.push(slowest);
        if Division::new(joint, prompt, fastest.chunk, &without).leaves_out(&fastest.ways) {
            continue;
        }
        let mut fewer = candidates(joint, prompt, &without)?;
        match several(&fewer) {
            Some(best) if best.seconds < WORTH_IT * fastest.seconds => {}
            _ => break,
        }
        // Omitted processors can still be candidates alone.
        fewer.extend(found.into_iter().filter(|(id, _)| id.is_alone()));
        found = fewer;
    }
    let candidate = |(id, best): (&CandidateId, &Best)| {
        let factor = MeasuredPrompt::factor(&joint.measured, id.kind, prompt.rows);
        let energy = joint.energy.as_ref();
        Candidate {
            id: *id,
            seconds: best.seconds,
            factor,
            joules: best.joules,
            objective: energy.map_or_else(Default::default, |(objective, _)| *objective),
        }
    };
    let mut candidates: Vec<_> = found.iter().map(candidate).collect();
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let id = fastest(&candidates, |_| 1.0);
    let Best { chunk, seconds, .. } = found[&id];
    Ok(JointPlan {
        chunk,
        id,
        seconds,
        candidates,
        found: Arc::new(found),
    })
}

/// Returns the candidate with the least expected value of the objective, which is the time unless energy counts. The time
/// is the simulated one, multiplied by the measured factor if any candidate has one; the value is multiplied by
/// `multiple`. Several processors must be faster than one by the minimum speedup. If some
/// candidates have measured factors, those without are not chosen.
///
/// # Panics
/// If there is no candidate.
pub fn fastest(candidates: &[Candidate], multiple: impl Fn(CandidateId) -> f64) -> CandidateId {
    let are_measured = candidates.iter().any(|one| one.factor.is_some());
    let expected = |one: &Candidate| {
        let value = match one.factor {
            Some(factor) => one.value(factor),
            None if are_measured => f64::INFINITY,
            None => one.value(1.0),
        };
        let margin = if one.id.is_alone() { 1.0 } else { WORTH_IT };
        margin * multiple(one.id) * value
    };
    let least = candidates
        .iter()
        .min_by(|a, b| expected(a).total_cmp(&expected(b)));
    least.expect("there is a candidate").id
}

/// Returns the fastest candidate on several processors, by the simulation.
fn several(found: &Found) -> Option<&Best> {
    let several = found
        .iter()
        .filter(|(id, _)| !id.is_alone())
        .map(|(_, best)| best);
    several.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// Returns the best candidate of each kind, with the processors of `without` omitted.
fn candidates(
    joint: &PromptPlanner,
    prompt: &Prompt,
    without: &[ProcessorId],
) -> Result<Found, CutError> {
    let mut found = Found::new();
    let fewest = prompt.rows.div_ceil(prompt.most_rows);
    let mut lengths = Vec::new();
    for chunks in fewest..=fewest + MORE_CHUNKS {
        let chunk = prompt
            .rows
            .div_ceil(chunks)
            .next_multiple_of(ROWS)
            .min(prompt.most_rows);
        if !lengths.contains(&chunk) {
            lengths.push(chunk);
        }
    }
    // The chunk length that is used without a plan.
    if !lengths.contains(&prompt.most_rows) {
        lengths.push(prompt.most_rows);
    }
    for chunk in lengths {
        let division = Division::new(joint, prompt, chunk, without);
        for (id, ways) in division.candidates() {
            let seconds = division.seconds(&ways)?;
            if found.get(&id).is_none_or(|best| seconds < best.seconds) {
                found.insert(
                    id,
                    Best {
                        ways,
                        chunk,
                        seconds,
                        joules: None,
                    },
                );
            }
        }
    }
    let Some(fastest) = found
        .values()
        .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    else {
        return Ok(found);
    };
    let division = Division::new(joint, prompt, fastest.chunk, without);
    if let Some((ways, seconds)) = division.refined(&fastest.ways, fastest.seconds)? {
        let chunk = fastest.chunk;
        found.insert(
            Kind::Mixed.into(),
            Best {
                ways,
                chunk,
                seconds,
                joules: None,
            },
        );
    }
    // An overlap that works in a few blocks may not work in all of them.
    for best in found.values_mut() {
        let division = Division::new(joint, prompt, best.chunk, without);
        (best.seconds, best.joules) = division.of_all(&best.ways)?;
    }
    Ok(found)
}

//! Measures how long decoding sequences wait for their next token while a long prompt is computed.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_engine::{Cancel, Engine, Error};

use crate::error::Result;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sequences that decode.
    pub sequences: usize,
    /// Tokens of context of each sequence at the start.
    pub context: usize,
    /// Tokens of the prompt that arrives.
    pub prompt: usize,
    /// How long the sequences decode before the prompt arrives, and again after it.
    pub around: Duration,
}

/// A generated token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gap {
    /// Seconds from the start of the run to the token.
    pub at: f64,
    /// Seconds since the previous token of its sequence.
    pub seconds: f64,
}

/// Times between tokens of all sequences in one phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of times.
    pub count: usize,
    /// Median seconds.
    pub median: f64,
    /// 90th percentile in seconds.
    pub p90: f64,
    /// 99th percentile in seconds.
    pub p99: f64,
    /// Longest time in seconds.
    pub max: f64,
}

/// Results.
#[derive(Clone, Debug, Serialize)]
pub struct Stall {
    /// Sequences that decoded.
    pub sequences: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Seconds of the prompt when no sequence decodes.
    pub prefill_alone_seconds: f64,
    /// Seconds of the prompt while sequences decode.
    pub prefill_concurrent_seconds: f64,
    /// When the prompt arrived and was complete, in seconds from the start.
    pub prompt_at: [f64; 2],
    /// Times before, during and after the prompt.
    pub gaps: [Distribution; 3],
    /// Every time between two tokens.
    pub all: Vec<Gap>,
}

impl Distribution {
    /// Computes the distribution of `seconds`; zeros if there are none.
    pub fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * seconds.len() as f64).ceil() as usize;
            seconds.get(rank.max(1) - 1).copied().unwrap_or(0.0)
        };
        Self {
            count: seconds.len(),
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Runs `plan` on sessions of `engine`, which must have enough context.
///
/// # Errors
/// If `cancel` is set, or a session fails.
pub fn run(engine: &Engine, plan: &Plan, cancel: &Cancel) -> Result<Stall> {
    let vocab = engine.model().description().vocab;
    let tokens = |count: usize, seed: usize| -> Vec<u32> {
        (0..count)
            .map(|index| ((index + seed).wrapping_mul(7919) % vocab) as u32)
            .collect()
    };
    let prompt = tokens(plan.prompt, 1);
    let prefill = || {
        let mut session = engine.session();
        let start = Instant::now();
        session.prefill(&prompt, cancel, |_| {})?;
        Ok::<_, Error>((start, start.elapsed().as_secs_f64()))
    };
    // An unmeasured prompt warms up memory and lets the engine learn the costs of tasks.
    prefill()?;
    let (_, alone) = prefill()?;

    let mut sessions: Vec<_> = (0..plan.sequences).map(|_| engine.session()).collect();
    for (index, session) in sessions.iter_mut().enumerate() {
        session.prefill(&tokens(plan.context.max(1), 31 * index), cancel, |_| {})?;
    }
    let (start, ends, all) = (Instant::now(), Cancel::new(), Mutex::new(Vec::new()));
    let decode = |mut session: triad_engine::Session| {
        let mut before = Instant::now();
        let mut gaps = Vec::new();
        while !ends.is_cancelled() && session.tokens().len() < session.context() {
            session.decode(gaps.len() as u32 % 97, cancel)?;
            let now = Instant::now();
            let (at, seconds) = (
                now.duration_since(start).as_secs_f64(),
                now.duration_since(before).as_secs_f64(),
            );
            gaps.push(Gap { at, seconds });
            before = now;
        }
        all.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .extend(gaps);
        Ok::<_, Error>(())
    };
    let loaded = thread::scope(|scope| {
        let decoding: Vec<_> = sessions
            .into_iter()
            .map(|session| scope.spawn(|| decode(session)))
            .collect();
        thread::sleep(plan.around);
        let loaded = prefill();
        thread::sleep(plan.around);
        ends.cancel();
        let ended = decoding
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Error::Cancelled)));
        ended.collect::<Result<Vec<_>, _>>().and(loaded)
    });
    let (arrived, seconds) = loaded?;
    let from = arrived.duration_since(start).as_secs_f64();
    let mut all = all
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_by(|one, other| one.at.total_cmp(&other.at));
    // The first token of a sequence has no predecessor to wait for.
    let until = from + seconds;
    // A time between tokens counts as during the prompt if it overlaps the prompt at all.
    let of = |within: &dyn Fn(&Gap) -> bool| {
        Distribution::new(
            all.iter()
                .filter(|gap| within(gap))
                .map(|gap| gap.seconds)
                .collect(),
        )
    };
    let is_after = |gap: &Gap| gap.at - gap.seconds >= until;
    Ok(Stall {
        sequences: plan.sequences,
        prompt: plan.prompt,
        prefill_alone_seconds: alone,
        prefill_concurrent_seconds: seconds,
        prompt_at: [from, until],
        gaps: [
            of(&|gap| gap.at < from),
            of(&|gap| gap.at >= from && !is_after(gap)),
            of(&is_after),
        ],
        all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_time_that_so_many_do_not_exceed() {
        let of = Distribution::new((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            of,
            Distribution {
                count: 200,
                median: 100.0,
                p90: 180.0,
                p99: 198.0,
                max: 200.0
            }
        );
        assert_eq!(Distribution::new(vec![3.0]).p99, 3.0);
        assert_eq!(Distribution::new(Vec::new()).max, 0.0);
    }
}

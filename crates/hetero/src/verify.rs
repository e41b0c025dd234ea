//! Compares the results of several processors with those of one. Other engines have shipped NPU paths whose chunks
//! after the first were wrong; this command finds such errors before users do.

use serde::Serialize;
use triad_plan::schedule::Policy;

use triad_engine::{Engine, EngineOptions, SessionOptions};

use crate::engine::HeteroEngine;
use crate::error::Result;
use crate::execution::execution;
use crate::options::HeteroOptions;
use triad_engine::Cancel;

/// The logits after one prompt, by one policy, compared with those of one processor.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The policy that selected tasks.
    pub policy: Policy,
    /// The largest difference from the sequential pass, relative to its largest logit; zero only if all bits are the
    /// same. NaN if a difference is NaN.
    pub difference: f32,
    /// Processors that failed during the prompt.
    pub failed_processors: usize,
}

/// The comparisons of an engine.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// All prompts by all policies.
    pub comparisons: Vec<Comparison>,
    /// The largest difference that passes.
    pub allowed: f32,
}

impl Verification {
    /// Returns the comparisons that don't pass: the difference is too large, or a processor failed.
    pub fn failures(&self) -> impl Iterator<Item = &Comparison> {
        // NaN does not pass either.
        let passes = |comparison: &Comparison| {
            comparison.difference <= self.allowed && comparison.failed_processors == 0
        };
        self.comparisons
            .iter()
            .filter(move |comparison| !passes(comparison))
    }
}

/// Returns the lengths of the prompts: a token, a chunk less one, a chunk, a chunk and one, three chunks and a half; as
/// far as the model's context allows.
pub fn lengths(chunk: usize, context: usize) -> Vec<usize> {
    let mut lengths = vec![1, chunk - 1, chunk, chunk + 1, chunk.saturating_mul(7) / 2];
    lengths.retain(|length| (1..=context).contains(length));
    lengths.dedup();
    lengths
}

/// Runs prompts of all [`lengths`] on the model's threads alone, and by `engine` with every policy. An engine with one
/// processor runs them once, since it has nothing to choose, and decodes a token after each prompt, which may use other
/// kernels there. `progress` is called before each run. Differences up to `allowed` pass: zero if both multiply with
/// our kernels.
///
/// # Errors
/// If `cancel` is set, a prompt cannot be run, or no processor is left.
pub fn verify(
    engine: &HeteroEngine,
    allowed: f32,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, Option<Policy>),
) -> Result<Verification> {
    let (model, mut executed) = (engine.model(), engine.session());
    let (context, chunk) = (executed.context(), executed.chunk());
    let session = SessionOptions {
        context,
        chunk,
        kv_format: engine.kv_format(),
    };
    let fixed_point = engine.fixed_point().is_some();
    let options = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    let mut alone = if fixed_point {
        let options = HeteroOptions {
            engine: options,
            fixed_point,
            ..HeteroOptions::default()
        };
        HeteroEngine::new(model, options, &mut |_, _| {})?.session()
    } else {
        Engine::new(model, &options)?.session()
    };
    let is_one = engine.processors().len() == 1;
    let policies = if is_one {
        &[Policy::InOrder][..]
    } else {
        &Policy::ALL
    };
    let mut comparisons = Vec::new();
    for tokens in lengths(chunk, context) {
        let prompt = super::any_tokens(tokens, model.description().vocab);
        alone.truncate(0);
        progress(tokens, None);
        let next = prompt[tokens / 2];
        // The sums of floats of a device may differ in decode, too.
        let compares_steps = is_one || (allowed > 0.0 && !model.weights().is_int8());
        let has_next = compares_steps && tokens < context;
        let expected = alone.prefill(&prompt, cancel, |_| {})?.to_vec();
        let expected_next = if has_next {
            alone.decode(next, cancel)?.to_vec()
        } else {
            Vec::new()
        };
        for &policy in policies {
            executed.truncate(0);
            engine.set_policy(policy);
            progress(tokens, Some(policy));
            engine.plan_ahead(tokens);
            let mut most = difference(executed.prefill(&prompt, cancel, |_| {})?, &expected);
            let failed_processors =
                execution(&executed).map_or(0, |execution| execution.failures.len());
            if has_next {
                most = larger(
                    most,
                    difference(executed.decode(next, cancel)?, &expected_next),
                );
            }
            comparisons.push(Comparison {
                tokens,
                policy,
                difference: most,
                failed_processors,
            });
        }
    }
    Ok(Verification {
        comparisons,
        allowed,
    })
}

/// Returns the largest difference, relative to the largest expected number; zero only for equal bits, NaN if one is
/// NaN.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    if found
        .iter()
        .map(|x| x.to_bits())
        .eq(expected.iter().map(|x| x.to_bits()))
    {
        return 0.0;
    }
    let largest = expected
        .iter()
        .fold(0.0f32, |largest, x| largest.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let most = differences.fold(0.0, larger);
    larger(most / largest.max(f32::MIN_POSITIVE), f32::MIN_POSITIVE)
}

/// Returns the larger one, or NaN if one is NaN: `f32::max` would lose it.
fn larger(one: f32, other: f32) -> f32 {
    if one.is_nan() || other.is_nan() {
        f32::NAN
    } else {
        one.max(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_end_around_a_chunk_and_within_a_later_one() {
        assert_eq!(lengths(256, 4096), [1, 255, 256, 257, 896]);
        assert_eq!(lengths(16, 40), [1, 15, 16, 17]);
        assert_eq!(lengths(1, 40), [1, 2, 3]);
    }

    #[test]
    fn only_equal_bits_have_no_difference() {
        assert_eq!(difference(&[1.0, -2.0], &[1.0, -2.0]), 0.0);
        assert_eq!(difference(&[1.0, -2.5], &[1.0, -2.0]), 0.25);
        assert!(difference(&[0.0], &[-0.0]) > 0.0);
    }

    #[test]
    fn what_is_no_number_does_not_pass() {
        let comparison = |difference| Comparison {
            tokens: 1,
            policy: Policy::Fifo,
            difference,
            failed_processors: 0,
        };
        for found in [[f32::NAN, -2.0], [1.0, f32::NAN], [f32::NAN, 1e9]] {
            let comparisons = vec![comparison(difference(&found, &[1.0, -2.0]))];
            assert_eq!(
                Verification {
                    comparisons,
                    allowed: 0.1
                }
                .failures()
                .count(),
                1
            );
        }
    }
}

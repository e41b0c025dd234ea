//! Selects the inputs that lose their shadow: most outliers can be omitted without loss (llm.npu, §3.3).

use std::sync::Arc;

use triad_engine::{Cancel, Model};
use triad_model::description::ModelDescription;

use super::held_out::held_out;
use super::plan::{self, InputSummary};
use super::{PrepareOptions, Prune};
use crate::error::{Error, Result};

/// Bisection steps of [`Prune::Auto`]: rates are searched to 1/16; such a step changes the loss by less than its noise.
const STEPS: u32 = 4;

/// Maximum number of weights of linear layers for [`Prune::Auto`]: the search holds them in INT8 in memory, some of
/// them twice, and processes the held-out text with them [`STEPS`] + 1 times.
const SEARCHED: usize = 1 << 30;

/// Prunes `inputs` by `options`; returns the pruned share. With [`Prune::Auto`], every shadow is kept if nothing is
/// held out or the model is too large for the search.
pub(super) fn prune(
    model: &Arc<Model>,
    inputs: &mut [InputSummary],
    held_out: &[Vec<u32>],
    options: &PrepareOptions,
    cancel: &Cancel,
) -> Result<f64> {
    let rate = match options.prune {
        Prune::Rate(rate) => rate,
        Prune::Auto { .. } if held_out.is_empty() || !is_searched(model.description()) => 0.0,
        Prune::Auto { budget } => {
            let loss = |model: &Arc<Model>| {
                Ok::<_, Error>(self::held_out(model, held_out, cancel, |_| {})?.loss)
            };
            let float = loss(model)?;
            let mut quantized =
                Arc::new(model.quantize(&plan::quantization(inputs, &options.plan)));
            let mut within = |rate| {
                plan::prune(inputs, rate);
                quantized = Arc::new(
                    model.quantize_sharing(&quantized, &plan::quantization(inputs, &options.plan)),
                );
                let loss = loss(&quantized)?;
                tracing::debug!(rate, loss, float, "pruning tried");
                Ok(loss <= float * (1.0 + budget))
            };
            highest(&mut within)?
        }
    };
    plan::prune(inputs, rate);
    Ok(rate)
}

/// Returns whether the model is small enough for the search.
fn is_searched(description: &ModelDescription) -> bool {
    let linears = description
        .blocks
        .iter()
        .flat_map(|block| block.linears(description.hidden));
    linears.map(|linear| linear.parameters()).sum::<usize>() <= SEARCHED
}

/// Returns the highest rate for which `within` holds, to 1/16, by bisection: apart from noise, losses grow with the
/// rate. Returns 0 if there is none: all shadows are kept, which is the best possible.
pub(super) fn highest(within: &mut dyn FnMut(f64) -> Result<bool>) -> Result<f64> {
    if within(1.0)? {
        return Ok(1.0);
    }
    let (mut good, mut bad) = (0, 1 << STEPS);
    while bad - good > 1 {
        let middle = (good + bad) / 2;
        if within(f64::from(middle) / f64::from(1 << STEPS))? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(f64::from(good) / f64::from(1 << STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_rate_within_the_budget_is_found() {
        for limit in [0.0, 0.3, 0.5, 0.99, 1.0] {
            let rate = highest(&mut |rate| Ok(rate <= limit)).unwrap();
            assert!(
                rate <= limit && limit - rate < 1.0 / 16.0,
                "{rate} for {limit}"
            );
        }
    }

    #[test]
    fn models_of_a_billion_weights_and_more_are_not_searched() {
        let is_small = |name| is_searched(&triad_model::family::shape(name).unwrap());
        assert!(is_small("smollm2-135m"));
        assert!(!is_small("qwen1.5-1.8b") && !is_small("llama-2-7b"));
    }

    #[test]
    fn without_any_rate_in_the_budget_every_shadow_is_kept() {
        assert_eq!(highest(&mut |_| Ok(false)).unwrap(), 0.0);
    }
}

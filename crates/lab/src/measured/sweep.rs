//! Runs one model in several INT8 variants, and quantizes the weights as rarely as possible.

use std::sync::Arc;

use serde::Serialize;
use triad_engine::Model;
use triad_engine::quantization::{Quantization, WeightScales};
use triad_prepare::plan::{self, InputSummary, PlanOptions};
use triad_prepare::threshold::ThresholdRule;

use super::Subject;

/// Measurement of a model without some of its shadows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pruned<M> {
    /// Share of the inputs that have no shadow, the least important first.
    pub rate: f64,
    /// Inputs that keep their shadow.
    pub shadows: usize,
    /// Result of `measure`.
    #[serde(flatten)]
    pub measured: M,
}

/// Measures the model with each of `rates` as the share of omitted shadows (llm.npu, §3.3, figure 12).
///
/// # Errors
/// Errors of `measure`.
pub fn prune<M, E>(
    subject: &Subject,
    options: &PlanOptions,
    rates: &[f64],
    mut measure: impl FnMut(&Arc<Model>) -> Result<M, E>,
) -> Result<Vec<Pruned<M>>, E> {
    let mut inputs = subject.summarize(options);
    let mut quantized = Arc::new(
        subject
            .model
            .quantize(&plan::quantization(&inputs, options)),
    );
    let of_rate = |rate: &f64| {
        plan::prune(&mut inputs, *rate);
        let plan = plan::quantization(&inputs, options);
        quantized = Arc::new(subject.model.quantize_sharing(&quantized, &plan));
        let measured = measure(&quantized)?;
        Ok(Pruned {
            rate: *rate,
            shadows: plan.shadows(),
            measured,
        })
    };
    rates.iter().map(of_rate).collect()
}

/// A rule for clip thresholds and weight scales.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Rule for clip thresholds.
    pub threshold: ThresholdRule,
    /// Extent of one weight scale.
    pub weights: WeightScales,
    /// Whether all inputs have a shadow; otherwise none has.
    pub shadow: bool,
}

/// Measurement of a variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clipped<M> {
    /// The variant.
    #[serde(flatten)]
    pub variant: Variant,
    /// Share of the values of the calibration text beyond their clip threshold. These values are in the shadow, or lost
    /// without one.
    pub outlier_share: f64,
    /// Result of `measure`.
    #[serde(flatten)]
    pub measured: M,
}

/// The rules that are compared.
pub const RULES: [ThresholdRule; 3] = [
    ThresholdRule::MaxMin,
    ThresholdRule::Percentile,
    ThresholdRule::LeastError,
];

/// Measures the model with every rule for clip thresholds, with weight scales per channel and per matrix, and with all
/// shadows and with none. Equivalent variants are measured once.
///
/// # Errors
/// Errors of `measure`.
pub fn thresholds<M: Clone, E>(
    subject: &Subject,
    mut measure: impl FnMut(&Arc<Model>) -> Result<M, E>,
) -> Result<Vec<Clipped<M>>, E> {
    let options = |threshold, weights| PlanOptions {
        threshold,
        weight_scales: weights,
        ..PlanOptions::default()
    };
    // Weight scales don't influence the summaries.
    let summaries = RULES.map(|rule| subject.summarize(&options(rule, WeightScales::default())));
    let mut tried = Vec::new();
    for weights in [WeightScales::Channel, WeightScales::Tensor] {
        let quantization =
            |inputs: &[InputSummary]| plan::quantization(inputs, &options(RULES[0], weights));
        let quantized = subject.model.quantize(&quantization(&summaries[0]));
        let mut measured: Vec<(Quantization, M)> = Vec::new();
        for shadow in [true, false] {
            for (threshold, summary) in RULES.into_iter().zip(&summaries) {
                let mut inputs = summary.clone();
                plan::prune(&mut inputs, if shadow { 0.0 } else { 1.0 });
                let plan = quantization(&inputs);
                let known = measured
                    .iter()
                    .find(|(other, _)| *other == plan)
                    .map(|(_, measured)| measured.clone());
                let result = match known {
                    Some(known) => known,
                    None => measure(&Arc::new(subject.model.quantize_sharing(&quantized, &plan)))?,
                };
                measured.push((plan, result.clone()));
                let variant = Variant {
                    threshold,
                    weights,
                    shadow,
                };
                tried.push(Clipped {
                    variant,
                    outlier_share: beyond(&inputs),
                    measured: result,
                });
            }
        }
    }
    Ok(tried)
}

/// Returns the share of the values of the calibration text beyond the clip thresholds of `inputs`.
fn beyond(inputs: &[InputSummary]) -> f64 {
    let share = |input: &InputSummary| {
        if input.shadow {
            input.outlier_share
        } else {
            input.lost_share
        }
    };
    let values: f64 = inputs
        .iter()
        .map(|input| share(input) * input.channels as f64)
        .sum();
    values
        / inputs
            .iter()
            .map(|input| input.channels)
            .sum::<usize>()
            .max(1) as f64
}

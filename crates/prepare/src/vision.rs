//! Decides how to quantize the encoder of pictures: as for a text model, from the magnitudes of its linear inputs.

use triad_engine::vision::VisionModel;
use triad_engine::{Cancel, Model};

use crate::calibration::Calibration;
use crate::calibration::pictures::{HeldOutView, pixels};
use crate::error::Result;
use crate::plan::{self, InputSummary};
use crate::prune::highest;
use crate::{Preparation, PrepareOptions, Prune, weight_statistics};

/// Decides how to quantize the float encoder `vision`, on the threads of `model`. With [`Prune::Auto`], as many shadows are
/// pruned as lower the mean cosine of the held-out rows to those in float by at most the budget; none if no view is held out.
///
/// # Errors
/// If `cancel` is set.
///
/// # Panics
/// If the encoder is not in float.
pub fn decide(
    model: &Model,
    vision: &VisionModel,
    calibration: &Calibration,
    held_out: &[HeldOutView],
    options: &PrepareOptions,
    cancel: &Cancel,
) -> Result<Preparation> {
    let mut inputs = summarize(model, vision, calibration, options);
    let pruned = prune((model, vision), &mut inputs, held_out, options, cancel)?;
    Ok(Preparation {
        options: *options,
        calibration_text: calibration.text.clone(),
        calibration_tokens: calibration.tokens,
        pruned,
        inputs,
        layers: Vec::new(),
    })
}

/// Returns everything that calibration decides, before pruning.
///
/// # Panics
/// If the encoder is not in float.
pub fn summarize(
    model: &Model,
    vision: &VisionModel,
    calibration: &Calibration,
    options: &PrepareOptions,
) -> Vec<InputSummary> {
    let blocks = &vision.weights().blocks;
    let weights = model.install(|| weight_statistics::of_blocks(blocks));
    plan::summarize(calibration, &weights, &options.plan)
}

/// Prunes `inputs`, and returns the pruned share.
fn prune(
    (model, vision): (&Model, &VisionModel),
    inputs: &mut [InputSummary],
    held_out: &[HeldOutView],
    options: &PrepareOptions,
    cancel: &Cancel,
) -> Result<f64> {
    let rate = match options.prune {
        Prune::Rate(rate) => rate,
        Prune::Auto { .. } if held_out.is_empty() => 0.0,
        Prune::Auto { budget } => {
            let all = plan::quantization(inputs, &options.plan);
            let mut quantized = model.install(|| vision.quantize(&all, None));
            let least = mean_cosine(model, &quantized, held_out, cancel)? - budget;
            highest(&mut |rate| {
                plan::prune(inputs, rate);
                let plan = plan::quantization(inputs, &options.plan);
                quantized = model.install(|| vision.quantize(&plan, Some(&quantized)));
                let cosine = mean_cosine(model, &quantized, held_out, cancel)?;
                tracing::debug!(rate, cosine, least, "pruning of the encoder tried");
                Ok(cosine >= least)
            })?
        }
    };
    plan::prune(inputs, rate);
    Ok(rate)
}

/// Returns the mean cosine of the rows that `vision` makes of views to those in float.
///
/// # Errors
/// If `cancel` is set, or rows are not finite.
pub fn mean_cosine(
    model: &Model,
    vision: &VisionModel,
    views: &[HeldOutView],
    cancel: &Cancel,
) -> Result<f64> {
    let width = vision.description().width;
    let (mut sum, mut count) = (0.0, 0);
    for HeldOutView { view, rows } in views {
        let found = model.install(|| vision.encode(pixels(view), cancel))?;
        for (found, expected) in found.chunks_exact(width).zip(rows.chunks_exact(width)) {
            sum += cosine(found, expected);
            count += 1;
        }
    }
    Ok(sum / f64::from(count.max(1)))
}

/// Returns the cosine of two vectors; 1 if both are zero.
pub fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b);
        products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let norms = dot(one, one).sqrt() * dot(other, other).sqrt();
    match norms > 0.0 {
        true => dot(one, other) / norms,
        false => f64::from(u8::from(dot(one, one) == dot(other, other))),
    }
}

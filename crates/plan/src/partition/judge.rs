//! Evaluation of predicted costs. Predictions are fitted to a part of the measurements, and the solver's choices by
//! these predictions are compared with its choices by all measurements (§4.3).
//!
//! The time of both choices is taken from a second measurement. By the first measurement, a choice seems faster than it
//! is: the minimum of many noisy times is biased towards times that noise made small.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::costs::{Costs, Joins, Measurement, MeasurementError};
use super::interpolate::InterpolatedCosts;
use super::plans::{ModelProduct, Plans, planned_lengths};
use super::predict::{FitError, HeldOut, Method, PredictedCosts, Prediction, scatter};
use super::solve::{Restriction, Solver};
use super::{Participant, PartitionError, Piece, ProductShape, Shapes, UnknownCost};
use crate::processors::ProcessorId;

/// Measurements on processors, each alone and concurrent with the others.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Times while no other processor computes.
    pub alone: &'a [Measurement],
    /// Times while all other processors compute.
    pub contended: &'a [Measurement],
}

/// The quality of predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Errors for each processor.
    pub processors: Vec<JudgedProcessor>,
    /// Number of products times lengths that the solver chose for.
    pub choices: usize,
    /// Number of these choices that are equal by predictions and by measurements.
    pub same: usize,
    /// Mean of the time by the second measurements of the choices by predictions, relative to the choices by
    /// measurements, minus 1. It is 0 if all take the same time, and negative if predictions choose better.
    pub mean_excess: f64,
    /// The largest value of this, at least 0.
    pub largest_excess: f64,
}

/// Errors of predictions on one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedProcessor {
    /// The processor.
    pub processor: ProcessorId,
    /// Prediction methods, `tree` or `rates`, for times alone and for concurrent times: the one with the smaller error
    /// in cross-validation on the fitted shapes.
    pub methods: [&'static str; 2],
    /// Number of shapes to which the predictions were fitted.
    pub fitted: usize,
    /// Deviation of the second from the first measurements, alone: noise and drift.
    pub again: HeldOut,
    /// Error on the other shapes, alone.
    pub alone: HeldOut,
    /// Error on the other shapes, concurrent with the other processors.
    pub contended: HeldOut,
}

/// An error in the input of the evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JudgeError {
    /// There are too few measurements.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A measurement is invalid.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// The first and the second measurements have different shapes.
    #[error(
        "some products were measured only once: expected the same products in both measurements"
    )]
    Again,
    /// The products can't be planned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

/// Predicted costs, alone and concurrent with others.
struct Predicted {
    alone: PredictedCosts,
    contended: PredictedCosts,
}

impl Costs for Predicted {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.alone.seconds(processor, shape)
    }

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        self.contended.seconds(processor, shape)
    }
}

/// Fits predictions to about half of the shapes that were measured on each participant, by rates or by a tree on top of
/// rates. Computes their errors on the other half, and compares the solver's choices by them with its choices by all
/// measurements. The time of the choices comes from `again`, a second measurement of all shapes.
///
/// # Errors
/// If too few shapes were measured on a participant, the second measurement has other shapes, or the products can't be
/// planned.
pub fn judge(
    measured: Measured,
    again: Measured,
    participants: &[Participant],
    joins: Joins,
    products: &[ModelProduct],
) -> Result<Judged, JudgeError> {
    if !has_same_shapes(measured.alone, again.alone)
        || !has_same_shapes(measured.contended, again.contended)
    {
        return Err(JudgeError::Again);
    }
    let mut processors = Vec::new();
    let (mut of_alone, mut of_concurrent) = (Vec::new(), Vec::new());
    for Participant { processor, shapes } in participants {
        let methods = Method::candidates(matches!(shapes, Shapes::Static(_)));
        let fitted = fitted_shapes(measured.alone, *processor);
        let fit = |measurements: &[Measurement]| -> Result<_, FitError> {
            let here = measurements
                .iter()
                .filter(|one| one.processor == *processor);
            let (fit, held): (Vec<_>, Vec<_>) =
                here.copied().partition(|one| fitted.contains(&one.shape));
            let prediction = Prediction::best(&methods, *processor, &fit)?;
            let error = |one: &Measurement| {
                prediction
                    .seconds(one.shape)
                    .map(|seconds| seconds / one.seconds - 1.0)
            };
            let errors: Vec<_> = held.iter().filter_map(error).map(f64::abs).collect();
            Ok((HeldOut::summarize(&errors), prediction))
        };
        let (alone, by_alone) = fit(measured.alone)?;
        let (contended, by_concurrent) = fit(measured.contended)?;
        let methods = [&by_alone, &by_concurrent].map(|prediction| prediction.method().name());
        of_alone.push((*processor, by_alone));
        of_concurrent.push((*processor, by_concurrent));
        let (fitted, again) = (fitted.len(), apart(*processor, measured.alone, again.alone));
        processors.push(JudgedProcessor {
            processor: *processor,
            methods,
            fitted,
            again,
            alone,
            contended,
        });
    }
    let exact = InterpolatedCosts::new(measured.alone, measured.contended)?;
    let again = InterpolatedCosts::new(again.alone, again.contended)?;
    let predicted = Predicted {
        alone: of_alone.into_iter().collect(),
        contended: of_concurrent.into_iter().collect(),
    };
    let by_measurements = Solver::new(participants.to_vec(), &exact, joins)?;
    let by_predictions = Solver::new(participants.to_vec(), &predicted, joins)?;
    let second = Solver::new(participants.to_vec(), &again, joins)?;
    let lengths = planned_lengths(
        products
            .iter()
            .map(|product| product.shape.rows())
            .max()
            .unwrap_or(0),
    );
    let best = Plans::solve(&by_measurements, products, Restriction::Auto, &lengths)?;
    let chosen = Plans::solve(&by_predictions, products, Restriction::Auto, &lengths)?;
    let of_plans = |plans: &Plans| -> Vec<_> {
        let choices = plans.products().iter().flat_map(|plan| &plan.choices);
        choices
            .map(|choice| (choice.best.partition.pieces.clone(), choice.shape))
            .collect()
    };
    let (mut excesses, mut same) = (Vec::new(), 0);
    for ((best, shape), (chosen, _)) in of_plans(&best).into_iter().zip(of_plans(&chosen)) {
        let seconds = |pieces: &[Piece]| second.seconds(pieces, shape);
        same += usize::from(best == chosen);
        excesses.push(seconds(&chosen)? / seconds(&best)? - 1.0);
    }
    let choices = excesses.len();
    let mean_excess = excesses.iter().sum::<f64>() / choices.max(1) as f64;
    let largest_excess = excesses.iter().copied().fold(0.0, f64::max);
    Ok(Judged {
        processors,
        choices,
        same,
        mean_excess,
        largest_excess,
    })
}

fn has_same_shapes(first: &[Measurement], second: &[Measurement]) -> bool {
    let of = |all: &[Measurement]| {
        all.iter()
            .map(|one| (one.processor, one.shape))
            .collect::<HashSet<_>>()
    };
    of(first) == of(second)
}

/// Returns the deviation of a processor's second measurements from the first ones of the same shapes.
fn apart(processor: ProcessorId, first: &[Measurement], second: &[Measurement]) -> HeldOut {
    let here = |one: &&Measurement| one.processor == processor;
    let second: HashMap<_, _> = second
        .iter()
        .filter(here)
        .map(|one| (one.shape, one.seconds))
        .collect();
    let error = |one: &Measurement| {
        second
            .get(&one.shape)
            .map(|again| (again / one.seconds - 1.0).abs())
    };
    HeldOut::summarize(
        &first
            .iter()
            .filter(here)
            .filter_map(error)
            .collect::<Vec<_>>(),
    )
}

/// Returns every second shape in a pseudo-random order, and the shapes with the smallest and the largest sizes, because
/// predictions are known only between these.
fn fitted_shapes(measurements: &[Measurement], processor: ProcessorId) -> Vec<ProductShape> {
    let here = measurements.iter().filter(|one| one.processor == processor);
    let mut shapes: Vec<_> = here.map(|one| one.shape).collect();
    shapes.sort_by_key(scatter);
    let sizes: [fn(&ProductShape) -> usize; 3] = [
        ProductShape::rows,
        ProductShape::columns,
        ProductShape::depth,
    ];
    let ends = sizes.iter().flat_map(|size| {
        let least = shapes.iter().min_by_key(|shape| size(shape));
        least
            .into_iter()
            .chain(shapes.iter().max_by_key(|shape| size(shape)))
    });
    let mut fitted: Vec<_> = ends.chain(shapes.iter().step_by(2)).copied().collect();
    fitted.sort_unstable();
    fitted.dedup();
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::plans::products_of;
    use crate::partition::{Alignment, Shapes, StandardLengths};

    const CPU: ProcessorId = ProcessorId::new(0);
    const NPU: ProcessorId = ProcessorId::new(1);

    /// Judges simulated measurements. `noise` is called with the index of a measurement, of the first ones and then of
    /// the second ones.
    fn judged(noise: impl Fn(usize) -> f64) -> Judged {
        try_judged(noise, |_| ()).unwrap()
    }

    /// Judges simulated measurements as `judged` does. `change` is called with the second measurements.
    fn try_judged(
        noise: impl Fn(usize) -> f64,
        change: impl Fn(&mut Vec<Measurement>),
    ) -> Result<Judged, JudgeError> {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let alignment = Alignment {
            columns: 64,
            ..Alignment::default()
        };
        let products = products_of(&description, 256, |_, _| alignment).unwrap();
        let mut exact: Vec<Measurement> = Vec::new();
        for ModelProduct { shape, .. } in &products {
            for columns in (64..=shape.columns()).step_by(64) {
                for rows in [16, 32, 64, 128, 256] {
                    let shape = ProductShape::new(rows, columns, shape.depth()).unwrap();
                    // Shapes of the NPU are static.
                    for (processor, rate) in [(CPU, 1e11), (NPU, 3e11)]
                        .into_iter()
                        .take(if rows < 32 { 1 } else { 2 })
                    {
                        let is_known = exact
                            .iter()
                            .any(|one| one.processor == processor && one.shape == shape);
                        if !is_known {
                            // The NPU's array takes 256 columns at once.
                            let step = if processor == NPU { 256 } else { 1 };
                            let columns = columns.next_multiple_of(step) as f64 / columns as f64;
                            let seconds = 1e-5 + columns * shape.operations() / rate;
                            exact.push(Measurement {
                                processor,
                                shape,
                                seconds,
                            });
                        }
                    }
                }
            }
        }
        let lengths = StandardLengths::new(vec![32, 64, 128, 256]).unwrap();
        let participants = [
            Participant {
                processor: CPU,
                shapes: Shapes::Dynamic,
            },
            Participant {
                processor: NPU,
                shapes: Shapes::Static(lengths),
            },
        ];
        let joins = Joins::new(CPU, 1e-6, 2e-6, 0.0).unwrap();
        let noisy = |(index, one): (usize, &Measurement)| Measurement {
            seconds: one.seconds * noise(index),
            ..*one
        };
        let first: Vec<_> = exact.iter().enumerate().map(noisy).collect();
        let mut second: Vec<_> = (exact.len()..).zip(&exact).map(noisy).collect();
        change(&mut second);
        let [first, second] = [&first, &second].map(|all| Measured {
            alone: all,
            contended: all,
        });
        judge(first, second, &participants, joins, &products)
    }

    #[test]
    fn predictions_of_what_they_can_describe_lead_to_the_choices_of_the_measurements() {
        let judged = judged(|_| 1.0);
        let [rates, tree] = &judged.processors[..] else {
            panic!("{judged:?}")
        };
        assert_eq!((rates.methods, tree.methods), (["rates"; 2], ["tree"; 2]));
        assert!(
            rates.alone.largest < 1e-6 && rates.alone.measurements > 50,
            "{rates:?}"
        );
        assert!(tree.alone.mean > 0.0 && tree.alone.mean < 0.1, "{tree:?}");
        assert_eq!((tree.again.mean, tree.again.largest), (0.0, 0.0));
        assert_eq!(judged.choices, 4 * planned_lengths(256).len());
        assert!((0.0..0.03).contains(&judged.mean_excess), "{judged:?}");
    }

    #[test]
    fn bad_predictions_are_found_by_their_error_and_by_what_their_choices_take() {
        // The measurements that predictions are fitted to are noisy, the second ones are not.
        let is_off = |index: usize| (index * 7919).is_multiple_of(5);
        let noisy = judged(|index| {
            if index < 300 && is_off(index) {
                4.0
            } else {
                1.0
            }
        });
        let good = judged(|_| 1.0);
        assert!(
            noisy.mean_excess > 0.0 && noisy.largest_excess > good.largest_excess,
            "{noisy:?}"
        );
        assert!(noisy.processors[0].alone.mean > good.processors[0].alone.mean);
        assert!(noisy.processors[0].again.mean > 0.05);
        assert!(noisy.same < noisy.choices);
    }

    #[test]
    fn products_that_were_measured_once_are_refused() {
        let refused = try_judged(|_| 1.0, |second| _ = second.remove(second.len() / 2));
        assert_eq!(refused, Err(JudgeError::Again));
    }

    #[test]
    fn measurements_that_choices_were_made_by_do_not_judge_them() {
        // The times of both measurements have a noise of ±10 %.
        let noise = |index: usize| {
            let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
            0.9 + 0.2 * (mixed % 1000) as f64 / 1000.0
        };
        let by_second = judged(noise);
        assert!(
            by_second.processors.iter().all(|one| one.again.mean > 0.05),
            "{by_second:?}"
        );
        // By the times that they were chosen by, the choices seem faster than they are.
        let measurements: usize = by_second
            .processors
            .iter()
            .map(|one| one.again.measurements)
            .sum();
        let by_first = judged(|index| noise(index % measurements));
        assert!(
            by_first.processors.iter().all(|one| one.again.mean == 0.0),
            "{by_first:?}"
        );
        assert!(
            by_second.mean_excess < 0.8 * by_first.mean_excess,
            "{} {}",
            by_second.mean_excess,
            by_first.mean_excess
        );
    }
}

//! Whether predicted costs are good enough: what the solver chooses by predictions that were fitted to a part of the
//! measurements, against what it chooses by all of them (§4.3).

use serde::Serialize;

use super::costs::{Costs, Joins, Measurement, MeasurementError};
use super::interpolate::InterpolatedCosts;
use super::plans::{ModelProduct, Plans};
use super::predict::{FitError, HeldOut, Method, PredictedCosts, Prediction, scatter};
use super::solve::{Restriction, Solver};
use super::{Participant, PartitionError, Piece, ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// What was measured on processors, each alone and beside the others.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// While no other processor computes.
    pub alone: &'a [Measurement],
    /// While all others do.
    pub beside: &'a [Measurement],
}

/// How good predictions are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// By processor.
    pub processors: Vec<JudgedProcessor>,
    /// Products times lengths that the solver chose for.
    pub choices: usize,
    /// Of these, as many are the same by predictions as by measurements.
    pub same: usize,
    /// The mean of what the choices by predictions take, by the measurements, relative to those by measurements: 0 where
    /// all take the same.
    pub mean_excess: f64,
    /// The largest one.
    pub largest_excess: f64,
}

/// How far off predictions are on one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedProcessor {
    /// Which one.
    pub processor: ProcessorId,
    /// `tree` or `rates`.
    pub method: &'static str,
    /// Shapes that the predictions were fitted to.
    pub fitted: usize,
    /// On the other shapes, alone.
    pub alone: HeldOut,
    /// On the other shapes, beside the other processors.
    pub beside: HeldOut,
}

/// Predictions that can't be judged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JudgeError {
    /// Too few measurements.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A measurement that is none.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// Products that can't be planned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

/// Predicted costs, alone and beside others.
struct Predicted {
    alone: PredictedCosts,
    beside: PredictedCosts,
}

impl Costs for Predicted {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.alone.seconds(processor, shape)
    }

    fn seconds_beside(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.beside.seconds(processor, shape)
    }
}

/// Fits predictions to about half of the shapes that were measured on each participant, by a decision tree where shapes
/// are static and by rates elsewhere, and compares them on the other half, and the solver's choices by them with those by
/// all measurements.
///
/// # Errors
/// If too few shapes were measured on a participant, or the products can't be planned.
pub fn judge(
    measured: Measured,
    participants: &[Participant],
    joins: Joins,
    products: &[ModelProduct],
) -> Result<Judged, JudgeError> {
    let mut processors = Vec::new();
    let (mut of_alone, mut of_beside) = (Vec::new(), Vec::new());
    for Participant { processor, shapes } in participants {
        let method = match shapes {
            super::Shapes::Static(_) => Method::TREE,
            super::Shapes::Dynamic => Method::Rates,
        };
        let fitted = fitted_shapes(measured.alone, *processor);
        let fit = |measurements: &[Measurement]| -> Result<_, FitError> {
            let here = measurements.iter().filter(|one| one.processor == *processor);
            let (fit, held): (Vec<_>, Vec<_>) = here.copied().partition(|one| fitted.contains(&one.shape));
            let prediction = Prediction::fit(method, *processor, &fit)?;
            let error = |one: &Measurement| prediction.seconds(one.shape).map(|seconds| seconds / one.seconds - 1.0);
            let errors: Vec<_> = held.iter().filter_map(error).map(f64::abs).collect();
            Ok((HeldOut::of(&errors), prediction))
        };
        let (alone, prediction) = fit(measured.alone)?;
        of_alone.push((*processor, prediction));
        let (beside, prediction) = fit(measured.beside)?;
        of_beside.push((*processor, prediction));
        let (method, fitted) = (method.name(), fitted.len());
        processors.push(JudgedProcessor { processor: *processor, method, fitted, alone, beside });
    }
    let exact = InterpolatedCosts::new(measured.alone, measured.beside)?;
    let predicted = Predicted { alone: of_alone.into_iter().collect(), beside: of_beside.into_iter().collect() };
    let by_measurements = Solver::new(participants.to_vec(), &exact, joins)?;
    let by_predictions = Solver::new(participants.to_vec(), &predicted, joins)?;
    let best = Plans::solve(&by_measurements, products, Restriction::Auto)?;
    let chosen = Plans::solve(&by_predictions, products, Restriction::Auto)?;
    let of_plans = |plans: &Plans| -> Vec<_> {
        let choices = plans.products().iter().flat_map(|plan| &plan.choices);
        choices.map(|choice| (choice.best.partition.pieces.clone(), choice.shape)).collect()
    };
    let (mut excesses, mut same) = (Vec::new(), 0);
    for ((best, shape), (chosen, _)) in of_plans(&best).into_iter().zip(of_plans(&chosen)) {
        let seconds = |pieces: &[Piece]| by_measurements.seconds(pieces, shape);
        same += usize::from(best == chosen);
        excesses.push(seconds(&chosen)? / seconds(&best)? - 1.0);
    }
    let choices = excesses.len();
    let mean_excess = excesses.iter().sum::<f64>() / choices.max(1) as f64;
    let largest_excess = excesses.iter().copied().fold(0.0, f64::max);
    Ok(Judged { processors, choices, same, mean_excess, largest_excess })
}

/// Every second shape, as if by chance, and with them those of the smallest and the largest sizes, between which
/// predictions are known.
fn fitted_shapes(measurements: &[Measurement], processor: ProcessorId) -> Vec<ProductShape> {
    let here = measurements.iter().filter(|one| one.processor == processor);
    let mut shapes: Vec<_> = here.map(|one| one.shape).collect();
    shapes.sort_by_key(scatter);
    let sizes: [fn(&ProductShape) -> usize; 3] = [ProductShape::rows, ProductShape::columns, ProductShape::depth];
    let ends = sizes.iter().flat_map(|size| {
        let least = shapes.iter().min_by_key(|shape| size(shape));
        least.into_iter().chain(shapes.iter().max_by_key(|shape| size(shape)))
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

    fn judged(noise: impl Fn(usize) -> f64) -> Judged {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let alignment = Alignment { columns: 64, rows: 32 };
        let products = products_of(&description, 256, |_, _| alignment).unwrap();
        let mut measurements: Vec<Measurement> = Vec::new();
        for ModelProduct { shape, .. } in &products {
            for columns in (64..=shape.columns()).step_by(64) {
                for rows in [32, 64, 128, 256] {
                    let shape = ProductShape::new(rows, columns, shape.depth()).unwrap();
                    for (processor, rate) in [(CPU, 1e11), (NPU, 3e11)] {
                        let is_known = measurements.iter().any(|one| one.processor == processor && one.shape == shape);
                        if !is_known {
                            let seconds = (1e-5 + shape.operations() / rate) * noise(measurements.len());
                            measurements.push(Measurement { processor, shape, seconds });
                        }
                    }
                }
            }
        }
        let lengths = StandardLengths::new(vec![32, 64, 128, 256]).unwrap();
        let participants = [
            Participant { processor: CPU, shapes: Shapes::Dynamic },
            Participant { processor: NPU, shapes: Shapes::Static(lengths) },
        ];
        let joins = Joins::new(CPU, 1e-6, 2e-6, 0.0).unwrap();
        let measured = Measured { alone: &measurements, beside: &measurements };
        judge(measured, &participants, joins, &products).unwrap()
    }

    #[test]
    fn predictions_of_what_they_can_describe_lead_to_the_choices_of_the_measurements() {
        let judged = judged(|_| 1.0);
        let [rates, tree] = &judged.processors[..] else { panic!("{judged:?}") };
        assert_eq!((rates.method, tree.method), ("rates", "tree"));
        assert!(rates.alone.largest < 1e-6 && rates.alone.measurements > 50, "{rates:?}");
        assert!(tree.alone.mean > 0.0 && tree.alone.mean < 0.1, "{tree:?}");
        assert_eq!(judged.choices, 4 * 8);
        assert!((0.0..0.03).contains(&judged.mean_excess), "{judged:?}");
    }

    #[test]
    fn bad_predictions_are_found_by_their_error_and_by_what_their_choices_take() {
        let noisy = judged(|index| if index * 7919 % 5 == 0 { 4.0 } else { 1.0 });
        let good = judged(|_| 1.0);
        assert!(noisy.mean_excess > good.mean_excess && noisy.largest_excess >= noisy.mean_excess, "{noisy:?}");
        assert!(noisy.processors[0].alone.mean > good.processors[0].alone.mean);
        assert!(noisy.same < noisy.choices);
    }
}

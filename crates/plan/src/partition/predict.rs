//! Predicted costs (§4.3): fixed rates, and a decision tree of the deviation from these rates for a processor whose
//! times have steps.
//!
//! Both are fitted to measurements and evaluated on shapes that they were not fitted to.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::costs::{Costs, Measurement, MeasurementError};
use super::tree::{Limits, RegressionTree, Sample};
use super::{ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// Number of folds of the cross-validation: each is predicted from the others.
const FOLDS: usize = 5;
/// Minimum number of shapes for a fit: two for each fold.
const FEWEST_SHAPES: usize = 2 * FOLDS;
/// Errors that differ by at most this are equal except for rounding.
const ROUNDING: f64 = 1e-9;
/// Number of fixed rates: [`terms`].
const TERMS: usize = 4;

/// A method of predicting the costs of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Fixed rates and a decision tree, for a processor whose speed depends on the shape: an NPU (§3.2). The leaves of
    /// the tree contain the ratio of the time to that by the rates.
    Tree {
        /// Sizes are rounded up to a multiple of this number, the side of the processor's array of multipliers; 1 if it
        /// is not known.
        step: usize,
        /// Maximum number of cuts from the root to a leaf.
        depth: usize,
        /// Minimum number of shapes in a leaf.
        leaf: usize,
    },
    /// Fixed rates, for a processor whose speed does not depend on the shape: a GPU (§3.1). There is a time per launch,
    /// per operation (multiplication or addition), per weight, which dominates for the few rows of decode, and per
    /// output.
    Rates,
}

impl Method {
    /// Returns the methods to try for a processor: rates, and trees with different leaves. Small leaves follow the
    /// times closely, large ones follow noise less.
    pub fn candidates(has_static_shapes: bool) -> [Self; 4] {
        let step = if has_static_shapes { 32 } else { 1 };
        let tree = |leaf| Self::Tree {
            step,
            depth: 10,
            leaf,
        };
        [Self::Rates, tree(2), tree(4), tree(8)]
    }

    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree { .. } => "tree",
            Self::Rates => "rates",
        }
    }
}

/// An error in fitting a prediction.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There are too few shapes.
    #[error("{shapes} shapes were measured on processor {}: expected at least {FEWEST_SHAPES} to predict others", processor.index())]
    Few {
        /// The processor.
        processor: ProcessorId,
        /// Number of different shapes.
        shapes: usize,
    },
    /// The step or the leaf size is 0.
    #[error(
        "a tree with a step of {step} and leaves of {leaf} shapes: expected at least 1 of both"
    )]
    Tree {
        /// The multiple to which sizes are rounded up.
        step: usize,
        /// Minimum number of shapes in a leaf.
        leaf: usize,
    },
    /// A time is not finite or not above 0.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
}

/// Errors of predictions on shapes that they were not fitted to: |predicted / measured − 1|. The errors of a
/// [`Prediction`] come from a cross-validation with five folds of the measured shapes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// Number of predicted times.
    pub measurements: usize,
    /// The mean error.
    pub mean: f64,
    /// The largest error.
    pub largest: f64,
}

impl HeldOut {
    /// Summarizes errors.
    pub(super) fn summarize(errors: &[f64]) -> Self {
        let (measurements, sum): (_, f64) = (errors.len(), errors.iter().sum());
        let largest = errors.iter().copied().fold(0.0, f64::max);
        Self {
            measurements,
            mean: sum / measurements.max(1) as f64,
            largest,
        }
    }
}

/// A prediction of the seconds of products on one processor.
#[derive(Clone, Debug)]
pub struct Prediction {
    method: Method,
    model: Model,
    /// The smallest and the largest measured size of rows, columns and depth.
    range: [(usize, usize); 3],
    held_out: HeldOut,
}

impl Prediction {
    /// Fits a prediction to the measurements on `processor`; other measurements are ignored. A shape may be measured
    /// several times.
    ///
    /// # Errors
    /// If fewer than ten shapes were measured, a time is not finite or not above 0, or the step or the leaf size of a
    /// tree is 0.
    pub fn fit(
        method: Method,
        processor: ProcessorId,
        measurements: &[Measurement],
    ) -> Result<Self, FitError> {
        if let Method::Tree { step, leaf, .. } = method
            && (step == 0 || leaf == 0)
        {
            return Err(FitError::Tree { step, leaf });
        }
        let here = measurements
            .iter()
            .filter(|measurement| measurement.processor == processor);
        let measured: Vec<_> = here
            .map(|one| one.check().map(|()| (one.shape, one.seconds)))
            .collect::<Result<_, _>>()?;
        let mut shapes: Vec<_> = BTreeSet::from_iter(measured.iter().map(|(shape, _)| *shape))
            .into_iter()
            .collect();
        if shapes.len() < FEWEST_SHAPES {
            return Err(FitError::Few {
                processor,
                shapes: shapes.len(),
            });
        }
        let of_sizes = |size: fn(&ProductShape) -> usize| {
            let sizes = || shapes.iter().map(size);
            (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0))
        };
        let range = [
            of_sizes(ProductShape::rows),
            of_sizes(ProductShape::columns),
            of_sizes(ProductShape::depth),
        ];
        // In the order of shapes, all measurements of one size could be in the same fold.
        shapes.sort_by_key(scatter);
        let fold: HashMap<_, _> = shapes
            .into_iter()
            .enumerate()
            .map(|(index, shape)| (shape, index % FOLDS))
            .collect();
        let mut errors = Vec::with_capacity(measured.len());
        for part in 0..FOLDS {
            let (held, fitted): (Vec<_>, Vec<_>) = measured
                .iter()
                .copied()
                .partition(|(shape, _)| fold[shape] == part);
            let model = Model::fit(method, &fitted);
            errors.extend(
                held.iter()
                    .map(|(shape, seconds)| (model.seconds(*shape) / seconds - 1.0).abs()),
            );
        }
        Ok(Self {
            method,
            model: Model::fit(method, &measured),
            range,
            held_out: HeldOut::summarize(&errors),
        })
    }

    /// Fits several methods and returns the prediction with the least mean error; of equal ones, the first.
    ///
    /// # Errors
    /// See [`Prediction::fit`].
    ///
    /// # Panics
    /// If `methods` is empty.
    pub fn best(
        methods: &[Method],
        processor: ProcessorId,
        measurements: &[Measurement],
    ) -> Result<Self, FitError> {
        let fit = |method: &Method| Self::fit(*method, processor, measurements);
        let fits = methods.iter().map(fit).collect::<Result<Vec<_>, _>>()?;
        let least = fits
            .iter()
            .map(|fit| fit.held_out.mean)
            .fold(f64::INFINITY, f64::min);
        let best = fits
            .into_iter()
            .find(|fit| fit.held_out.mean <= least + ROUNDING);
        Ok(best.expect("at least one method"))
    }

    /// Returns the method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns the errors of the cross-validation.
    pub fn held_out(&self) -> HeldOut {
        self.held_out
    }

    /// Returns the seconds of a product; `None` if one of its sizes is outside of the measured range.
    pub fn seconds(&self, shape: ProductShape) -> Option<f64> {
        let sizes = [shape.rows, shape.columns, shape.depth];
        let is_within = sizes
            .into_iter()
            .zip(self.range)
            .all(|(size, (least, most))| (least..=most).contains(&size));
        is_within.then(|| self.model.seconds(shape))
    }
}

/// Predictions for several processors.
#[derive(Clone, Debug, Default)]
pub struct PredictedCosts(HashMap<ProcessorId, Prediction>);

impl FromIterator<(ProcessorId, Prediction)> for PredictedCosts {
    /// Collects predictions. Of several for one processor, the last one counts.
    fn from_iter<T: IntoIterator<Item = (ProcessorId, Prediction)>>(predictions: T) -> Self {
        Self(predictions.into_iter().collect())
    }
}

impl Costs for PredictedCosts {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        let seconds = self
            .0
            .get(&processor)
            .and_then(|prediction| prediction.seconds(shape));
        seconds.ok_or(UnknownCost { processor, shape })
    }
}

/// Returns a hash that orders shapes pseudo-randomly, but always in the same way.
pub(super) fn scatter(shape: &ProductShape) -> u64 {
    [shape.rows, shape.columns, shape.depth]
        .iter()
        .fold(0, |hash: u64, size| {
            let mixed = (hash ^ *size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        })
}

#[derive(Clone, Debug)]
enum Model {
    /// Rates, and a tree of the logarithm of the ratio of seconds to those by the rates.
    Tree {
        step: usize,
        rates: [f64; TERMS],
        tree: RegressionTree<5>,
    },
    /// Seconds per unit of each of the [`terms`].
    Rates([f64; TERMS]),
}

impl Model {
    fn fit(method: Method, measured: &[(ProductShape, f64)]) -> Self {
        match method {
            Method::Tree { step, depth, leaf } => {
                let measured: Vec<_> = measured
                    .iter()
                    .map(|(shape, seconds)| (features(*shape, step), *seconds))
                    .collect();
                let rates = fit_rates(
                    measured
                        .iter()
                        .map(|(features, seconds)| (terms(features), *seconds)),
                );
                let sample = |(features, seconds): &([f64; 5], f64)| {
                    let target = (seconds / seconds_by(&rates, features)).ln();
                    Sample {
                        features: *features,
                        target,
                    }
                };
                let samples: Vec<_> = measured.iter().map(sample).collect();
                Self::Tree {
                    step,
                    rates,
                    tree: RegressionTree::fit(&samples, Limits { depth, leaf }),
                }
            }
            Method::Rates => {
                let terms = |(shape, seconds): &(ProductShape, f64)| {
                    (terms(&features(*shape, 1)), *seconds)
                };
                Self::Rates(fit_rates(measured.iter().map(terms)))
            }
        }
    }

    fn seconds(&self, shape: ProductShape) -> f64 {
        match self {
            Self::Tree { step, rates, tree } => {
                let features = features(shape, *step);
                tree.predict(&features).exp() * seconds_by(rates, &features)
            }
            Self::Rates(rates) => seconds_by(rates, &features(shape, 1)),
        }
    }
}

/// Returns rows, columns, depth, weights, and weights times rows, with all sizes rounded up to a multiple of `step`.
fn features(shape: ProductShape, step: usize) -> [f64; 5] {
    let [rows, columns, depth] = [shape.rows, shape.columns, shape.depth]
        .map(|size| (size.div_ceil(step) as f64) * step as f64);
    [
        rows,
        columns,
        depth,
        columns * depth,
        rows * columns * depth,
    ]
}

/// Returns the factors of the rates for a product with these [`features`]: launches, operations, weights and outputs.
fn terms(features: &[f64; 5]) -> [f64; TERMS] {
    let [rows, columns, _, weights, products] = *features;
    [1.0, 2.0 * products, weights, rows * columns]
}

/// Returns the seconds by rates.
fn seconds_by(rates: &[f64; TERMS], features: &[f64; 5]) -> f64 {
    rates
        .iter()
        .zip(terms(features))
        .map(|(rate, term)| rate * term)
        .sum()
}

/// Returns the non-negative rates of [`terms`] with the least sum of squared relative errors of seconds.
fn fit_rates(measured: impl Iterator<Item = ([f64; TERMS], f64)>) -> [f64; TERMS] {
    const ALL: [usize; TERMS] = [0, 1, 2, 3];
    // Terms are divided by the measured time, so that the target is 1. They are scaled to at most 1, because there is
    // one launch but millions of weights.
    let relative: Vec<_> = measured
        .map(|(terms, seconds)| terms.map(|term| term / seconds))
        .collect();
    let scales = ALL.map(|term| relative.iter().map(|terms| terms[term]).fold(0.0, f64::max));
    let rows: Vec<_> = relative
        .iter()
        .map(|terms| ALL.map(|term| terms[term] / scales[term]))
        .collect();
    let mut best = ([0.0; TERMS], f64::INFINITY);
    // The non-negative least-squares solution is the ordinary one of some subset of the terms.
    for used in 1usize..1 << TERMS {
        let used = ALL.map(|term| used & (1 << term) != 0);
        let Some(rates) = least_squares(&rows, used) else {
            continue;
        };
        let error = |terms: &[f64; TERMS]| {
            terms
                .iter()
                .zip(&rates)
                .map(|(term, rate)| term * rate)
                .sum::<f64>()
                - 1.0
        };
        let sum = rows.iter().map(|terms| error(terms).powi(2)).sum();
        if rates.iter().all(|rate| *rate >= 0.0) && sum < best.1 {
            best = (rates, sum);
        }
    }
    ALL.map(|term| best.0[term] / scales[term])
}

/// Returns the least-squares rates of the used terms for a target of 1 in all rows; `None` if the solution is not
/// unique.
fn least_squares(rows: &[[f64; TERMS]], used: [bool; TERMS]) -> Option<[f64; TERMS]> {
    /// A pivot below this is zero except for rounding.
    const SINGULAR: f64 = 1e-12;
    // The normal equations. A term that is not used has the equation rate = 0.
    let mut equations = [[0.0; TERMS + 1]; TERMS];
    for (term, equation) in equations.iter_mut().enumerate() {
        if !used[term] {
            equation[term] = 1.0;
            continue;
        }
        for row in rows {
            for other in (0..TERMS).filter(|other| used[*other]) {
                equation[other] += row[term] * row[other];
            }
            equation[TERMS] += row[term];
        }
    }
    // The matrix is symmetric and positive semidefinite, so no pivoting is needed.
    for pivot in 0..TERMS {
        let value = equations[pivot][pivot];
        if value <= SINGULAR {
            return None;
        }
        equations[pivot] = equations[pivot].map(|entry| entry / value);
        let of_pivot = equations[pivot];
        for (_, equation) in equations
            .iter_mut()
            .enumerate()
            .filter(|(term, _)| *term != pivot)
        {
            let factor = equation[pivot];
            for (entry, subtrahend) in equation.iter_mut().zip(of_pivot) {
                *entry -= factor * subtrahend;
            }
        }
    }
    Some(equations.map(|equation| equation[TERMS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use proptest::prelude::*;

    const NPU: ProcessorId = ProcessorId::new(0);
    const TREE: Method = Method::Tree {
        step: 32,
        depth: 10,
        leaf: 2,
    };

    fn shape(rows: usize, columns: usize, depth: usize) -> ProductShape {
        ProductShape::new(rows, columns, depth).unwrap()
    }

    /// Returns standard lengths by widths by depths of models.
    fn grid() -> Vec<ProductShape> {
        let rows = [32, 64, 128, 256, 512, 1024];
        let columns = (1..=16).map(|tiles| 256 * tiles * tiles.max(4) / 4);
        let depths = [2048, 4096, 5504, 11_008];
        columns
            .flat_map(|columns| rows.map(|rows| depths.map(|depth| shape(rows, columns, depth))))
            .flatten()
            .collect()
    }

    fn measured(seconds: impl Fn(ProductShape) -> f64) -> Vec<Measurement> {
        grid()
            .into_iter()
            .map(|shape| Measurement {
                processor: NPU,
                shape,
                seconds: seconds(shape),
            })
            .collect()
    }

    fn npu_seconds(shape: ProductShape) -> f64 {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        device.npu_product(shape.rows, shape.depth, shape.columns)
    }

    #[test]
    fn a_tree_reports_its_error_on_shapes_that_it_was_not_fitted_to() {
        let measurements = measured(npu_seconds);
        let prediction = Prediction::fit(TREE, NPU, &measurements).unwrap();
        let held_out = prediction.held_out();
        assert_eq!(held_out.measurements, measurements.len());
        // The error is larger than on the shapes that it was fitted to, but small enough to be useful.
        let error =
            |one: &Measurement| (prediction.seconds(one.shape).unwrap() / one.seconds - 1.0).abs();
        let fitted = measurements.iter().map(error).sum::<f64>() / measurements.len() as f64;
        assert!(
            fitted < held_out.mean && held_out.mean < held_out.largest,
            "{fitted} {held_out:?}"
        );
        assert!(held_out.mean < 0.1, "{held_out:?}");
    }

    #[test]
    fn sizes_within_a_step_are_predicted_to_take_the_same() {
        let prediction = Prediction::fit(TREE, NPU, &measured(npu_seconds)).unwrap();
        let seconds = |rows| prediction.seconds(shape(rows, 2048, 2048)).unwrap();
        assert_eq!(seconds(33), seconds(64));
        assert!(seconds(64) < seconds(1024));
    }

    #[test]
    fn what_is_outside_of_the_measurements_is_an_error_that_names_the_shape() {
        let prediction = Prediction::fit(Method::Rates, NPU, &measured(npu_seconds)).unwrap();
        let costs: PredictedCosts = [(NPU, prediction)].into_iter().collect();
        assert!(costs.seconds(NPU, shape(33, 300, 3000)).is_ok());
        for (rows, columns, depth) in [
            (31, 256, 2048),
            (1025, 256, 2048),
            (32, 255, 2048),
            (32, 256, 11_009),
        ] {
            let error = costs
                .seconds(NPU, shape(rows, columns, depth))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("{rows} rows × {columns} columns × depth {depth}")),
                "{error}"
            );
        }
        assert!(
            costs
                .seconds(ProcessorId::new(1), shape(32, 256, 2048))
                .is_err()
        );
    }

    #[test]
    fn too_few_shapes_and_times_that_are_none_are_refused() {
        let mut measurements = measured(npu_seconds);
        let fit = |method, measurements: &[Measurement]| {
            Prediction::fit(method, NPU, measurements).unwrap_err()
        };
        let same = vec![measurements[0]; 20];
        assert_eq!(
            fit(TREE, &same),
            FitError::Few {
                processor: NPU,
                shapes: 1
            }
        );
        assert!(
            fit(
                Method::Tree {
                    step: 0,
                    depth: 4,
                    leaf: 1
                },
                &measurements
            )
            .to_string()
            .contains("step of 0")
        );
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            measurements[3].seconds = seconds;
            let error = fit(Method::Rates, &measurements).to_string();
            assert!(
                error.contains(&measurements[3].shape.to_string()),
                "{error}"
            );
        }
        let other = ProcessorId::new(1);
        assert_eq!(
            Prediction::fit(TREE, other, &measurements).unwrap_err(),
            FitError::Few {
                processor: other,
                shapes: 0
            }
        );
    }

    #[test]
    fn the_method_with_the_least_error_on_other_shapes_predicts() {
        // No rates describe steps of 512 columns and a slow depth.
        let stepped = measured(|shape| {
            let factor = if shape.depth > 4096 { 3.0 } else { 1.0 };
            factor * (shape.rows * shape.columns.next_multiple_of(512) * shape.depth) as f64 * 1e-12
        });
        let methods = Method::candidates(true);
        let best = Prediction::best(&methods, NPU, &stepped).unwrap();
        assert!(
            matches!(best.method(), Method::Tree { .. }),
            "{:?}",
            best.method()
        );
        let error = |method: &Method| {
            Prediction::fit(*method, NPU, &stepped)
                .unwrap()
                .held_out()
                .mean
        };
        assert!(
            methods
                .iter()
                .all(|method| best.held_out().mean <= error(method))
        );
        assert!(best.held_out().mean < 0.5 * error(&Method::Rates));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn fixed_rates_are_found_again(
            launch in 0f64..1e-3,
            operation in 1e-13f64..1e-11,
            weight in 0f64..1e-9,
            output in 0f64..1e-8,
        ) {
            let rates = Model::Rates([launch, operation, weight, output]);
            let measurements = measured(|shape| rates.seconds(shape));
            let prediction = Prediction::best(&Method::candidates(false), NPU, &measurements).unwrap();
            prop_assert!(prediction.held_out().largest < 1e-6, "{:?}", prediction.held_out());
        }

        #[test]
        fn rates_are_never_below_zero(noise in prop::collection::vec(0.1f64..10.0, grid().len())) {
            let mut noise = noise.into_iter().cycle();
            let measurements: Vec<_> = measured(npu_seconds)
                .into_iter()
                .map(|one| Measurement { seconds: one.seconds * noise.next().unwrap(), ..one })
                .collect();
            let Model::Rates(rates) = Prediction::fit(Method::Rates, NPU, &measurements).unwrap().model else {
                panic!("other than asked for")
            };
            prop_assert!(rates.iter().all(|rate| *rate >= 0.0 && rate.is_finite()), "{:?}", rates);
        }
    }
}

//! Predicted costs (§4.3): fixed rates, and a decision tree of what times are beside them for a processor whose times have
//! steps.
//!
//! Both are fitted to measurements, and both are judged by shapes that they were not fitted to.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::costs::{Costs, Measurement, MeasurementError};
use super::tree::{Limits, RegressionTree, Sample};
use super::{ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// Parts that measurements are cut into: each is predicted from the others.
const FOLDS: usize = 5;
/// Shapes that a prediction is fitted to, at least: two of each part.
const FEWEST_SHAPES: usize = 2 * FOLDS;
/// Errors of predictions that are no more apart than this are the same but for rounding.
const ROUNDING: f64 = 1e-9;
/// What fixed rates are of: [`terms`].
const TERMS: usize = 4;

/// How the costs of a processor are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By fixed rates and a decision tree, for a processor whose speed depends on the shape: an NPU (§3.2). Its leaves have
    /// what times are as multiples of those by the rates.
    Tree {
        /// Sizes count as the next multiple of this, the side of the array that multiplies; 1 if it is not known.
        step: usize,
        /// Cuts from the root to a leaf, at most.
        depth: usize,
        /// Shapes of a leaf, at least.
        leaf: usize,
    },
    /// By fixed rates, for a processor whose speed does not: a GPU (§3.1). A launch, a time for each multiplication and
    /// addition, one for each weight, which is what the few rows of decode take, and one for each output.
    Rates,
}

impl Method {
    /// What may predict a processor: rates, and trees whose leaves have few shapes, which follow the times, or more, which
    /// follow their noise less.
    pub fn candidates(has_static_shapes: bool) -> [Self; 4] {
        let step = if has_static_shapes { 32 } else { 1 };
        let tree = |leaf| Self::Tree {
            step,
            depth: 10,
            leaf,
        };
        [Self::Rates, tree(2), tree(4), tree(8)]
    }

    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree { .. } => "tree",
            Self::Rates => "rates",
        }
    }
}

/// A processor that can't be predicted from what was measured on it.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Too few shapes.
    #[error("{shapes} shapes were measured on processor {}: expected at least {FEWEST_SHAPES} to predict others", processor.index())]
    Few {
        /// Which one.
        processor: ProcessorId,
        /// How many different ones there are.
        shapes: usize,
    },
    /// A step, a depth or a leaf that makes no tree.
    #[error(
        "a tree with a step of {step} and leaves of {leaf} shapes: expected at least 1 of both"
    )]
    Tree {
        /// What sizes count in multiples of.
        step: usize,
        /// Shapes of a leaf.
        leaf: usize,
    },
    /// A time that is none.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
}

/// How far predictions are off for shapes that they were not fitted to: |predicted / measured − 1|. Those of a
/// [`Prediction`] are of measured shapes cut into five parts, each of which is predicted by a fit to the other four.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// Times that were predicted.
    pub measurements: usize,
    /// The mean of their errors.
    pub mean: f64,
    /// The largest one.
    pub largest: f64,
}

impl HeldOut {
    /// Of some errors.
    pub(super) fn of(errors: &[f64]) -> Self {
        let (measurements, sum): (_, f64) = (errors.len(), errors.iter().sum());
        let largest = errors.iter().copied().fold(0.0, f64::max);
        Self {
            measurements,
            mean: sum / measurements.max(1) as f64,
            largest,
        }
    }
}

/// Predicts seconds of products on one processor.
#[derive(Clone, Debug)]
pub struct Prediction {
    method: Method,
    model: Model,
    /// The smallest and the largest size that was measured, of rows, columns and depth.
    range: [(usize, usize); 3],
    held_out: HeldOut,
}

impl Prediction {
    /// Fitted to what was measured on `processor`; other measurements are left out. A shape may be measured several
    /// times.
    ///
    /// # Errors
    /// If fewer than ten shapes were measured, a time is not finite or not above 0, or a tree has a step or leaves of
    /// 0.
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
        // In the order of the shapes, a part could have all measurements of one size.
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
            held_out: HeldOut::of(&errors),
        })
    }

    /// The one of several methods whose predictions are least off; of several the first one.
    ///
    /// # Errors
    /// As [`Prediction::fit`].
    ///
    /// # Panics
    /// If there is no method.
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
        Ok(best.expect("a method"))
    }

    /// How it predicts.
    pub fn method(&self) -> Method {
        self.method
    }

    /// How far it is off.
    pub fn held_out(&self) -> HeldOut {
        self.held_out
    }

    /// Seconds of a product; `None` if one of its sizes is below or above all that were measured.
    pub fn seconds(&self, shape: ProductShape) -> Option<f64> {
        let sizes = [shape.rows, shape.columns, shape.depth];
        let is_within = sizes
            .into_iter()
            .zip(self.range)
            .all(|(size, (least, most))| (least..=most).contains(&size));
        is_within.then(|| self.model.seconds(shape))
    }
}

/// Predictions for a list of processors.
#[derive(Clone, Debug, Default)]
pub struct PredictedCosts(HashMap<ProcessorId, Prediction>);

impl FromIterator<(ProcessorId, Prediction)> for PredictedCosts {
    /// Of several predictions of a processor, the last one counts.
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

/// Orders shapes as if by chance, and always in the same way.
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
    /// Rates, and of sizes in steps the logarithm of what seconds are as a multiple of theirs.
    Tree {
        step: usize,
        rates: [f64; TERMS],
        tree: RegressionTree<5>,
    },
    /// Seconds of each of the [`terms`].
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

/// Rows, columns, depth, weights, and weights times rows: all sizes in whole steps.
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

/// What the rates of a product with these [`features`] are multiplied by: a launch, operations, weights and outputs.
fn terms(features: &[f64; 5]) -> [f64; TERMS] {
    let [rows, columns, _, weights, products] = *features;
    [1.0, 2.0 * products, weights, rows * columns]
}

/// Seconds by rates.
fn seconds_by(rates: &[f64; TERMS], features: &[f64; 5]) -> f64 {
    rates
        .iter()
        .zip(terms(features))
        .map(|(rate, term)| rate * term)
        .sum()
}

/// The rates of [`terms`], none below zero, with the least sum of squared relative errors of seconds.
fn fit_rates(measured: impl Iterator<Item = ([f64; TERMS], f64)>) -> [f64; TERMS] {
    const ALL: [usize; TERMS] = [0, 1, 2, 3];
    // Relative to the time, each measurement is 1; terms are scaled to at most 1, since launches are seconds and
    // weights millions.
    let relative: Vec<_> = measured
        .map(|(terms, seconds)| terms.map(|term| term / seconds))
        .collect();
    let scales = ALL.map(|term| relative.iter().map(|terms| terms[term]).fold(0.0, f64::max));
    let rows: Vec<_> = relative
        .iter()
        .map(|terms| ALL.map(|term| terms[term] / scales[term]))
        .collect();
    let mut best = ([0.0; TERMS], f64::INFINITY);
    // The least squares with none below zero are the least squares of some of the terms.
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

/// The rates of the terms in use for which all rows are nearest to 1; `None` if that is more than one solution.
fn least_squares(rows: &[[f64; TERMS]], used: [bool; TERMS]) -> Option<[f64; TERMS]> {
    /// A pivot below this is zero but for rounding.
    const SINGULAR: f64 = 1e-12;
    // The normal equations; a term that is not used has the equation rate = 0.
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
    // They are symmetric and not negative: no pivoting is needed.
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

    /// Standard lengths by widths by depths of models.
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
        // It is more than that on the shapes that it was fitted to, and not so much that it would be of no use.
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
        // Steps of 512 columns and a slow depth: no rates describe that.
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

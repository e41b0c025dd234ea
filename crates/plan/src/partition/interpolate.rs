//! Interpolated costs. A profiler measures a grid of rows and columns; between its points, costs are linear.

use std::collections::{BTreeMap, HashMap};

use super::costs::{Costs, Measurement, MeasurementError};
use super::{ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// Seconds of a shape on a processor: while the other processors are idle, and while they work.
#[derive(Clone, Copy, Debug)]
struct Seconds {
    alone: f64,
    contended: f64,
}

/// Measurements on a processor of products with one depth: by columns, then by rows.
type Grid = BTreeMap<usize, BTreeMap<usize, Seconds>>;

/// Costs of products that are linear in rows and in columns between measurements. Fewer rows than the measured minimum
/// take as long as that minimum. Other costs outside of the measured range are unknown.
#[derive(Clone, Debug, Default)]
pub struct InterpolatedCosts(HashMap<(ProcessorId, usize), Grid>);

impl InterpolatedCosts {
    /// Creates costs from times on processors `alone` and concurrent with others. Without a concurrent time, the time
    /// alone is used for both.
    ///
    /// # Errors
    /// If a time is not finite or not above 0, or one of the lists has a shape twice for a processor.
    pub fn new(alone: &[Measurement], contended: &[Measurement]) -> Result<Self, MeasurementError> {
        let mut grids: HashMap<_, Grid> = HashMap::new();
        for measurement in alone {
            measurement.check()?;
            let Measurement {
                processor,
                shape,
                seconds,
            } = *measurement;
            let columns = grids
                .entry((processor, shape.depth))
                .or_default()
                .entry(shape.columns)
                .or_default();
            if columns
                .insert(
                    shape.rows,
                    Seconds {
                        alone: seconds,
                        contended: seconds,
                    },
                )
                .is_some()
            {
                return Err(MeasurementError::Twice { processor, shape });
            }
        }
        let mut seen = std::collections::HashSet::new();
        for measurement in contended {
            measurement.check()?;
            let Measurement {
                processor,
                shape,
                seconds,
            } = *measurement;
            if !seen.insert((processor, shape)) {
                return Err(MeasurementError::Twice { processor, shape });
            }
            let grid = grids.get_mut(&(processor, shape.depth));
            if let Some(known) =
                grid.and_then(|grid| grid.get_mut(&shape.columns)?.get_mut(&shape.rows))
            {
                known.contended = seconds;
            }
        }
        Ok(Self(grids))
    }

    fn find(&self, processor: ProcessorId, shape: ProductShape) -> Option<Seconds> {
        let grid = self.0.get(&(processor, shape.depth))?;
        between(grid, shape.columns, |rows| {
            let fewest = *rows.keys().next()?;
            between(rows, shape.rows.max(fewest), |seconds| Some(*seconds))
        })
    }
}

/// Interpolates between the values of `value` for the entries of `map` on both sides of `at`.
fn between<T>(
    map: &BTreeMap<usize, T>,
    at: usize,
    mut value: impl FnMut(&T) -> Option<Seconds>,
) -> Option<Seconds> {
    let (below, low) = map.range(..=at).next_back()?;
    let (above, high) = map.range(at..).next()?;
    let low = value(low)?;
    if below == above {
        return Some(low);
    }
    let high = value(high)?;
    let share = (at - below) as f64 / (above - below) as f64;
    let mix = |low: f64, high: f64| low + share * (high - low);
    Some(Seconds {
        alone: mix(low.alone, high.alone),
        contended: mix(low.contended, high.contended),
    })
}

impl Costs for InterpolatedCosts {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.find(processor, shape)
            .map(|seconds| seconds.alone)
            .ok_or(UnknownCost { processor, shape })
    }

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        self.find(processor, shape)
            .map(|seconds| seconds.contended)
            .ok_or(UnknownCost { processor, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: ProcessorId = ProcessorId::new(0);

    fn shape(rows: usize, columns: usize) -> ProductShape {
        ProductShape::new(rows, columns, 64).unwrap()
    }

    fn grid(seconds: impl Fn(usize, usize) -> f64) -> Vec<Measurement> {
        let rows = [32, 64, 256];
        let of_columns = |columns| rows.map(|rows| (rows, columns));
        [64, 256, 960]
            .into_iter()
            .flat_map(of_columns)
            .map(|(rows, columns)| Measurement {
                processor: CPU,
                shape: shape(rows, columns),
                seconds: seconds(rows, columns),
            })
            .collect()
    }

    #[test]
    fn measured_costs_are_themselves_and_lines_are_between_them() {
        let product = |rows: usize, columns: usize| 1e-6 * (rows * columns) as f64;
        let costs = InterpolatedCosts::new(
            &grid(product),
            &grid(|rows, columns| 2.0 * product(rows, columns)),
        )
        .unwrap();
        for (rows, columns) in [
            (32, 64),
            (256, 960),
            (64, 256),
            (48, 256),
            (160, 700),
            (255, 65),
        ] {
            let close = |seconds: f64, expected: f64| (seconds / expected - 1.0).abs() < 1e-9;
            let expected = product(rows, columns);
            assert!(
                close(costs.seconds(CPU, shape(rows, columns)).unwrap(), expected),
                "{rows} × {columns}"
            );
            assert!(close(
                costs.concurrent_seconds(CPU, shape(rows, columns)).unwrap(),
                2.0 * expected
            ));
        }
        // A jump is where it was measured.
        let costs = InterpolatedCosts::new(&grid(|rows, _| if rows > 64 { 3.0 } else { 1.0 }), &[])
            .unwrap();
        let seconds = |rows| costs.seconds(CPU, shape(rows, 256)).unwrap();
        assert_eq!([32, 64, 160, 256].map(seconds), [1.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            costs.concurrent_seconds(CPU, shape(160, 256)),
            Ok(2.0),
            "as alone"
        );
    }

    #[test]
    fn fewer_rows_than_were_measured_take_as_long_as_the_fewest() {
        let costs =
            InterpolatedCosts::new(&grid(|rows, columns| (rows + columns) as f64), &[]).unwrap();
        assert_eq!(
            [1, 31, 32, 48].map(|rows| costs.seconds(CPU, shape(rows, 64)).unwrap()),
            [96.0, 96.0, 96.0, 112.0]
        );
    }

    #[test]
    fn what_is_outside_of_the_measurements_is_not_known() {
        let costs = InterpolatedCosts::new(&grid(|_, _| 1.0), &[]).unwrap();
        for (rows, columns) in [(257, 64), (32, 63), (31, 63), (32, 961)] {
            let unknown = UnknownCost {
                processor: CPU,
                shape: shape(rows, columns),
            };
            assert_eq!(costs.seconds(CPU, unknown.shape), Err(unknown));
        }
        assert!(costs.seconds(ProcessorId::new(1), shape(32, 64)).is_err());
        assert!(
            costs
                .seconds(CPU, ProductShape::new(32, 64, 65).unwrap())
                .is_err()
        );
    }

    #[test]
    fn a_time_that_is_none_and_a_shape_twice_are_refused() {
        let grid = grid(|_, _| 1.0);
        let twice = [&grid[..], &grid[..1]].concat();
        assert!(matches!(
            InterpolatedCosts::new(&twice, &[]),
            Err(MeasurementError::Twice { .. })
        ));
        assert!(matches!(
            InterpolatedCosts::new(&grid, &twice),
            Err(MeasurementError::Twice { .. })
        ));
        let none = Measurement {
            seconds: f64::NAN,
            ..grid[0]
        };
        assert!(
            InterpolatedCosts::new(&[none], &[]).is_err()
                && InterpolatedCosts::new(&grid, &[none]).is_err()
        );
    }
}

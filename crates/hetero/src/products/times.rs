//! Measured times of products on each processor of a list, and of joining their parts.

use serde::{Deserialize, Serialize};
use triad_plan::partition::ProductShape;
use triad_plan::partition::costs::{Joins, Measurement};
use triad_plan::partition::interpolate::InterpolatedCosts;
use triad_plan::processors::ProcessorId;

use crate::error::Result;

/// Maximum times of a list of processors.
pub(super) const MAX_TIMES: usize = 1 << 16;

/// The times between the end of a task and the start of one that waits for it: medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredJoins {
    /// The processor that computes the floats before and after a product.
    pub float: ProcessorId,
    /// Seconds from the end of a task of that processor to the start of its next one.
    pub own_seconds: f64,
    /// Seconds from the end of its task to the start of a part on another processor.
    pub begin_seconds: f64,
    /// Seconds from the end of a part on another processor to the start of its next task.
    pub end_seconds: f64,
}

/// The time of a product on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductTime {
    /// The processor.
    pub processor: ProcessorId,
    /// Tokens.
    pub rows: usize,
    /// Output features.
    pub columns: usize,
    /// Input features.
    pub depth: usize,
    /// Median seconds while nothing else runs.
    pub alone: f64,
    /// Median seconds while every other processor of the list runs products of its own.
    pub contended: f64,
}

impl MeasuredJoins {
    pub(crate) fn joins(&self) -> Result<Joins> {
        let Self {
            float,
            own_seconds,
            begin_seconds,
            end_seconds,
        } = *self;
        // A processor that computes a part for another one also has to begin it. Copies are in the times of the
        // products.
        Ok(Joins::new(
            float,
            own_seconds,
            begin_seconds + end_seconds,
            0.0,
        )?)
    }
}

/// Returns the measurements: alone, and while others work.
pub(super) fn measurements(times: &[ProductTime]) -> Result<[Vec<Measurement>; 2], String> {
    let of = |seconds: fn(&ProductTime) -> f64| {
        let measurement = |time: &ProductTime| {
            let shape = ProductShape::new(time.rows, time.columns, time.depth);
            let shape = shape.map_err(|error| error.to_string())?;
            Ok(Measurement {
                processor: time.processor,
                shape,
                seconds: seconds(time),
            })
        };
        times
            .iter()
            .map(measurement)
            .collect::<Result<Vec<_>, String>>()
    };
    Ok([of(|time| time.alone)?, of(|time| time.contended)?])
}

/// Returns the costs by which a solver chooses.
pub(super) fn costs_of(times: &[ProductTime]) -> Result<InterpolatedCosts, String> {
    let [alone, contended] = measurements(times)?;
    InterpolatedCosts::new(&alone, &contended).map_err(|error| error.to_string())
}

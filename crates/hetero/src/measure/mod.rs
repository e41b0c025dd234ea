//! The profiler's real execution (§4.3): runs products on each processor with weights of the model.

mod bench;
mod decode;
mod exhaust;
mod joins;
mod multiplied;
mod powers;
mod prompts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use triad_plan::graph::Role;
use triad_plan::partition::energy::Objective;
use triad_plan::partition::plans::{ModelProduct, products_of};
use triad_plan::partition::{ProductShape, StandardLengths};
use triad_plan::processors::ProcessorId;

pub use exhaust::{ExhaustedProduct, RunPartition, exhaust_products};
pub use joins::measure_joins;
pub use multiplied::{MeasuredMultiplier, measure_multiplier};
pub use powers::measure_powers;
pub use prompts::measure_prompts;

use crate::engine::HeteroEngine;
use crate::error::Result;
use crate::options::HeteroOptions;
use crate::products::{DecodeCosts, MeasuredJoins, MeasuredProcessor, ProductCosts, ProductTime};
use crate::wait::WaitUse;
use crate::work::alignment;
use crate::workers::{self, ProcessorOptions};
use bench::{Bench, columns};
use triad_engine::Cancel;
use triad_engine::Model;

/// Rows per processor in the prompt that joins are measured with: tasks are short, so that there are many.
const ROWS_OF_JOINS: usize = 16;
/// The fewest rows that are measured with dynamic shapes: those of the margin of a plan.
const FEWEST_ROWS: usize = 16;

/// The options of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct MeasureOptions {
    /// Maximum rows of a chunk.
    pub chunk: usize,
    /// Runs of each product, after one that does not count; its time is their median.
    pub repeat: usize,
    /// Whether predictions are to be judged: measures every number of columns that a cut can give instead of some, and
    /// all of them a second time.
    pub for_predictions: bool,
}

/// The measurements of products.
#[derive(Clone, Debug)]
pub struct MeasuredProducts {
    /// The costs that plans are made by.
    pub costs: ProductCosts,
    /// The times of all products in a second round, only for predictions: [`ProductCosts::judge`].
    pub again: Vec<ProductTime>,
}

/// The times that processors waited for each other in some prompts.
#[derive(Clone, Debug, Serialize)]
pub struct Joined {
    /// Medians of all tasks.
    pub joins: MeasuredJoins,
    /// The waiting times of all prompts, by processor.
    pub waits: Vec<WaitUse>,
    /// Median seconds of a prompt.
    pub prompt_seconds: f64,
}

/// Measures the products of `model` on each processor, alone and while the others work, and the time to join their
/// parts. `progress` is called with the number of finished products and the number of all.
///
/// # Errors
/// If there are fewer than two processors, the model reads INT8 with scales that are not static, a device refuses or
/// fails, or `cancel` is set.
pub fn measure_products(
    model: &Arc<Model>,
    processors: &[ProcessorOptions],
    options: MeasureOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<MeasuredProducts> {
    if processors.len() < 2 {
        let (value, expected) = (
            processors.len().to_string(),
            "at least two, among which products can be cut",
        );
        let error = triad_engine::Error::Option {
            name: "the number of processors",
            value,
            expected,
        };
        return Err(error.into());
    }
    let (list, workers, devices) = workers::start(model, processors.to_vec())?;
    let description = model.description();
    let rows = products_of(description, options.chunk, |role, shape| {
        alignment(description, role, shape)
    })?;
    let multiple = rows.first().map_or(1, |product| product.alignment.rows);
    let chunk = options.chunk.next_multiple_of(multiple);
    let products = products_of(description, chunk, |role, shape| {
        alignment(description, role, shape)
    })?;
    let measured: Vec<_> = list
        .iter()
        .zip(&devices)
        .map(|((_, processor), device)| {
            let is_static = device
                .as_ref()
                .is_some_and(|device| device.capabilities().static_shapes);
            let lengths = is_static.then(|| lengths(chunk).0);
            MeasuredProcessor {
                name: processor.name.clone(),
                lengths,
            }
        })
        .collect();
    let wanted = wanted(&products, &measured, options.for_predictions);
    let of_products: usize = wanted.values().map(BTreeSet::len).sum();
    // Steps may use smaller weights, in float.
    let mut linears = model
        .weights()
        .blocks
        .iter()
        .flat_map(|block| block.linears.values());
    let decodes_in_int8 = linears.all(|linear| linear.decode_weight.is_none());
    let rounds = if options.for_predictions { 2 } else { 1 };
    let total = rounds * of_products
        + if decodes_in_int8 {
            decode::count(model, &measured)?
        } else {
            0
        };
    let bench = Bench {
        model,
        workers: &workers,
        devices: &devices,
        repeat: options.repeat.max(1),
    };
    let mut times = Vec::with_capacity(rounds * of_products);
    for (role, shapes) in std::iter::repeat_n(&wanted, rounds).flatten() {
        let product = products
            .iter()
            .find(|product| product.role == *role)
            .expect("a product of the model");
        let loads = bench.loads(*role, product.shape)?;
        for (processor, shape) in shapes {
            cancel.check()?;
            times.push(bench.measure(*role, *processor, *shape, &loads)?);
            progress(times.len(), total);
        }
    }
    let mut done = times.len();
    let again = times.split_off(of_products);
    let mut step = || {
        done += 1;
        progress(done, total);
    };
    let of_steps = decodes_in_int8
        .then(|| decode::measure(&bench, &measured, cancel, &mut step))
        .transpose()?;
    drop(workers);
    let start = |engine| {
        HeteroEngine::new(
            model,
            HeteroOptions {
                processors: processors.to_vec(),
                ..engine
            },
            &mut |_, _| {},
        )
    };
    let rows = (ROWS_OF_JOINS * processors.len())
        .min(chunk)
        .min(description.context);
    let joins = joins::measure(start, (processors.len(), rows), options.repeat, cancel)?;
    let decode = match of_steps {
        Some((rows, products, output)) => {
            let joins = joins::measure(start, (processors.len(), 1), options.repeat, cancel)?;
            Some(DecodeCosts {
                rows,
                joins,
                products,
                output,
            })
        }
        None => None,
    };
    let costs = ProductCosts {
        chunk,
        processors: measured,
        joins,
        products: times,
        decode,
        prompts: Vec::new(),
        powers: None,
        objective: Objective::Latency,
    };
    Ok(MeasuredProducts { costs, again })
}

/// Returns the standard lengths up to the one that a chunk of `chunk` rows fits into, and all rows to measure with
/// dynamic shapes.
fn lengths(chunk: usize) -> (Vec<usize>, Vec<usize>) {
    let all = StandardLengths::default();
    let all = all.lengths();
    let fits = all
        .iter()
        .find(|length| **length >= chunk)
        .or(all.last())
        .copied()
        .unwrap_or(chunk);
    let lengths: Vec<_> = all
        .iter()
        .copied()
        .filter(|length| *length <= fits)
        .collect();
    let shorter = [FEWEST_ROWS]
        .into_iter()
        .chain(lengths.iter().copied())
        .filter(|length| *length < chunk);
    let rows = shorter.chain([chunk]).collect();
    (lengths, rows)
}

/// Returns the shapes to measure on each processor, by role; shapes of earlier roles are not repeated.
fn wanted(
    products: &[ModelProduct],
    processors: &[MeasuredProcessor],
    all_columns: bool,
) -> BTreeMap<Role, BTreeSet<(ProcessorId, ProductShape)>> {
    let mut seen = BTreeSet::new();
    let mut wanted: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for ModelProduct {
        role,
        shape,
        alignment,
        ..
    } in products
    {
        for (
            index,
            MeasuredProcessor {
                lengths: of_graphs, ..
            },
        ) in processors.iter().enumerate()
        {
            let rows = of_graphs.clone().unwrap_or_else(|| lengths(shape.rows()).1);
            for columns in columns(shape.columns(), alignment.columns, all_columns) {
                let shapes = rows
                    .iter()
                    .filter_map(|rows| ProductShape::new(*rows, columns, shape.depth()).ok());
                for shape in shapes {
                    let one = (ProcessorId::new(index), shape);
                    if seen.insert(one) {
                        wanted.entry(*role).or_default().insert(one);
                    }
                }
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_few_ones_standard_lengths_and_the_chunk() {
        assert_eq!(
            lengths(256),
            (vec![32, 64, 128, 256], vec![16, 32, 64, 128, 256])
        );
        assert_eq!(lengths(96), (vec![32, 64, 128], vec![16, 32, 64, 96]));
        assert_eq!(lengths(32), (vec![32], vec![16, 32]));
        assert_eq!(lengths(1088).1, [16, 32, 64, 128, 256, 512, 1024, 1088]);
    }
}

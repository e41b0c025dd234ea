//! Measures the products of decode steps (§4.1.2, §4.3). The profiler walks through the blocks as a step does, so that
//! weights are read from memory and not from a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use triad_engine::forward::multiply_output;
use triad_engine::{Cancel, Model};
use triad_kernels::int8::Int8Weight;
use triad_kernels::timing::median;
use triad_kernels::{OutputMut, Phase};
use triad_plan::graph::Role;
use triad_plan::partition::plans::{ModelProduct, products_of};
use triad_plan::partition::{Alignment, ProductShape};
use triad_plan::processors::ProcessorId;

use super::bench::{Bench, Product, columns};
use crate::error::{Error, Result};
use crate::products::decode::{alignment, output_product};
use crate::products::{MeasuredProcessor, ProductTime};

/// Rows of the steps that are measured and planned: of one sequence, and of several.
const ROWS: [usize; 5] = [1, 2, 4, 8, 16];
/// The same if a processor has static shapes, and separate graphs for each number of rows.
const ROWS_OF_GRAPHS: [usize; 2] = [1, 16];
/// Bytes of weights after which no cache holds the first ones any more.
const COLD_BYTES: usize = 256 << 20;
/// Bytes that are read before a device multiplies, since it has the weights of only few blocks.
const FLUSH_BYTES: usize = 64 << 20;

/// A product of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Block(Role),
    Output,
}

/// A product, with its measured times in seconds.
type Samples = ((Kind, ProductShape), Vec<f64>);

/// A product to measure, with each number of columns.
struct MeasurementPlan {
    kind: Kind,
    columns: Vec<usize>,
    shape: ProductShape,
    alignment: Alignment,
}

/// Measures the products of steps on each processor, alone and while the others work; `step` is called after each walk.
/// Returns the numbers of rows, the times of the blocks' products and those of the output matrix.
///
/// # Errors
/// If a processor fails, or `cancel` is set.
pub(super) fn measure(
    bench: &Bench,
    processors: &[MeasuredProcessor],
    cancel: &Cancel,
    step: &mut dyn FnMut(),
) -> Result<(Vec<usize>, Vec<ProductTime>, Vec<ProductTime>)> {
    let rows = rows(processors);
    let mut times = BTreeMap::<(bool, ProcessorId, ProductShape), [Vec<f64>; 2]>::new();
    for rows in &rows {
        let wanted = wanted(bench.model, *rows)?;
        for processor in (0..processors.len()).map(ProcessorId::new) {
            for index in 0..walks(&wanted) {
                cancel.check()?;
                for (company, contended) in [false, true].into_iter().enumerate() {
                    for ((kind, shape), seconds) in
                        bench.walk(&wanted, processor, index, contended)?
                    {
                        let key = (kind == Kind::Output, processor, shape);
                        times.entry(key).or_default()[company].extend(seconds);
                    }
                }
                step();
            }
        }
    }
    let time = |((_, processor, shape), [alone, contended]): (
        (bool, ProcessorId, ProductShape),
        [Vec<f64>; 2],
    )| {
        let (rows, columns, depth) = (shape.rows(), shape.columns(), shape.depth());
        ProductTime {
            processor,
            rows,
            columns,
            depth,
            alone: median(&alone),
            contended: median(&contended),
        }
    };
    let (output, products): (Vec<_>, Vec<_>) = times
        .into_iter()
        .partition(|((is_output, ..), _)| *is_output);
    Ok((
        rows,
        products.into_iter().map(time).collect(),
        output.into_iter().map(time).collect(),
    ))
}

/// Returns how many walks [`measure`] takes.
pub(super) fn count(model: &Model, processors: &[MeasuredProcessor]) -> Result<usize> {
    let rows = rows(processors);
    Ok(rows.len() * processors.len() * walks(&wanted(model, 1)?))
}

fn rows(processors: &[MeasuredProcessor]) -> Vec<usize> {
    let has_graphs = processors
        .iter()
        .any(|processor| processor.lengths.is_some());
    if has_graphs {
        ROWS_OF_GRAPHS.to_vec()
    } else {
        ROWS.to_vec()
    }
}

fn wanted(model: &Model, rows: usize) -> Result<Vec<MeasurementPlan>> {
    let description = model.description();
    let products = products_of(description, rows, |role, shape| {
        alignment(description, role, shape)
    })?;
    let of = |kind, shape: ProductShape, alignment: Alignment| {
        let columns = columns(shape.columns(), alignment.columns, false);
        MeasurementPlan {
            kind,
            columns,
            shape,
            alignment,
        }
    };
    let of_block = |ModelProduct {
                        role,
                        shape,
                        alignment,
                        ..
                    }: ModelProduct| of(Kind::Block(role), shape, alignment);
    let (shape, alignment) = output_product(description, rows)?;
    Ok(products
        .into_iter()
        .map(of_block)
        .chain([of(Kind::Output, shape, alignment)])
        .collect())
}

/// Returns the most numbers of columns of any product.
fn walks(wanted: &[MeasurementPlan]) -> usize {
    wanted
        .iter()
        .map(|one| one.columns.len())
        .max()
        .unwrap_or(0)
}

/// The products of a processor in the order of a step.
struct Walk<'a> {
    products: Vec<((Kind, ProductShape), Walked<'a>)>,
    blocks: usize,
    /// Read before each product that might have its weights in a cache.
    flush: Vec<u64>,
}

enum Walked<'a> {
    Block(Box<Product<'a>>),
    Output(Output<'a>),
}

/// Some columns of the output matrix.
struct Output<'a> {
    model: &'a Model,
    columns: Range<usize>,
    x: Vec<f32>,
    logits: Vec<f32>,
}

impl Output<'_> {
    fn run(&mut self) {
        let Self {
            model,
            columns,
            x,
            logits,
        } = self;
        let out = OutputMut::new(logits, columns.len());
        multiply_output(model.weights(), x, columns.clone(), Phase::Decode, out);
    }
}

impl Walk<'_> {
    /// Runs all blocks once; calls `seen` with the time of each product until it returns `false`.
    fn go(&mut self, seen: &mut dyn FnMut(usize, f64) -> bool) -> Result<()> {
        let Self {
            products,
            blocks,
            flush,
        } = self;
        for turn in 0..*blocks {
            for (index, (_, walked)) in products.iter_mut().enumerate() {
                let is_next = match walked {
                    Walked::Block(product) => turn < product.blocks(),
                    Walked::Output(_) => turn + 1 == *blocks,
                };
                if !is_next {
                    continue;
                }
                std::hint::black_box(
                    flush
                        .iter()
                        .fold(0, |sum: u64, value| sum.wrapping_add(*value)),
                );
                let start = Instant::now();
                match walked {
                    Walked::Block(product) => product.run()?,
                    Walked::Output(output) => output.run(),
                }
                // Clocks may be too coarse for the shortest runs.
                if !seen(index, start.elapsed().as_secs_f64().max(1e-9)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl<'a> Bench<'a> {
    /// Measures the `index`-th number of columns of each product on a processor, if it has so many. The other
    /// processors are idle, or run the columns that follow.
    fn walk(
        &self,
        wanted: &[MeasurementPlan],
        processor: ProcessorId,
        index: usize,
        contended: bool,
    ) -> Result<Vec<Samples>> {
        let mut walk = self.walk_of(wanted, processor, |one| {
            let columns = *one
                .columns
                .get(index)
                .or(one.columns.last())
                .unwrap_or(&one.shape.columns());
            0..columns
        })?;
        let others: Vec<_> = (0..self.workers.len())
            .filter(|other| *other != processor.index() && contended)
            .collect();
        let context = |one: &MeasurementPlan| {
            let all = one.shape.columns();
            let first = one
                .columns
                .get(index)
                .map_or(all, |columns| columns.next_multiple_of(Int8Weight::COLUMNS));
            // Rounded up to where a part can begin in any layer.
            let first = first.next_multiple_of(one.alignment.columns);
            if first < all { first..all } else { 0..all }
        };
        let mut loads = Vec::new();
        for other in &others {
            loads.push((
                *other,
                self.walk_of(wanted, ProcessorId::new(*other), context)?,
            ));
        }
        let (begun, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let run = |worker: usize, mut walk: Walk<'a>| {
            self.workers[worker].pool().install(|| {
                while !is_over.load(Ordering::Relaxed) {
                    walk.go(&mut |_, _| {
                        begun.fetch_add(1, Ordering::Relaxed);
                        !is_over.load(Ordering::Relaxed)
                    })?;
                }
                Ok::<_, Error>(())
            })
        };
        let count = others.len();
        let mut samples = vec![Vec::new(); walk.products.len()];
        std::thread::scope(|scope| {
            let loads: Vec<_> = loads
                .into_iter()
                .map(|(worker, walk)| scope.spawn(move || run(worker, walk)))
                .collect();
            while begun.load(Ordering::Relaxed) < count
                && !loads.iter().any(ScopedJoinHandle::is_finished)
            {
                std::thread::yield_now();
            }
            let measured = self.workers[processor.index()].pool().install(|| {
                walk.go(&mut |_, _| true)?;
                (0..self.repeat).try_for_each(|_| {
                    walk.go(&mut |product, seconds| {
                        samples[product].push(seconds);
                        true
                    })
                })
            });
            is_over.store(true, Ordering::Relaxed);
            for load in loads {
                load.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            measured
        })?;
        // Products with fewer numbers of columns ran only to complete the step.
        let is_wanted = |(kind, shape): &(Kind, ProductShape)| {
            let is_it =
                |one: &&MeasurementPlan| one.kind == *kind && one.shape.depth() == shape.depth();
            wanted
                .iter()
                .filter(is_it)
                .any(|one| one.columns.get(index) == Some(&shape.columns()))
        };
        let keys: BTreeSet<usize> = (0..walk.products.len())
            .filter(|at| is_wanted(&walk.products[*at].0))
            .collect();
        let samples = walk.products.iter().zip(samples).enumerate();
        Ok(samples
            .filter(|(at, _)| keys.contains(at))
            .map(|(_, ((key, _), seconds))| (*key, seconds))
            .collect())
    }

    /// Returns the products of a step on a processor, each with some of its columns.
    fn walk_of(
        &self,
        wanted: &[MeasurementPlan],
        processor: ProcessorId,
        columns: impl Fn(&MeasurementPlan) -> Range<usize>,
    ) -> Result<Walk<'a>> {
        let has_device = self.devices[processor.index()].is_some();
        let mut products = Vec::new();
        for one in wanted {
            let (columns, rows, depth) = (columns(one), one.shape.rows(), one.shape.depth());
            let shape = ProductShape::new(rows, columns.len(), depth)?;
            let walked = match one.kind {
                Kind::Block(role) => Walked::Block(Box::new(
                    self.product_of(role, processor, one.shape, columns)?
                        .of_steps(),
                )),
                Kind::Output if has_device => continue,
                Kind::Output => {
                    let x = (0..rows * depth)
                        .map(|index| (index % 255) as f32 / 127.0 - 1.0)
                        .collect();
                    Walked::Output(Output {
                        model: self.model,
                        logits: vec![0.0; rows * columns.len()],
                        columns,
                        x,
                    })
                }
            };
            products.push(((one.kind, shape), walked));
        }
        let all = products.iter().filter_map(|(_, walked)| match walked {
            Walked::Block(product) => Some(product.blocks()),
            Walked::Output(_) => None,
        });
        let all = all.max().unwrap_or(0);
        let description = self.model.description();
        let linears = description
            .blocks
            .iter()
            .flat_map(|block| block.linears(description.hidden));
        let bytes: usize = linears.map(|shape| shape.parameters()).sum();
        let enough = (COLD_BYTES * all).div_ceil(bytes.max(1)).max(2);
        let flush = vec![
            1;
            if has_device {
                FLUSH_BYTES / size_of::<u64>()
            } else {
                0
            }
        ];
        Ok(Walk {
            products,
            blocks: all.min(enough),
            flush,
        })
    }
}

//! Runs every cut of a product on its processors, to compare the solver's choice with the fastest cut.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use serde::Serialize;
use triad_kernels::timing::median;
use triad_plan::graph::Role;
use triad_plan::partition::plans::{planned_rows, products_of};
use triad_plan::partition::solve::Restriction;
use triad_plan::partition::{
    Alignment, Participant, Partition, Phase, Piece, ProductShape, candidates,
};
use triad_plan::processors::ProcessorId;

use super::bench::{Bench, Product};
use crate::error::Result;
use crate::products::ProductCosts;
use crate::work::alignment;
use crate::workers::{self, ProcessorOptions};
use triad_engine::Cancel;
use triad_engine::Model;
use triad_kernels::lock;

/// Candidates that are run again with the choice, since the minimum of many medians is below its true time.
const FINALISTS: usize = 4;
/// How many times as often they run as the others.
const ROUNDS_OF_FINALISTS: usize = 5;

/// The times of a product in all of its cuts.
#[derive(Clone, Debug, Serialize)]
pub struct ExhaustedProduct {
    /// The product.
    pub role: Role,
    /// Its shape, with the measured rows.
    pub shape: ProductShape,
    /// The number of partitions that were run.
    pub candidates: usize,
    /// The solver's choice.
    pub chosen: RunPartition,
    /// The fastest partition.
    pub fastest: RunPartition,
    /// Seconds of the fastest single processor.
    pub alone: f64,
    /// Seconds that the solver took to choose.
    pub planning: f64,
}

/// A partition that was run.
#[derive(Clone, Debug, Serialize)]
pub struct RunPartition {
    /// The parts, with their processors.
    #[serde(flatten)]
    pub partition: Partition,
    /// Median seconds from the start until all parts are complete, plus the join.
    pub seconds: f64,
}

/// Runs every candidate of every product of `model`, and what the solver chooses by `costs`. The rows are each of
/// `lengths`, or those that chunks of such a length are planned as ([`planned_rows`]). `progress` is called with the
/// number of finished products and the number of all.
///
/// # Errors
/// If `costs` are of other processors, shorter chunks or another model, a device refuses or fails, or `cancel` is set.
pub fn exhaust_products(
    model: &Arc<Model>,
    processors: &[ProcessorOptions],
    costs: &ProductCosts,
    (lengths, repeat): (&[usize], usize),
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<ExhaustedProduct>> {
    let (_, workers, devices) = workers::start(model, processors.to_vec())?;
    let description = model.description();
    let longest = lengths.iter().copied().max().unwrap_or(1);
    let products = products_of(description, longest, |role, shape| {
        alignment(description, role, shape)
    })?;
    let (solver, participants, joins) = (costs.solver()?, costs.participants()?, costs.joins()?);
    let bench = Bench {
        model,
        workers: &workers,
        devices: &devices,
        repeat: repeat.max(1),
    };
    let mut found = Vec::new();
    for product in &products {
        // Reads the weights from their file, so that the first candidate does not.
        drop(bench.loads(
            product.role,
            product.shape.with_rows(product.alignment.rows)?,
        )?);
        // Parts of several candidates are prepared once.
        let mut parts = Parts {
            bench: &bench,
            role: product.role,
            prepared: BTreeMap::new(),
        };
        for rows in lengths {
            cancel.check()?;
            let shape = product.shape.with_rows(planned_rows(*rows))?;
            let start = Instant::now();
            let choice = solver.solve_aligned(
                shape,
                Phase::Prefill,
                Restriction::Auto,
                product.alignment,
            )?;
            let planning = start.elapsed().as_secs_f64();
            let mut seconds = |partition: &Partition, repeat| -> Result<f64> {
                cancel.check()?;
                let processors = processors_of(partition);
                let busy = parts.run(partition, &processors, shape.depth(), repeat)?;
                let join = joins.seconds(processors.iter().copied().zip(busy.parts));
                Ok(busy.all + join)
            };
            let mut run = Vec::new();
            for partition in partitions(shape, &participants, product.alignment) {
                run.push(RunPartition {
                    seconds: seconds(&partition, bench.repeat)?,
                    partition,
                });
            }
            let candidates = run.len();
            let whole = run
                .iter()
                .filter(|one| one.partition.strategy.is_whole())
                .map(|one| one.seconds);
            let alone = whole.fold(f64::INFINITY, f64::min);
            run.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
            run.truncate(FINALISTS);
            run.retain(|one| one.partition.pieces != choice.best.partition.pieces);
            run.insert(
                0,
                RunPartition {
                    partition: choice.best.partition,
                    seconds: 0.0,
                },
            );
            // In turn, each with the weights of all blocks: weights that another one has just read are in a cache.
            let (mut times, repeat) = (
                vec![Vec::new(); run.len()],
                bench.repeat.max(description.blocks.len()),
            );
            for round in 0..ROUNDS_OF_FINALISTS {
                for turn in 0..run.len() {
                    let index = (round + turn) % run.len();
                    times[index].push(seconds(&run[index].partition, repeat)?);
                }
            }
            for (one, times) in run.iter_mut().zip(times) {
                one.seconds = median(&times);
            }
            let chosen = run[0].clone();
            let fastest = run
                .into_iter()
                .min_by(|one, other| one.seconds.total_cmp(&other.seconds));
            let fastest = fastest.unwrap_or_else(|| chosen.clone());
            found.push(ExhaustedProduct {
                role: product.role,
                shape,
                candidates,
                chosen,
                fastest,
                alone,
                planning,
            });
            progress(found.len(), products.len() * lengths.len());
        }
    }
    Ok(found)
}

/// Returns all candidates of a product.
fn partitions(
    shape: ProductShape,
    participants: &[Participant],
    alignment: Alignment,
) -> Vec<Partition> {
    let mut all = Vec::new();
    let mut keep = |strategy, pieces: &[Piece]| {
        all.push(Partition {
            strategy,
            pieces: pieces.to_vec(),
        });
        Ok::<_, Infallible>(())
    };
    let Ok(()) = candidates::whole(shape, Phase::Prefill, participants, &mut keep);
    let Ok(()) = candidates::cuts(shape, Phase::Prefill, participants, alignment, &mut keep);
    all
}

/// Returns the processors of a partition, each once, in its order.
fn processors_of(partition: &Partition) -> Vec<ProcessorId> {
    let mut processors: Vec<_> = partition
        .pieces
        .iter()
        .map(|piece| piece.processor)
        .collect();
    processors.dedup();
    processors
}

/// A part that a processor runs at once: the processor, rows and columns.
type Part = (ProcessorId, usize, (usize, usize));

/// The prepared parts of a product's candidates.
struct Parts<'a> {
    bench: &'a Bench<'a>,
    role: Role,
    prepared: BTreeMap<Part, Mutex<Product<'a>>>,
}

/// Median seconds of a partition, and of each of its processors.
struct Busy {
    all: f64,
    parts: Vec<f64>,
}

impl<'a> Parts<'a> {
    fn run(
        &mut self,
        partition: &Partition,
        processors: &[ProcessorId],
        depth: usize,
        repeat: usize,
    ) -> Result<Busy> {
        let key = |piece: &Piece| {
            let Range { start, end } = piece.part.columns;
            (piece.processor, piece.rows, (start, end))
        };
        for piece in &partition.pieces {
            if let Entry::Vacant(place) = self.prepared.entry(key(piece)) {
                let product = self.bench.product_of(
                    self.role,
                    piece.processor,
                    piece.shape(depth),
                    piece.part.columns.clone(),
                )?;
                place.insert(Mutex::new(product));
            }
        }
        let of_processor = |processor: &ProcessorId| -> Vec<&Mutex<Product<'a>>> {
            let here = partition
                .pieces
                .iter()
                .filter(|piece| piece.processor == *processor);
            here.map(|piece| &self.prepared[&key(piece)]).collect()
        };
        let (begun, count) = (AtomicUsize::new(0), processors.len());
        let one =
            |processor: ProcessorId, parts: &[&Mutex<Product>]| -> Result<Vec<[Instant; 2]>> {
                let (mut times, mut result) = (Vec::with_capacity(repeat), Ok(()));
                let _released = Released(&begun);
                self.bench.workers[processor.index()].pool().install(|| {
                    // The first round does not count.
                    for round in 0..=repeat {
                        // All begin together; a processor that has failed joins in, so that none waits for it.
                        begun.fetch_add(1, Ordering::AcqRel);
                        while begun.load(Ordering::Acquire) < (round + 1) * count {
                            std::hint::spin_loop();
                        }
                        let start = Instant::now();
                        if result.is_ok() {
                            result = parts.iter().try_for_each(|part| lock(part).run());
                        }
                        if round > 0 {
                            times.push([start, Instant::now()]);
                        }
                    }
                });
                result.map(|()| times)
            };
        let one = &one;
        let times = std::thread::scope(|scope| {
            let running: Vec<_> = processors
                .iter()
                .map(|processor| {
                    let parts = of_processor(processor);
                    scope.spawn(move || one(*processor, &parts))
                })
                .collect();
            let join = |thread: ScopedJoinHandle<Result<Vec<[Instant; 2]>>>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        let times: Vec<_> = times.into_iter().collect::<Result<_>>()?;
        let of_round = |round: usize| {
            let here = || times.iter().map(move |times| times[round]);
            let begin = here().map(|[begin, _]| begin).min();
            let end = here().map(|[_, end]| end).max();
            begin
                .zip(end)
                .map_or(0.0, |(begin, end)| (end - begin).as_secs_f64())
        };
        let all = median(&(0..repeat).map(of_round).collect::<Vec<_>>());
        let part = |times: &Vec<[Instant; 2]>| {
            median(
                &times
                    .iter()
                    .map(|[a, b]| (*b - *a).as_secs_f64())
                    .collect::<Vec<_>>(),
            )
        };
        Ok(Busy {
            all,
            parts: times.iter().map(part).collect(),
        })
    }
}

/// Lets the others continue if one panics.
struct Released<'a>(&'a AtomicUsize);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fetch_add(usize::MAX / 2, Ordering::AcqRel);
        }
    }
}

//! Measures the products of a model that one device runs whole while another one multiplies for it: the profiler of
//! Hetero-tensor (HeteroLLM, §4.3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use triad_engine::{Cancel, EngineOptions, Model, SessionOptions};
use triad_kernels::int8::Int8Weight;
use triad_kernels::lock;
use triad_kernels::timing::median;
use triad_plan::graph::Role;
use triad_plan::partition::energy::Objective;
use triad_plan::partition::plans::products_of;
use triad_plan::partition::{Alignment, ProductShape};
use triad_plan::processors::{Processor, ProcessorId};
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_processors::ProductPart;
use triad_processors::model::JoinTimes;

use super::bench::{Bench, Product};
use super::{Joined, MeasureOptions, lengths, wanted};
use crate::engine::HeteroEngine;
use crate::error::{Error, Result};
use crate::multiplier::{DEVICE, MULTIPLIER, PRODUCTS};
use crate::options::HeteroOptions;
use crate::products::{MeasuredJoins, MeasuredProcessor, ProductCosts, ProductTime};
use crate::profile::run_prompt;
use crate::wait::{Wait, WaitUse};
use crate::whole::WholeModel;
use crate::work::alignment;
use crate::workers::{self, Devices, ProcessorOptions, Worker};

/// The number of the multiplying device in the benchmark, where it is alone.
pub(super) const ALONE: ProcessorId = ProcessorId::new(0);

/// The times of products of two devices, and of joining them.
#[derive(Clone, Debug)]
pub struct MeasuredMultiplier {
    /// The costs that plans are made by. Those of the multiplying device include the copies of its rows and outputs.
    pub costs: ProductCosts,
    /// The times of joining the smallest part.
    pub joins: JoinTimes,
}

/// Measures the products of `model` on a device that runs it whole, and on the device that multiplies for it, alone and
/// while the other one works, and the times of joining their parts. `progress` is called with the number of finished
/// products and the number of all.
///
/// # Errors
/// If the processor has no device that multiplies, the model does not read INT8 with static scales, a device refuses or
/// fails or has no such measurement, or `cancel` is set.
pub fn measure_multiplier(
    model: &Arc<Model>,
    processor: &ProcessorOptions,
    options: MeasureOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<MeasuredMultiplier> {
    let Some(device) = &processor.multiplier else {
        let expected = "a device that multiplies for one that runs the model";
        return Err(Error::option(
            "the processor",
            &processor.description.name,
            expected,
        ));
    };
    let description = model.description();
    let aligned = |role, shape| Alignment {
        margins: true,
        ..alignment(description, role, shape)
    };
    let multiple = Alignment::default().rows;
    let chunk = options.chunk.next_multiple_of(multiple);
    let products = products_of(description, chunk, aligned)?;
    let is_static = device.capabilities().static_shapes;
    let processors = vec![
        MeasuredProcessor {
            name: processor.description.name.clone(),
            lengths: None,
        },
        MeasuredProcessor {
            name: "npu".to_owned(),
            lengths: is_static.then(|| lengths(chunk).0),
        },
    ];
    let wanted = wanted(&products, &processors, options.for_predictions);
    let total: usize = wanted.values().map(BTreeSet::len).sum();
    let devices = TwoDevices::start(model, processor, chunk)?;
    let pair = devices.pair(model, options.repeat)?;
    let (mut times, mut joins) = (Vec::with_capacity(total), None);
    for (role, shapes) in &wanted {
        let product = products.iter().find(|product| product.role == *role);
        let shape = product.expect("a product of the model").shape;
        let load = pair.bench.loads(*role, shape)?.remove(0);
        for (processor, shape) in shapes {
            cancel.check()?;
            let time = match *processor {
                DEVICE => pair.of_device(*role, *shape, &load)?,
                _ => {
                    let (time, join) = pair.of_multiplier(*role, *shape)?;
                    joins.get_or_insert(join);
                    time
                }
            };
            times.push(time);
            progress(times.len(), total);
        }
    }
    let joins = joins.expect("the multiplying device has products");
    let costs = ProductCosts {
        chunk,
        processors,
        joins: MeasuredJoins {
            float: DEVICE,
            own_seconds: joins.blocking,
            begin_seconds: joins.blocking,
            end_seconds: joins.blocking,
        },
        products: times,
        decode: None,
        prompts: Vec::new(),
        powers: None,
        objective: Objective::Latency,
    };
    Ok(MeasuredMultiplier { costs, joins })
}

/// Runs prompts of one chunk on an engine with a device that multiplies for one that runs the model, `repeat` times after
/// one that does not count, and measures how long they wait for each other; `None` for other engines. A part begins when
/// the thread notices that the device is done, by the engine's way of waiting.
///
/// # Errors
/// If `cancel` is set, or a processor fails.
pub(super) fn joined(
    engine: &HeteroEngine,
    repeat: usize,
    cancel: &Cancel,
) -> Result<Option<Joined>> {
    let shared = engine.shared();
    let [worker] = &shared.workers[..] else {
        return Ok(None);
    };
    let (Some(whole), Some(_)) = (&worker.whole, &worker.multiplier) else {
        return Ok(None);
    };
    let part = ProductPart {
        rows: 0..1,
        columns: 0..Int8Weight::COLUMNS,
        by_other: true,
    };
    let JoinTimes {
        blocking, polling, ..
    } = whole.time_join(0, &part)?;
    let begin_seconds = match shared.settings.wait {
        Wait::Blocking => blocking,
        Wait::Predicted => polling,
    };
    let mut session = engine.session();
    let prompt = crate::any_tokens(session.chunk(), engine.model().description().vocab);
    run_prompt(&mut session, &prompt, cancel)?;
    let before = whole.joins().unwrap_or_default();
    let mut seconds = Vec::new();
    for _ in 0..repeat {
        let latest = run_prompt(&mut session, &prompt, cancel)?;
        seconds.push(latest.timeline.seconds());
    }
    let after = whole.joins().unwrap_or_default();
    let waits = after.products - before.products;
    let late_seconds = after.late_seconds - before.late_seconds;
    let all = WaitUse {
        waits,
        blocked_seconds: after.waited_seconds - before.waited_seconds,
        late_seconds,
        ..WaitUse::default()
    };
    Ok(Some(Joined {
        joins: MeasuredJoins {
            float: DEVICE,
            own_seconds: 0.0,
            begin_seconds,
            end_seconds: late_seconds / waits.max(1) as f64,
        },
        waits: vec![all],
        prompt_seconds: median(&seconds),
    }))
}

/// An engine whose device computes all products, and the multiplying device alone.
pub(super) struct TwoDevices {
    engine: HeteroEngine,
    workers: Vec<Worker>,
    devices: Devices,
}

impl TwoDevices {
    /// Starts them for prompts of up to `chunk` rows.
    ///
    /// # Errors
    /// If the processor has no device that multiplies, or a device refuses the model.
    pub(super) fn start(
        model: &Arc<Model>,
        processor: &ProcessorOptions,
        chunk: usize,
    ) -> Result<Self> {
        let engine = whole(model, processor, chunk)?;
        let alone = ProcessorOptions {
            description: Processor::npu("npu", None),
            threads: triad_engine::Threads::Count(1),
            device: processor.multiplier.clone(),
            multiplier: None,
        };
        let (_, workers, devices) = workers::start(model, vec![alone])?;
        Ok(Self {
            engine,
            workers,
            devices,
        })
    }

    /// Returns both, to measure each product `repeat` times.
    ///
    /// # Errors
    /// If the device does not run models whole.
    pub(super) fn pair<'a>(&'a self, model: &'a Model, repeat: usize) -> Result<Pair<'a>> {
        let worker = &self.engine.shared().workers[0];
        let whole = worker.whole.as_ref().ok_or_else(|| {
            let expected = "one that runs the model whole";
            Error::option("the device", &worker.name, expected)
        })?;
        let bench = Bench {
            model,
            workers: &self.workers,
            devices: &self.devices,
            repeat: repeat.max(1),
        };
        Ok(Pair {
            bench,
            whole,
            model,
        })
    }
}

/// Starts an engine whose device computes all products.
fn whole(model: &Arc<Model>, processor: &ProcessorOptions, chunk: usize) -> Result<HeteroEngine> {
    let shares = [(DEVICE, 1.0), (MULTIPLIER, 0.0)];
    let shares = shares.map(|(processor, share)| Share { processor, share });
    let cut = Cut::new(Axis::Columns, shares.into(), 1)?;
    let context = chunk.min(model.description().context);
    let session = SessionOptions {
        context,
        chunk,
        ..SessionOptions::default()
    };
    let options = HeteroOptions {
        engine: EngineOptions {
            session,
            ..EngineOptions::default()
        },
        processors: vec![processor.clone()],
        cuts: PRODUCTS.map(|role| (role, cut.clone())).into(),
        ..HeteroOptions::default()
    };
    HeteroEngine::new(model, options, &mut |_, _| {})
}

/// The two devices.
pub(super) struct Pair<'a> {
    pub(super) bench: Bench<'a>,
    pub(super) whole: &'a WholeModel,
    model: &'a Model,
}

impl Pair<'_> {
    /// Returns the number of the first product of this role and shape, and its part on some rows and columns.
    pub(super) fn part(&self, role: Role, shape: ProductShape) -> Result<(usize, ProductPart)> {
        let description = self.model.description();
        let has = |block: &usize| {
            let of_block =
                triad_plan::partition::products(&description.blocks[*block], description.hidden, 1);
            of_block.is_ok_and(|products| {
                products.iter().any(|(other, one)| {
                    *other == role
                        && one.depth() == shape.depth()
                        && one.columns() >= shape.columns()
                })
            })
        };
        let block = (0..description.blocks.len())
            .find(has)
            .expect("a product of the model");
        let place = PRODUCTS
            .iter()
            .position(|other| *other == role)
            .expect("a product");
        let part = ProductPart {
            rows: 0..shape.rows(),
            columns: 0..shape.columns(),
            by_other: false,
        };
        Ok((block * PRODUCTS.len() + place, part))
    }

    /// Measures a product on the device that runs the model.
    fn of_device(
        &self,
        role: Role,
        shape: ProductShape,
        load: &std::sync::Mutex<Product>,
    ) -> Result<ProductTime> {
        let (product, part) = self.part(role, shape)?;
        let alone = self.whole.time_part(product, &part)?;
        let is_over = AtomicBool::new(false);
        let contended = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.run(&mut lock(load), &is_over));
            let contended = self.whole.time_part(product, &part);
            is_over.store(true, Ordering::Relaxed);
            other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            contended
        })?;
        Ok(time(DEVICE, shape, alone, contended))
    }

    /// Measures a product on the device that multiplies, with its copies.
    fn of_multiplier(&self, role: Role, shape: ProductShape) -> Result<(ProductTime, JoinTimes)> {
        let (index, part) = self.part(role, shape)?;
        let join = self.whole.time_join(index, &part)?;
        let copies = (join.read - join.blocking).max(0.0) + (join.write - join.blocking).max(0.0);
        let mut product = self.bench.product(role, ALONE, shape)?;
        let alone = self.bench.seconds(ALONE, &mut product)?;
        let is_over = AtomicBool::new(false);
        let contended = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    self.whole.time_part(index, &part)?;
                }
                Ok::<_, Error>(())
            });
            let contended = self.bench.seconds(ALONE, &mut product);
            is_over.store(true, Ordering::Relaxed);
            other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            contended
        })?;
        Ok((
            time(MULTIPLIER, shape, alone + copies, contended + copies),
            join,
        ))
    }

    fn run(&self, product: &mut Product, is_over: &AtomicBool) -> Result<()> {
        self.bench.workers[0].pool().install(|| {
            while !is_over.load(Ordering::Relaxed) {
                product.run()?;
            }
            Ok(())
        })
    }
}

fn time(processor: ProcessorId, shape: ProductShape, alone: f64, contended: f64) -> ProductTime {
    ProductTime {
        processor,
        rows: shape.rows(),
        columns: shape.columns(),
        depth: shape.depth(),
        alone,
        contended,
    }
}

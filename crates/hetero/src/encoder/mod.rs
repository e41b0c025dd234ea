//! The encoder of pictures on several processors. Devices multiply the linear layers of its blocks, by programs of a fixed
//! number of rows that all views share; norms, attention, corrections and projectors run on the CPU. An NPU
//! takes the layers in INT8, a GPU those in float, and both if it is alone. The programs are prepared for the first picture.
//!
//! Where a device multiplies, a view is computed by a thread of its own ([`run`]), since a device may hang. A device that
//! fails, panics or exceeds the time limit is lost for the rest of the view, and the CPU multiplies.

mod run;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use triad_engine::linear::Layers;
use triad_engine::vision::{Pixels, VisionModel};
use triad_engine::weights::{Block, Weight};
use triad_engine::{Cancel, Model, Threads};
use triad_kernels::lock;
use triad_kernels::pool::Pool;
use triad_model::role::Role;
use triad_model::vision::{Positions, VisionDescription};
use triad_plan::processors::{ProcessorId, ProcessorKind, Processors};
use triad_processors::{Device, LayerFormat};

use crate::error::{Error, Result};
use crate::failure::ProcessorFailure;
use crate::multiplier::PRODUCTS;
use crate::preparing::{has_no_room, is_of_shape};
use crate::programs::Programs;
use crate::workers::Worker;

/// Maximum rows of a program.
const MAX_ROWS: usize = 1024;
/// Rows of a program where views have many sizes.
const ROWS: usize = 256;
/// Maximum views whose times are kept.
const MAX_VIEWS: usize = 64;

/// A view of a picture that an encoder has computed.
#[derive(Clone, Debug)]
pub struct EncodedView {
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// The products that devices computed, in order.
    pub products: Vec<EncoderProduct>,
    /// Devices that failed.
    pub failures: Vec<ProcessorFailure>,
    /// Products that run on the CPU since devices have no room for them.
    pub without_room: usize,
}

/// A product of an encoder on a device.
#[derive(Clone, Copy, Debug)]
pub struct EncoderProduct {
    /// The block of the encoder.
    pub block: usize,
    /// The linear layers.
    pub role: Role,
    /// The processor.
    pub processor: ProcessorId,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// The encoder of a model, and the devices that multiply for it.
pub(crate) struct Encoder {
    model: Arc<Model>,
    /// The time limit of a product.
    time_out: Duration,
    devices: Vec<EncoderDevice>,
    programs: Mutex<Option<Arc<EncoderPrograms>>>,
    /// The threads of views with products on devices. A thread that hangs keeps its pool, and later views get another one.
    pool: Mutex<Option<Arc<Pool>>>,
    /// The latest views.
    views: Mutex<VecDeque<EncodedView>>,
}

/// A device that may multiply for an encoder.
struct EncoderDevice {
    processor: ProcessorId,
    kind: ProcessorKind,
    /// The name of the processor.
    name: String,
    device: Arc<dyn Device>,
    /// Whether it exceeded the time limit, and has not returned from that product.
    is_away: AtomicBool,
}

/// The programs of an encoder.
struct EncoderPrograms {
    /// By device.
    of_devices: Vec<Mutex<Programs>>,
    /// By block and by product, the index of the device that computes it.
    places: Vec<[Option<usize>; PRODUCTS.len()]>,
    /// The rows that each program is prepared for.
    rows: usize,
    without_room: usize,
}

/// The device of each worker, if it drives one.
type Devices = [Option<Arc<dyn Device>>];

impl Encoder {
    /// Creates the encoder's part of an executor on `workers`, which drive `devices`. A device that multiplies for another
    /// one takes the place of an NPU.
    pub(crate) fn new(
        model: &Arc<Model>,
        time_out: Duration,
        processors: &Processors,
        (workers, devices): (&[Worker], &Devices),
    ) -> Self {
        let of_worker =
            |((id, processor), (worker, device)): (_, (&Worker, &Option<Arc<dyn Device>>))| {
                let (id, processor): (ProcessorId, &triad_plan::processors::Processor) =
                    (id, processor);
                let make = |kind, name: &str, device: &Arc<dyn Device>| EncoderDevice {
                    processor: id,
                    kind,
                    name: name.to_owned(),
                    device: Arc::clone(device),
                    is_away: AtomicBool::new(false),
                };
                let multiplier = worker.multiplier.as_ref();
                let multiplier = multiplier.map(|it| make(ProcessorKind::Npu, "npu", it));
                let device = device.as_ref();
                let device = device.map(|it| make(processor.kind, &processor.name, it));
                multiplier.into_iter().chain(device)
            };
        let workers = processors.iter().zip(workers.iter().zip(devices));
        Self {
            model: Arc::clone(model),
            time_out,
            devices: workers.flat_map(of_worker).collect(),
            programs: Mutex::default(),
            pool: Mutex::default(),
            views: Mutex::default(),
        }
    }

    /// Computes the rows of a view.
    ///
    /// # Errors
    /// As [`VisionModel::encode`]; if a device refuses the encoder.
    pub(crate) fn encode(
        self: &Arc<Self>,
        pixels: Pixels,
        cancel: &Cancel,
    ) -> triad_engine::Result<Vec<f32>> {
        let vision = self.model.vision()?;
        let programs = self.programs(vision)?;
        let start = Instant::now();
        let (rows, products, failures) = if programs.is_empty() {
            let rows = self.model.install(|| vision.encode(pixels, cancel))?;
            (rows, Vec::new(), Vec::new())
        } else {
            let (rows, products, failures) = run::on_devices(self, &programs, pixels, cancel)?;
            let rows = match rows {
                Some(rows) => rows,
                // A device hangs with the rows so far.
                None => self.pool()?.install(|| vision.encode(pixels, cancel))?,
            };
            (rows, products, failures)
        };
        for failure in &failures {
            tracing::warn!("{failure}, and the encoder of pictures went on without it");
        }
        self.keep(EncodedView {
            start,
            end: Instant::now(),
            products,
            failures,
            without_room: programs.without_room,
        });
        Ok(rows)
    }

    /// Returns the times and failures of the latest views that no earlier call has returned.
    pub(crate) fn take_views(&self) -> Vec<EncodedView> {
        lock(&self.views).drain(..).collect()
    }

    /// Returns the threads of views, as many as those of the model.
    fn pool(&self) -> triad_engine::Result<Arc<Pool>> {
        let mut pool = lock(&self.pool);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let started = Threads::Count(self.model.pool().threads()).start()?;
        Ok(Arc::clone(pool.insert(Arc::new(started))))
    }

    /// Leaves the threads of views to one that hangs.
    fn leave_pool(&self) {
        *lock(&self.pool) = None;
    }

    fn keep(&self, view: EncodedView) {
        let mut views = lock(&self.views);
        if views.len() == MAX_VIEWS {
            views.pop_front();
        }
        views.push_back(view);
    }

    /// Returns the programs, which it has the devices prepare at first.
    ///
    /// # Errors
    /// If a device refuses a product for another reason than memory.
    fn programs(&self, vision: &VisionModel) -> Result<Arc<EncoderPrograms>> {
        let mut programs = lock(&self.programs);
        if let Some(prepared) = &*programs {
            return Ok(Arc::clone(prepared));
        }
        let prepared = Arc::new(self.prepare(vision)?);
        Ok(Arc::clone(programs.insert(prepared)))
    }

    fn prepare(&self, vision: &VisionModel) -> Result<EncoderPrograms> {
        let blocks = &vision.weights().blocks;
        let rows = program_rows(vision.description());
        let new = |one: &EncoderDevice| Programs::new(blocks.len(), &*one.device);
        let mut of_devices: Vec<_> = self.devices.iter().map(new).collect();
        let (mut places, mut without_room) = (Vec::with_capacity(blocks.len()), 0);
        for (index, block) in blocks.iter().enumerate() {
            let mut of_block = [None; PRODUCTS.len()];
            for (role, place) in PRODUCTS.into_iter().zip(&mut of_block) {
                let layers = vision.layers(role);
                if vision.divides(index, role) {
                    // Programs have one input.
                    continue;
                }
                let Some(device) = self.choose(block, &layers) else {
                    continue;
                };
                let columns = 0..layers.iter().map(|(_, features)| features).sum();
                let prepared = of_devices[device].prepare_layers(
                    (index, role, block),
                    (&layers, &columns),
                    &*self.devices[device].device,
                    rows,
                );
                match prepared {
                    Ok(()) => *place = Some(device),
                    // The CPU computes what a device has no room, no shape or no compiled graph for.
                    Err(Error::Subgraph { source, .. })
                        if has_no_room(&source) || is_of_shape(&source) =>
                    {
                        without_room += 1;
                    }
                    Err(error) => return Err(Error::Encoder(Box::new(error))),
                }
            }
            places.push(of_block);
        }
        Ok(EncoderPrograms {
            of_devices: of_devices.into_iter().map(Mutex::new).collect(),
            places,
            rows,
            without_room,
        })
    }

    /// Returns the device for layers of a block: of those that multiply their formats, an NPU rather than another one.
    fn choose(&self, block: &Block, layers: &Layers) -> Option<usize> {
        let format = |layer: &(_, _)| match &block.linears[&layer.0].weight {
            Weight::Float(weight) => LayerFormat::with_float_inputs(weight.view()),
            Weight::Int8(_) => LayerFormat::W8a8,
        };
        let formats: Vec<_> = layers.iter().map(format).collect();
        let fits = |one: &EncoderDevice| {
            let all = &one.device.capabilities().formats;
            formats.iter().all(|format| all.contains(format))
        };
        let fitting = self.devices.iter().enumerate().filter(|(_, one)| fits(one));
        fitting
            .min_by_key(|(_, one)| one.kind != ProcessorKind::Npu)
            .map(|(index, _)| index)
    }

    fn is_away(&self, device: usize) -> bool {
        self.devices[device].is_away.load(Ordering::Relaxed)
    }

    fn set_away(&self, device: usize, is_away: bool) {
        let of_device = &self.devices[device].is_away;
        of_device.store(is_away, Ordering::Relaxed);
    }
}

impl EncoderPrograms {
    /// Returns whether no device computes a product.
    fn is_empty(&self) -> bool {
        self.places.iter().flatten().all(Option::is_none)
    }

    /// Returns the device that computes a product.
    fn device(&self, block: usize, role: Role) -> Option<usize> {
        let product = PRODUCTS.iter().position(|other| *other == role)?;
        self.places.get(block)?[product]
    }
}

/// Returns the rows of programs: those of a view where all views have one size.
fn program_rows(description: &VisionDescription) -> usize {
    match description.positions {
        Positions::Fixed { side } | Positions::Nearest { side } => {
            let patches = side.saturating_mul(side);
            let all = patches.saturating_add(usize::from(description.class_token));
            all.clamp(1, MAX_ROWS)
        }
        _ => ROWS,
    }
}

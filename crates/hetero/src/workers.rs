//! The workers of an engine: the threads of each, and the programs of its device. Their loop is in
//! [`worker_loop`](crate::worker_loop).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use triad_kernels::pool::Pool;
use triad_plan::processors::{Processor, Processors};
use triad_processors::Device;

use super::programs::Programs;
use super::whole::WholeModel;
use crate::error::Result;
use triad_engine::Model;
use triad_engine::Threads;

/// The options of a processor.
#[derive(Clone)]
pub struct ProcessorOptions {
    /// Its name and kind, and the formats that it computes, or that the threads driving it compute.
    pub description: Processor,
    /// The threads that compute, or that drive the device.
    pub threads: Threads,
    /// The device that multiplies instead of our own kernels, in memory that it may limit. With a single processor, it
    /// computes the whole model if it can.
    pub device: Option<Arc<dyn Device>>,
    /// A second device, which multiplies INT8 in prompts for a device that computes the whole model.
    pub multiplier: Option<Arc<dyn Device>>,
}

/// The worker of a processor: its threads, and what the processor's device has prepared.
pub(super) struct Worker {
    pub(super) name: String,
    pool: WorkerPool,
    /// The programs of its device; `None`: our own kernels.
    pub(super) programs: Option<Mutex<Programs>>,
    /// The model, on a device that runs it whole.
    pub(super) whole: Option<WholeModel>,
    /// The device that multiplies for the whole model.
    pub(super) multiplier: Option<Arc<dyn Device>>,
    /// Products that the multiplying device has no room for.
    pub(super) without_room: usize,
    /// Whether it was lost to a timeout, and its thread still runs that task.
    is_away: AtomicBool,
}

/// The threads of a processor.
enum WorkerPool {
    /// The threads of the model, which its other engines use, too.
    OfModel(Arc<Model>),
    Own(Pool),
}

/// By processor, the device that it drives, if any.
pub(super) type Devices = Vec<Option<Arc<dyn Device>>>;

/// Starts the processors, their threads and devices; without any, uses the model's own threads.
pub(super) fn start(
    model: &Arc<Model>,
    options: Vec<ProcessorOptions>,
) -> Result<(Processors, Vec<Worker>, Devices)> {
    if options.is_empty() {
        let description = Processor::cpu("cpu");
        let worker = Worker::new(&description.name, WorkerPool::OfModel(Arc::clone(model)));
        return Ok((
            Processors::new(vec![description])?,
            vec![worker],
            vec![None],
        ));
    }
    let (mut descriptions, mut workers, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for ProcessorOptions {
        description,
        threads,
        device,
        multiplier,
    } in options
    {
        let worker = Worker::new(&description.name, WorkerPool::Own(threads.start()?));
        workers.push(Worker {
            multiplier,
            ..worker
        });
        let window = device
            .as_ref()
            .and_then(|device| device.capabilities().window);
        descriptions.push(Processor {
            window: window.or(description.window),
            ..description
        });
        devices.push(device);
    }
    Ok((Processors::new(descriptions)?, workers, devices))
}

impl Worker {
    fn new(name: &str, pool: WorkerPool) -> Self {
        Self {
            name: name.to_owned(),
            pool,
            programs: None,
            whole: None,
            multiplier: None,
            without_room: 0,
            is_away: AtomicBool::new(false),
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        match &self.pool {
            WorkerPool::OfModel(model) => model.pool(),
            WorkerPool::Own(pool) => pool,
        }
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }
}

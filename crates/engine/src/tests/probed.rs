//! An executor for tests: that of one CPU, which calls a probe while it computes.

use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use triad_kernels::lock;

use super::*;
use crate::batch::Batch;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::executor::{CpuExecutor, Executor, Limits, ProcessorUse};
use crate::linear::Backend;
use crate::vision::Pixels;

/// Called at some moments of each batch.
pub(super) type Probe = Arc<dyn Fn(Moment) + Send + Sync>;

/// The moment at which a probe is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before a decode step.
    Step,
    /// Before a layer of prompts.
    Layer,
    /// After a batch, whose requests may have ended.
    After,
}

impl Moment {
    /// Returns whether something is computed after it.
    pub(super) fn is_before(self) -> bool {
        self != Self::After
    }
}

struct ProbedExecutor {
    executor: CpuExecutor,
    probe: Mutex<Option<Probe>>,
    watches: AtomicUsize,
}

impl ProbedExecutor {
    fn call(&self, moment: Moment) {
        let probe = lock(&self.probe).clone();
        if let Some(probe) = probe {
            probe(moment);
        }
    }
}

impl Executor for ProbedExecutor {
    fn limits(&self) -> Limits {
        self.executor.limits()
    }

    fn execute(&self, batch: &Arc<Batch>, between: &dyn Fn()) {
        if batch.phase() == triad_kernels::Phase::Decode {
            self.call(Moment::Step);
        }
        self.executor.execute(batch, &|| {
            self.call(Moment::Layer);
            between();
        });
        self.call(Moment::After);
    }

    fn encode(&self, pixels: Pixels, cancel: &Cancel) -> Result<Vec<f32>> {
        self.executor.encode(pixels, cancel)
    }

    fn watch(&self) {
        self.watches.fetch_add(1, Ordering::Relaxed);
    }

    fn backend(&self) -> Box<dyn Backend + '_> {
        self.executor.backend()
    }

    fn processors(&self) -> Vec<ProcessorUse> {
        self.executor.processors()
    }
}

/// Returns an engine that [probes](set_probe) may be set on.
pub(super) fn probed(model: &Arc<Model>, options: &EngineOptions) -> Engine {
    let engine = Engine::with_executor(model, options, |setup| {
        Ok::<_, crate::Error>(Box::new(ProbedExecutor {
            executor: CpuExecutor::new(&setup.forward, setup.chunk),
            probe: Mutex::default(),
            watches: AtomicUsize::new(0),
        }))
    });
    engine.unwrap()
}

/// Sets or removes the probe of a [`probed`] engine.
pub(super) fn set_probe(engine: &Engine, probe: Option<Probe>) {
    *lock(&executor(engine).probe) = probe;
}

/// Returns how often a waiting thread woke up by itself.
pub(super) fn watches(engine: &Engine) -> usize {
    executor(engine).watches.load(Ordering::Relaxed)
}

fn executor(engine: &Engine) -> &ProbedExecutor {
    let executor: &dyn Any = engine.executor();
    executor.downcast_ref().expect("an engine with probes")
}

//! The processors of an executor with all that is prepared for them. Nothing of it changes while batches are computed.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use triad_engine::forward::Forward;
use triad_engine::outlier_cache::OutlierWeightCache;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::Policy;
use triad_processors::Device;

use crate::encoder::Encoder;
use crate::fixed_point::FixedBlocks;
use crate::steps::Steps;
use crate::wait::Wait;
use crate::work::PromptTasks;
use crate::workers::Worker;

/// The processors, and what is prepared for them.
pub(crate) struct Machine {
    pub(crate) forward: Arc<Forward>,
    pub(crate) settings: Settings,
    pub(crate) processors: Processors,
    pub(crate) tasks: PromptTasks,
    /// The cut steps of decode.
    pub(crate) steps: Option<Steps>,
    /// The rows of weights that shadows read; only with devices that have memory of their own.
    pub(crate) outlier_cache: Option<OutlierWeightCache>,
    /// The layers whose feed-forwards prompts compute in fixed point.
    pub(crate) fixed: Option<FixedBlocks>,
    /// The encoder of pictures.
    pub(crate) encoder: Arc<Encoder>,
    /// Devices of the processors that have one.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) workers: Vec<Worker>,
    /// The processor that runs the float operators.
    pub(crate) float_unit: ProcessorId,
    /// The origin of all times in seconds.
    pub(crate) start: Instant,
    /// Notified when prompts wait for orders of their tasks, and when such orders are planned.
    pub(crate) planning: Condvar,
    /// Whether something is being computed; read by the planner thread.
    pub(crate) is_computing: AtomicBool,
}

/// The settings of an executor.
pub(crate) struct Settings {
    pub(crate) context: usize,
    pub(crate) chunk: usize,
    pub(crate) max_stall: Option<Duration>,
    pub(crate) policy: Policy,
    pub(crate) wait: Wait,
    pub(crate) time_out: Duration,
}

impl Machine {
    pub(crate) fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_secs_f64()
    }
}

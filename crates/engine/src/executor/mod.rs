//! Executors: what computes the batches that the [scheduler](crate::scheduler) forms.
//!
//! [`CpuExecutor`] is a loop over the layers of the model, on its threads. The crate `triad-hetero` has another one, for
//! several processors.

mod cpu;

use std::any::Any;
use std::sync::Arc;

pub(crate) use cpu::CpuExecutor;
pub use cpu::{LayerTimes, panic_message, step_logits};

use crate::batch::{Batch, SequenceId};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::linear::Backend;
use crate::vision::Pixels;
#[cfg(doc)]
use crate::vision::VisionModel;

/// Computes batches. An executor knows nothing of sessions, queues or waiting.
pub trait Executor: Any + Send + Sync {
    /// Returns the limits of its batches.
    fn limits(&self) -> Limits;

    /// Computes a batch, or starts to: the batch is over when [`Batch::end`] was called. `between` is called between
    /// layers of prompts by executors whose batches do not [overlap](Limits::overlap); it may execute another batch.
    fn execute(&self, batch: &Arc<Batch>, between: &dyn Fn());

    /// Computes parts of batches that have started on the calling thread, until `is_enough` or until there are none.
    /// Returns whether there was one.
    fn run_inline(&self, is_enough: &dyn Fn() -> bool) -> bool {
        let _ = is_enough;
        false
    }

    /// Computes the rows of a view with the encoder of the model ([`VisionModel::encode`]). Called by one request at a time.
    ///
    /// # Errors
    /// As [`VisionModel::encode`]; if it does not compute prompts with pictures of this model.
    fn encode(&self, pixels: Pixels, cancel: &Cancel) -> Result<Vec<f32>>;

    /// Called when requests of running batches may have been cancelled.
    fn cancelled(&self) {}

    /// Checks for threads that hang; called now and then by threads that wait.
    fn watch(&self) {}

    /// Returns whether it gives the [hidden states](Batch::keep_states) of its rows to requests that want them.
    fn gives_states(&self) -> bool {
        false
    }

    /// Drops what it keeps of a sequence, which has ended or gets another number.
    fn forget(&self, sequence: SequenceId) {
        let _ = sequence;
    }

    /// Returns the backend of linear layers for prompts that a session runs on the model's threads, outside of batches.
    fn backend(&self) -> Box<dyn Backend + '_>;

    /// Returns its processors, and how long each has computed so far.
    fn processors(&self) -> Vec<ProcessorUse>;
}

/// The limits of the batches that an executor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum rows of a batch of prompts.
    pub prompt_rows: usize,
    /// The same of prompts that have pictures whose rows read each other: such a picture is in one batch.
    pub picture_rows: usize,
    /// Maximum batches of prompts at a time.
    pub prompts: usize,
    /// Whether it has threads of its own, which compute several batches concurrently. Otherwise a batch is computed by
    /// the thread that executes it, one at a time.
    pub overlap: bool,
    /// Whether sequences with adapters need batches of their own.
    pub separate_adapters: bool,
}

/// The work of a processor so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessorUse {
    /// Its name.
    pub name: String,
    /// Seconds that it has computed. The rest of the time it had nothing to do, or waited for others.
    pub busy_seconds: f64,
}

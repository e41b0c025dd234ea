//! GPU work like that of an application that renders. It shows whether the application loses frames while a model runs
//! (HeteroLLM, §5.5).

use std::sync::Arc;

use super::context::Context;
use super::peak::{ADDED, MultiplyAdds};
use super::{Gpu, GpuOptions, adapters};
use crate::error::Result;

/// Measured frames; the fastest counts.
const ROUNDS: usize = 5;

/// Frames of a fixed length.
#[derive(Debug)]
pub struct Frames {
    context: Arc<Context>,
    work: MultiplyAdds,
    groups: u32,
    seconds: f64,
}

impl Frames {
    /// Creates frames of about `seconds` each in the queue of `gpu`. This queue runs its submissions in order, so that
    /// frames wait the longest.
    ///
    /// # Errors
    /// If the GPU or its driver refuses the shader, or the GPU fails.
    pub fn in_queue_of(gpu: &Gpu, seconds: f64) -> Result<Self> {
        Self::new(Arc::clone(&gpu.shared.context), seconds)
    }

    /// Creates frames in a queue of their own, as another application has. The driver decides which queue runs next.
    ///
    /// # Errors
    /// If there is no such GPU, its driver refuses it or the shader, or the GPU fails.
    pub fn in_own_queue(options: &GpuOptions, seconds: f64) -> Result<Self> {
        let (listed, adapter) = adapters::choose(options.adapter.as_deref())?;
        Self::new(
            Arc::new(Context::open(&listed, &adapter, None, false)?),
            seconds,
        )
    }

    fn new(context: Arc<Context>, seconds: f64) -> Result<Self> {
        let work = MultiplyAdds::new(&context, ADDED)?;
        let fastest = |groups| -> Result<f64> {
            let times = (0..ROUNDS)
                .map(|_| work.seconds(&context, groups))
                .collect::<Result<Vec<_>>>()?;
            Ok(times.into_iter().fold(f64::INFINITY, f64::min))
        };
        let mut groups = 1u32;
        while fastest(groups)? < seconds && groups < 1 << 20 {
            groups *= 2;
        }
        // Interpolates linearly between the last two measurements.
        let (less, more) = (fastest(groups / 2)?, fastest(groups)?);
        let share = ((seconds - less) / (more - less)).clamp(0.0, 1.0);
        let groups = (groups / 2 + (share * f64::from(groups / 2)) as u32).max(1);
        let seconds = fastest(groups)?;
        Ok(Self {
            context,
            work,
            groups,
            seconds,
        })
    }

    /// Returns the seconds that a frame takes while the GPU does nothing else.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Submits a frame and waits until it is complete.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn render(&self) -> Result<()> {
        self.work.seconds(&self.context, self.groups).map(|_| ())
    }
}

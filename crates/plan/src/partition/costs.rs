//! What a product takes on a processor, and what joining the parts of several processors takes.

use std::collections::HashMap;

use super::{PartitionError, ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// Seconds of products on processors.
pub trait Costs {
    /// Seconds of a product of `shape` on `processor`, with what the processor takes to begin it: finite and not
    /// negative.
    ///
    /// # Errors
    /// If they are not known. They are never guessed.
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost>;

    /// The same while other processors compute parts of the product, too, and share memory. Where nobody knows better, as
    /// alone.
    ///
    /// # Errors
    /// As [`Costs::seconds`].
    fn seconds_beside(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        self.seconds(processor, shape)
    }
}

impl<C: Costs + ?Sized> Costs for &C {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        (**self).seconds(processor, shape)
    }

    fn seconds_beside(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        (**self).seconds_beside(processor, shape)
    }
}

/// A time that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Where.
    pub processor: ProcessorId,
    /// Of what.
    pub shape: ProductShape,
    /// How long it took: finite and above 0.
    pub seconds: f64,
}

/// A measurement that is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MeasurementError {
    /// A time that is none.
    #[error("{shape} on processor {} took {seconds} seconds: expected a finite number above 0", processor.index())]
    Seconds {
        /// Where.
        processor: ProcessorId,
        /// Of what.
        shape: ProductShape,
        /// The time.
        seconds: f64,
    },
    /// A shape has two times.
    #[error("{shape} on processor {} are measured twice: expected one time, such as the median", processor.index())]
    Twice {
        /// Where.
        processor: ProcessorId,
        /// Of what.
        shape: ProductShape,
    },
}

impl Measurement {
    /// Refuses a time that is none.
    pub(super) fn check(&self) -> Result<(), MeasurementError> {
        let Self {
            processor,
            shape,
            seconds,
        } = *self;
        let is_time = seconds > 0.0 && seconds.is_finite();
        if is_time {
            Ok(())
        } else {
            Err(MeasurementError::Seconds {
                processor,
                shape,
                seconds,
            })
        }
    }
}

/// What was measured, and nothing else: the profiler's real execution (§4.3).
#[derive(Clone, Debug)]
pub struct MeasuredCosts(HashMap<(ProcessorId, ProductShape), f64>);

impl MeasuredCosts {
    /// A table of `measurements`.
    ///
    /// # Errors
    /// If a time is not finite or not above 0, or a shape is measured twice on a processor.
    pub fn new(measurements: &[Measurement]) -> Result<Self, MeasurementError> {
        let mut table = HashMap::new();
        for measurement in measurements {
            measurement.check()?;
            let Measurement {
                processor,
                shape,
                seconds,
            } = *measurement;
            if table.insert((processor, shape), seconds).is_some() {
                return Err(MeasurementError::Twice { processor, shape });
            }
        }
        Ok(Self(table))
    }
}

impl Costs for MeasuredCosts {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.0
            .get(&(processor, shape))
            .copied()
            .ok_or(UnknownCost { processor, shape })
    }
}

/// What it takes to join processors: T_sync and T_copy of §4.3.
///
/// One processor computes the floats before and after a product, a GPU in the paper. What it computes alone is not
/// joined. Which of two synchronizations is needed depends on who computes longest (§4.2): if it is the float processor
/// (GPU-dominant, as in decode), its next kernel waits in its queue already; if it is another one (NPU-dominant, as in
/// prefill), the float processor has to be given its next kernel when that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joins {
    float: ProcessorId,
    float_dominant: f64,
    other_dominant: f64,
    copy: f64,
}

impl Joins {
    /// The float processor; seconds of a synchronization where it computes longest and where another one does; seconds
    /// of the copies to and from each other processor, 0 where all of them share memory.
    ///
    /// # Errors
    /// If a time is negative or not finite.
    pub fn new(
        float: ProcessorId,
        float_dominant: f64,
        other_dominant: f64,
        copy: f64,
    ) -> Result<Self, PartitionError> {
        let is_time = |seconds: &f64| *seconds >= 0.0 && seconds.is_finite();
        match [float_dominant, other_dominant, copy]
            .into_iter()
            .find(|seconds| !is_time(seconds))
        {
            Some(seconds) => Err(PartitionError::Join { seconds }),
            None => Ok(Self {
                float,
                float_dominant,
                other_dominant,
                copy,
            }),
        }
    }

    /// The processor that computes the floats before and after a product.
    pub fn float(&self) -> ProcessorId {
        self.float
    }

    /// Seconds of T_sync and T_copy where these processors compute for so many seconds. Of several that compute
    /// longest, the first one counts.
    pub fn seconds(&self, busy: impl Iterator<Item = (ProcessorId, f64)>) -> f64 {
        let mut others = 0;
        let mut longest = (self.float, f64::NEG_INFINITY);
        for (processor, seconds) in busy {
            others += usize::from(processor != self.float);
            if seconds > longest.1 {
                longest = (processor, seconds);
            }
        }
        if others == 0 {
            return 0.0;
        }
        let synchronization = if longest.0 == self.float {
            self.float_dominant
        } else {
            self.other_dominant
        };
        synchronization + self.copy * others as f64
    }
}

//! Costs of a product on a processor, and of joining the parts of several processors.

use std::collections::HashMap;

use super::{PartitionError, ProductShape, UnknownCost};
use crate::processors::ProcessorId;

/// Costs of products on processors in seconds.
pub trait Costs {
    /// Returns the seconds of a product of `shape` on `processor`, including its launch: finite and not negative.
    ///
    /// # Errors
    /// If the cost is unknown. Costs are never guessed.
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost>;

    /// Returns the seconds while other processors compute parts of the product, too, and share memory. The default is
    /// the time alone.
    ///
    /// # Errors
    /// See [`Costs::seconds`].
    fn concurrent_seconds(
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

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        (**self).concurrent_seconds(processor, shape)
    }
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The processor.
    pub processor: ProcessorId,
    /// The shape of the product.
    pub shape: ProductShape,
    /// The time: finite and above 0.
    pub seconds: f64,
}

/// An error in measurements.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MeasurementError {
    /// A time is not finite or not above 0.
    #[error("{shape} on processor {} took {seconds} seconds: expected a finite number above 0", processor.index())]
    Seconds {
        /// The processor.
        processor: ProcessorId,
        /// The shape of the product.
        shape: ProductShape,
        /// The time in seconds.
        seconds: f64,
    },
    /// A shape has two times.
    #[error("{shape} on processor {} is measured twice: expected one time, such as the median", processor.index())]
    Twice {
        /// The processor.
        processor: ProcessorId,
        /// The shape of the product.
        shape: ProductShape,
    },
}

impl Measurement {
    /// Returns an error if the time is not finite or not above 0.
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

/// Measured costs without interpolation: the profiler's real execution (§4.3).
#[derive(Clone, Debug)]
pub struct MeasuredCosts(HashMap<(ProcessorId, ProductShape), f64>);

impl MeasuredCosts {
    /// Creates a table of `measurements`.
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

/// Costs of joining processors: T_sync and T_copy of §4.3.
///
/// The float processor computes in float before and after a product; in the paper it is a GPU. What it computes alone
/// needs no join. The kind of synchronization depends on the processor that computes longest (§4.2). If it is the float
/// processor (GPU-dominant, as in decode), its next kernel already waits in its queue. If it is another one
/// (NPU-dominant, as in prefill), the float processor receives its next kernel only when that one is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joins {
    float: ProcessorId,
    float_dominant: f64,
    other_dominant: f64,
    copy: f64,
}

impl Joins {
    /// Creates costs from the float processor, the seconds of a synchronization where it computes longest and where
    /// another one does, and the seconds of the copies to and from each other processor, 0 if all of them share memory.
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

    /// Returns the processor that computes in float before and after a product.
    pub fn float(&self) -> ProcessorId {
        self.float
    }

    /// Returns the seconds of T_sync and T_copy for the given busy seconds of each processor. Of several that compute
    /// longest, the first one determines the synchronization.
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

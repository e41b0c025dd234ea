//! Simulated costs from the profile of a device that is not present.

use super::costs::{Costs, Joins};
use super::{PartitionError, ProductShape, UnknownCost};
use crate::device::DeviceProfile;
use crate::device::weight_only::WeightOnly;
use crate::prefill::FloatsOn;
use crate::processors::{Processor, ProcessorId, ProcessorKind, Processors};

/// Costs of INT8 products on a device, from its [profile](crate::device).
#[derive(Clone, Debug)]
pub struct ProfileCosts<'a> {
    device: &'a DeviceProfile,
    processors: Processors,
}

impl<'a> ProfileCosts<'a> {
    /// Creates costs for the processors of `device`: `cpu`, `gpu` if there is one, and `npu`.
    pub fn new(device: &'a DeviceProfile) -> Self {
        let gpu = device.gpu.as_ref().map(|_| Processor::gpu("gpu"));
        let list = [Processor::cpu("cpu")]
            .into_iter()
            .chain(gpu)
            .chain([Processor::npu("npu", Some(device.window()))]);
        Self {
            device,
            processors: Processors::new(list.collect()).expect("the names are unique"),
        }
    }

    /// Returns the processors.
    pub fn processors(&self) -> &Processors {
        &self.processors
    }

    /// Returns the join costs with the processor that computes in float. A processor that was idle takes a while to
    /// start. This applies to another processor, which waits for the floats before the product, and to the float
    /// processor if it waits for another one. The time of copies is contained in the launches of the profile.
    ///
    /// # Errors
    /// If `floats_on` is a GPU that the device does not have.
    pub fn joins(&self, floats_on: FloatsOn) -> Result<Joins, PartitionError> {
        let name = match floats_on {
            FloatsOn::Cpu => "cpu",
            FloatsOn::Gpu => "gpu",
        };
        let float = self
            .processors
            .id(name)
            .ok_or(PartitionError::NoProcessor)?;
        let wake = self.device.wake_milliseconds * 1e-3;
        Joins::new(float, wake, 2.0 * wake, 0.0)
    }
}

impl Costs for ProfileCosts<'_> {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        let ProductShape {
            rows,
            columns,
            depth,
        } = shape;
        let of_list =
            (processor.index() < self.processors.len()).then(|| self.processors[processor].kind);
        let on = match of_list {
            Some(ProcessorKind::Npu) => return Ok(self.device.npu_product(rows, depth, columns)),
            Some(ProcessorKind::Cpu) => Some(&self.device.cpu),
            Some(ProcessorKind::Gpu) => self.device.gpu.as_ref(),
            None => None,
        };
        on.map(|on| on.int8_product(rows, depth, columns))
            .ok_or(UnknownCost { processor, shape })
    }
}

/// The way in which processors wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// By shared memory: a thread sleeps for the expected time and then polls a flag (§4.2).
    Fast,
    /// By the driver, with a copy of the output of one processor to where the other one reads it (§3.1).
    Blocking,
}

/// Costs of products with INT4 weights in f16 on a device, from its [profile](crate::device::weight_only).
#[derive(Clone, Debug)]
pub struct WeightOnlyCosts<'a> {
    device: &'a WeightOnly,
    processors: Processors,
}

impl<'a> WeightOnlyCosts<'a> {
    /// The GPU, which also computes in float.
    pub const GPU: ProcessorId = ProcessorId::new(0);
    /// The NPU.
    pub const NPU: ProcessorId = ProcessorId::new(1);

    /// Creates costs for `gpu` and `npu`.
    pub fn new(device: &'a WeightOnly) -> Self {
        let list = vec![Processor::gpu("gpu"), Processor::npu("npu", None)];
        Self {
            device,
            processors: Processors::new(list).expect("the names are unique"),
        }
    }

    /// Returns the processors.
    pub fn processors(&self) -> &Processors {
        &self.processors
    }

    /// Returns the join costs of the NPU with the GPU. If the NPU computes longest, the GPU's queue is empty
    /// afterwards. If the GPU does, its next kernel already waits in the queue, unless the driver must be asked whether
    /// both are done.
    ///
    /// # Errors
    /// If a time of the profile is negative or not finite.
    pub fn joins(&self, waiting: Waiting) -> Result<Joins, PartitionError> {
        const MICRO: f64 = 1e-6;
        let times = &self.device.synchronization;
        let [poll, empty_queue, copy] = [
            times.poll_microseconds,
            times.empty_queue_microseconds,
            times.copy_microseconds,
        ]
        .map(|time| time * MICRO);
        match waiting {
            Waiting::Fast => Joins::new(Self::GPU, poll, poll + empty_queue, 0.0),
            // One copy of the input to the NPU, and one of its output back.
            Waiting::Blocking => Joins::new(Self::GPU, empty_queue, empty_queue, 2.0 * copy),
        }
    }

    fn product(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
        is_concurrent: bool,
    ) -> Result<f64, UnknownCost> {
        let ProductShape {
            rows,
            columns,
            depth,
        } = shape;
        match processor {
            Self::GPU => Ok(self.device.gpu_product(rows, columns, depth, is_concurrent)),
            Self::NPU => Ok(self.device.npu_product(rows, columns, depth, is_concurrent)),
            _ => Err(UnknownCost { processor, shape }),
        }
    }
}

impl Costs for WeightOnlyCosts<'_> {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        self.product(processor, shape, false)
    }

    fn concurrent_seconds(
        &self,
        processor: ProcessorId,
        shape: ProductShape,
    ) -> Result<f64, UnknownCost> {
        self.product(processor, shape, true)
    }
}

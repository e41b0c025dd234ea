//! Costs by the profile of a device that is not here: simulated, as prefills are.

use super::costs::{Costs, Joins};
use super::{PartitionError, ProductShape, UnknownCost};
use crate::device::DeviceProfile;
use crate::prefill::FloatsOn;
use crate::processors::{Processor, ProcessorId, ProcessorKind, Processors};

/// Seconds of INT8 products on a device, by its [profile](crate::device).
#[derive(Clone, Debug)]
pub struct ProfileCosts<'a> {
    device: &'a DeviceProfile,
    processors: Processors,
}

impl<'a> ProfileCosts<'a> {
    /// Of the processors of `device`: `cpu`, `gpu` if there is one, and `npu`.
    pub fn new(device: &'a DeviceProfile) -> Self {
        let gpu = device.gpu.as_ref().map(|_| Processor::gpu("gpu"));
        let list = [Processor::cpu("cpu")].into_iter().chain(gpu).chain([Processor::npu("npu", Some(device.window()))]);
        Self { device, processors: Processors::new(list.collect()).expect("names of their own") }
    }

    /// The processors.
    pub fn processors(&self) -> &Processors {
        &self.processors
    }

    /// Joins with the processor that computes floats. One that has been idle takes a while to begin: another processor,
    /// which waits for the floats before the product, and the float processor, where it waits for another one. What a
    /// copy takes is in the launches of the profile.
    ///
    /// # Errors
    /// If floats should be on a GPU that the device does not have.
    pub fn joins(&self, floats_on: FloatsOn) -> Result<Joins, PartitionError> {
        let name = match floats_on {
            FloatsOn::Cpu => "cpu",
            FloatsOn::Gpu => "gpu",
        };
        let float = self.processors.id(name).ok_or(PartitionError::NoProcessor)?;
        let wake = self.device.wake_milliseconds * 1e-3;
        Joins::new(float, wake, 2.0 * wake, 0.0)
    }
}

impl Costs for ProfileCosts<'_> {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        let ProductShape { rows, columns, depth } = shape;
        let of_list = (processor.index() < self.processors.len()).then(|| self.processors[processor].kind);
        let on = match of_list {
            Some(ProcessorKind::Npu) => return Ok(self.device.npu_product(rows, depth, columns)),
            Some(ProcessorKind::Cpu) => Some(&self.device.cpu),
            Some(ProcessorKind::Gpu) => self.device.gpu.as_ref(),
            None => None,
        };
        on.map(|on| on.int8_product(rows, depth, columns)).ok_or(UnknownCost { processor, shape })
    }
}

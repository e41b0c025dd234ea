//! The devices that ONNX Runtime lists.

use ort::device::Device as OrtDevice;
use ort::environment::Environment;

use super::provider::{DeviceKind, Provider};

/// Returns the devices that the environment lists for `provider`.
pub(super) fn devices(environment: &Environment, provider: Provider) -> Vec<OrtDevice<'_>> {
    environment
        .devices()
        .filter(|device| device.ep().is_ok_and(|ep| ep == provider.canonical()))
        .collect()
}

pub(super) fn is_kind(device: &OrtDevice, kind: Option<DeviceKind>) -> bool {
    kind.is_none_or(|kind| DeviceKind::from_provider(device.hardware_device().ty()) == Some(kind))
}

pub(super) fn describe<'a, 'e: 'a>(devices: impl IntoIterator<Item = &'a OrtDevice<'e>>) -> String {
    let describe = |device: &OrtDevice| {
        let hardware = device.hardware_device();
        let kind = DeviceKind::from_provider(hardware.ty()).map_or("other", DeviceKind::name);
        format!(
            "{kind} {} of {}",
            hardware.id(),
            hardware.vendor().unwrap_or("an unknown vendor")
        )
    };
    devices
        .into_iter()
        .map(describe)
        .collect::<Vec<_>>()
        .join(", ")
}

//! Lists the GPUs of a machine and selects one.

use std::fmt;

use crate::error::{Error, Result};

/// The environment variable that names a GPU, like [`GpuOptions::adapter`](super::GpuOptions::adapter).
pub const ADAPTER: &str = "TRIAD_GPU";

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Name, such as `NVIDIA GeForce RTX 3060`.
    pub name: String,
    /// Kind of adapter.
    pub kind: AdapterKind,
    /// Graphics API: `Vulkan`, `Metal`, `DirectX 12`.
    pub interface: String,
    /// Name and version of the driver.
    pub driver: String,
}

/// Kind of adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU of the host, used from a virtual machine.
    Virtual,
    /// A program that emulates a GPU on the CPU.
    Software,
    /// The driver does not report the kind.
    Other,
}

impl AdapterKind {
    /// Returns a description for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "with memory of its own",
            Self::Integrated => "shares the CPU's memory",
            Self::Virtual => "virtual",
            Self::Software => "software on the CPU",
            Self::Other => "of an unknown kind",
        }
    }

    /// Returns the priority of this kind (the lowest is chosen first), or `None` if it must be named to be chosen.
    fn rank(self) -> Option<u8> {
        match self {
            Self::Discrete => Some(0),
            Self::Integrated => Some(1),
            Self::Virtual => Some(2),
            Self::Other => Some(3),
            Self::Software => None,
        }
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            name,
            kind,
            interface,
            driver,
        } = self;
        write!(f, "{name} ({}; {interface}; {driver})", kind.name())
    }
}

/// Returns the adapter whose name contains `wanted`, ignoring case. Without a name, returns the fastest kind of GPU
/// that is present, and never a software renderer.
///
/// # Errors
/// If there is no such adapter.
pub(super) fn choose(wanted: Option<&str>) -> Result<(wgpu::Adapter, Adapter)> {
    let mut all = listed();
    let described: Vec<_> = all.iter().map(|(_, described)| described.clone()).collect();
    Ok(all.swap_remove(choose_from(&described, wanted)?))
}

fn choose_from(all: &[Adapter], wanted: Option<&str>) -> Result<usize> {
    let names = || {
        all.iter()
            .map(Adapter::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some(wanted) = wanted else {
        let ranked = all
            .iter()
            .enumerate()
            .filter_map(|(index, adapter)| Some((adapter.kind.rank()?, index)));
        return ranked
            .min()
            .map(|(_, index)| index)
            .ok_or_else(|| Error::NoGpu { software: names() });
    };
    let is_wanted =
        |adapter: &Adapter| adapter.name.to_lowercase().contains(&wanted.to_lowercase());
    all.iter()
        .position(is_wanted)
        .ok_or_else(|| Error::GpuNotFound {
            wanted: wanted.to_owned(),
            found: names(),
        })
}

/// Returns every GPU that this machine's drivers list, or none if it has no driver.
pub(super) fn listed() -> Vec<(wgpu::Adapter, Adapter)> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let descriptor = wgpu::InstanceDescriptor {
        backends,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let adapters = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends));
    let described = |adapter| {
        let described = describe(&adapter);
        (adapter, described)
    };
    adapters.into_iter().map(described).collect()
}

fn describe(adapter: &wgpu::Adapter) -> Adapter {
    let info = adapter.get_info();
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Other,
    };
    let interface = match info.backend {
        wgpu::Backend::Vulkan => "Vulkan",
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "DirectX 12",
        _ => "another interface",
    };
    let driver = [info.driver, info.driver_info].join(" ").trim().to_owned();
    let driver = if driver.is_empty() {
        "an unnamed driver".to_owned()
    } else {
        driver
    };
    Adapter {
        name: info.name,
        kind,
        interface: interface.to_owned(),
        driver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(name: &str, kind: AdapterKind) -> Adapter {
        Adapter {
            name: name.to_owned(),
            kind,
            interface: "Vulkan".to_owned(),
            driver: "driver 1".to_owned(),
        }
    }

    #[test]
    fn the_fastest_kind_of_gpu_is_chosen_and_never_software_in_its_place() {
        let software = adapter("llvmpipe", AdapterKind::Software);
        let all = [
            software.clone(),
            adapter("small", AdapterKind::Integrated),
            adapter("large", AdapterKind::Discrete),
        ];
        assert_eq!(choose_from(&all, None).unwrap(), 2);
        assert_eq!(choose_from(&all[..2], None).unwrap(), 1);
        let error = choose_from(&[software], None).unwrap_err();
        assert!(matches!(error, Error::NoGpu { .. }));
        assert!(
            error
                .to_string()
                .contains("llvmpipe (software on the CPU; Vulkan; driver 1)"),
            "{error}"
        );
        assert!(
            choose_from(&[], None)
                .unwrap_err()
                .to_string()
                .contains("driver")
        );
    }

    #[test]
    fn a_gpu_is_found_by_a_part_of_its_name() {
        let all = [
            adapter("NVIDIA GeForce", AdapterKind::Discrete),
            adapter("llvmpipe (LLVM)", AdapterKind::Software),
        ];
        assert_eq!(choose_from(&all, Some("geforce")).unwrap(), 0);
        assert_eq!(choose_from(&all, Some("llvmpipe")).unwrap(), 1);
        let error = choose_from(&all, Some("radeon")).unwrap_err().to_string();
        assert!(
            error.contains("radeon") && error.contains("NVIDIA GeForce"),
            "{error}"
        );
    }
}

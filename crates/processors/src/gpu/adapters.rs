//! Which GPUs there are, and which one is meant.

use std::fmt;

use crate::error::{Error, Result};

/// The environment variable that names a GPU, as [`GpuOptions::adapter`](super::GpuOptions::adapter) does.
pub const ADAPTER: &str = "TRIAD_GPU";

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// `NVIDIA GeForce RTX 3060`.
    pub name: String,
    /// What it is.
    pub kind: AdapterKind,
    /// The interface: `Vulkan`, `Metal`, `DirectX 12`.
    pub interface: String,
    /// Name and version of the driver.
    pub driver: String,
}

/// What an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU of the machine that this one is a guest of.
    Virtual,
    /// A program that runs on the CPU in place of a GPU.
    Software,
    /// The driver does not tell.
    Other,
}

impl AdapterKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "with memory of its own",
            Self::Integrated => "shares the CPU's memory",
            Self::Virtual => "virtual",
            Self::Software => "software on the CPU",
            Self::Other => "of an unknown kind",
        }
    }

    /// The lower, the sooner it is chosen.
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

/// The adapter whose name contains `wanted`, in small or capital letters; without a name, the fastest kind of GPU that is
/// there, and never software in its place.
///
/// # Errors
/// If there is none.
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

/// Every GPU that this machine's drivers list; none where it has no driver.
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

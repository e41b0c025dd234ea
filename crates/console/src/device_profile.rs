//! Arguments that name the profile of a device, and the processor that computes in float on it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use triad_plan::device::{self, DeviceProfile};
use triad_plan::prefill::FloatsOn;

use crate::inputs;

/// Size limit of a device profile; profiles have about 2 KiB. A device file of the system could be endless.
const MAX_DEVICE_BYTES: u64 = 1 << 20;

/// Reads the profile of a device: a built-in one by its name, others from a TOML file.
pub fn device(name: &str) -> Result<DeviceProfile> {
    if device::NAMES.contains(&name) || !Path::new(name).exists() {
        return Ok(DeviceProfile::builtin(name)?);
    }
    inputs::add(Path::new(name));
    let mut text = String::new();
    let file = File::open(name).with_context(|| format!("cannot read {name}"))?;
    file.take(MAX_DEVICE_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {name}"))?;
    let is_short = text.len() as u64 <= MAX_DEVICE_BYTES;
    ensure!(
        is_short,
        "{name}: longer than {} KiB: expected the TOML file of a device",
        MAX_DEVICE_BYTES >> 10
    );
    Ok(DeviceProfile::parse(&text, name)?)
}

/// Parses the processor that computes in float.
pub fn floats_on(text: &str) -> Result<FloatsOn, String> {
    match text {
        "cpu" => Ok(FloatsOn::Cpu),
        "gpu" => Ok(FloatsOn::Gpu),
        _ => Err("expected cpu or gpu".into()),
    }
}

/// Returns an error if `floats_on` is a GPU that the device does not have.
pub fn check_floats(floats_on: FloatsOn, device: &DeviceProfile) -> Result<()> {
    ensure!(
        floats_on == FloatsOn::Cpu || device.gpu.is_some(),
        "{} has no GPU: expected --floats cpu, or a [gpu] in its file",
        device.name
    );
    Ok(())
}

//! The power of batteries, in `/sys/class/power_supply`.

use std::fs;
use std::path::{Path, PathBuf};

use super::counters::number;

/// A battery. Its folder has `power_now` in microwatts, or `current_now` and `voltage_now` in microamperes and
/// microvolts. Some systems give the current of a battery that is discharged as a number below zero.
#[derive(Debug)]
pub(super) struct Battery(PathBuf);

impl Battery {
    /// Returns the batteries of the system below a root.
    pub fn find_in(sys: &Path) -> Vec<Self> {
        let supplies = fs::read_dir(sys.join("class/power_supply"));
        let folders = supplies.into_iter().flatten().flatten();
        let mut folders: Vec<_> = folders.map(|supply| supply.path()).collect();
        folders.retain(|folder| {
            let is = |field: &str, value: &str| text(&folder.join(field)).as_deref() == Some(value);
            // Those of a mouse or a headset have the scope of a device.
            is("type", "Battery") && !is("scope", "Device") && !is("present", "0")
        });
        folders.sort();
        folders.into_iter().map(Self).collect()
    }

    /// Returns the power that it gives; `None` if it is not discharged, or does not say.
    pub fn watts(&self) -> Option<f64> {
        let Self(folder) = self;
        if text(&folder.join("status"))? != "Discharging" {
            return None;
        }
        let micro = |field: &str| Some(signed(&folder.join(field))?.abs() / 1e6);
        micro("power_now").or_else(|| {
            let volts = number(&folder.join("voltage_now"))? as f64 / 1e6;
            Some(micro("current_now")? * volts)
        })
    }
}

fn text(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn signed(file: &Path) -> Option<f64> {
    let number: i64 = text(file)?.parse().ok()?;
    Some(number as f64)
}

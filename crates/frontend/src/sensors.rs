//! Clocks and temperatures of this machine, where the system reports them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of clocks and temperatures, found once.
#[derive(Debug, Default)]
pub struct Sensors {
    /// Files with the clock of a core each, in kHz.
    clocks: Vec<PathBuf>,
    /// File with the clocks of all cores, for systems without the other files.
    cpuinfo: PathBuf,
    /// Names and files of temperatures, in thousandths of a degree.
    zones: Vec<(String, PathBuf)>,
}

impl Sensors {
    /// Finds the sensors of this machine.
    pub fn find() -> Self {
        Self::find_in(Path::new("/sys"), Path::new("/proc"))
    }

    /// Finds the sensors below other roots.
    fn find_in(sys: &Path, proc: &Path) -> Self {
        let folders = |folder: &str, prefix: &str| {
            let entries = fs::read_dir(sys.join(folder))
                .into_iter()
                .flatten()
                .flatten();
            let number = |path: &PathBuf| {
                path.file_name()
                    .and_then(|name| name.to_str()?.strip_prefix(prefix)?.parse::<usize>().ok())
            };
            let mut found: Vec<_> = entries
                .filter_map(|entry| Some((number(&entry.path())?, entry.path())))
                .collect();
            found.sort();
            found
        };
        let clocks = folders("devices/system/cpu", "cpu").into_iter();
        let clocks = clocks
            .map(|(_, folder)| folder.join("cpufreq/scaling_cur_freq"))
            .filter(|file| file.exists());
        let zone = |(number, folder): (usize, PathBuf)| {
            let kind = fs::read_to_string(folder.join("type")).unwrap_or_default();
            let name = match kind.trim() {
                "" => format!("zone {number}"),
                kind => format!("{kind} ({number})"),
            };
            (name, folder.join("temp"))
        };
        Self {
            clocks: clocks.collect(),
            cpuinfo: proc.join("cpuinfo"),
            zones: folders("class/thermal", "thermal_zone")
                .into_iter()
                .map(zone)
                .collect(),
        }
    }

    /// Returns the mean clock of the cores now, in MHz; `None` where the system does not report it.
    pub fn megahertz(&self) -> Option<f64> {
        let kilohertz: Vec<_> = self.clocks.iter().filter_map(|file| number(file)).collect();
        if !kilohertz.is_empty() {
            return Some(mean(&kilohertz) / 1e3);
        }
        let text = fs::read_to_string(&self.cpuinfo).ok()?;
        let clocks: Vec<_> = text
            .lines()
            .filter_map(|line| {
                line.split_once(':')
                    .filter(|(name, _)| name.trim() == "cpu MHz")?
                    .1
                    .trim()
                    .parse()
                    .ok()
            })
            .collect();
        (!clocks.is_empty()).then(|| mean(&clocks))
    }

    /// Returns the temperatures now, in °C, by the names of their zones; empty where the system reports none.
    pub fn celsius(&self) -> BTreeMap<String, f64> {
        self.zones
            .iter()
            .filter_map(|(name, file)| Some((name.clone(), number(file)? / 1e3)))
            .collect()
    }
}

fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file)
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, content: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn clocks_are_the_mean_of_all_cores_and_temperatures_have_the_names_of_their_zones() {
        let root = tempfile::tempdir().unwrap();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        write(
            &sys,
            "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
            "2000000\n",
        );
        write(
            &sys,
            "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq",
            "3000000\n",
        );
        write(&sys, "devices/system/cpu/cpufreq/scaling_cur_freq", "9\n");
        write(&sys, "class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
        write(&sys, "class/thermal/thermal_zone1/temp", "45500\n");
        // Some drivers report an error instead of a number.
        write(&sys, "class/thermal/thermal_zone2/temp", "\n");
        write(&sys, "class/thermal/cooling_device0/temp", "1\n");
        let sensors = Sensors::find_in(&sys, &proc);
        assert_eq!(sensors.megahertz(), Some(2500.0));
        assert_eq!(
            sensors.celsius(),
            BTreeMap::from([("x86_pkg_temp (1)".to_owned(), 45.5)])
        );
    }

    #[test]
    fn without_files_of_each_core_clocks_are_those_of_cpuinfo_and_without_any_there_are_none() {
        let root = tempfile::tempdir().unwrap();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        assert_eq!(Sensors::find_in(&sys, &proc).megahertz(), None);
        write(
            &proc,
            "cpuinfo",
            "processor\t: 0\ncpu MHz\t\t: 2400.5\ncache size\t: 1 KB\ncpu MHz\t\t: 2600.5\n",
        );
        let sensors = Sensors::find_in(&sys, &proc);
        assert_eq!(sensors.megahertz(), Some(2500.5));
        assert!(sensors.celsius().is_empty());
    }
}

//! Energy counters of this machine's processors, where the system has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The energy counters of the processors (RAPL of Intel and AMD, in `/sys/class/powercap`). Each counts a processor
/// with its cores and caches, often also the memory controller. Virtual machines have none, and on Linux only root can
/// read them.
#[derive(Debug)]
pub(super) struct EnergyCounters {
    counters: Vec<Counter>,
    /// The latest values, and the joules since the counters were found.
    last: Mutex<(Vec<u64>, f64)>,
}

/// The counter of one processor.
#[derive(Debug)]
struct Counter {
    /// The file with the microjoules since an arbitrary time.
    energy: PathBuf,
    /// The microjoules at which the counter wraps around to 0.
    range: u64,
}

impl EnergyCounters {
    /// Returns the counters of the system below a root; `None` where there are none, or they can't be read.
    pub(super) fn find_in(sys: &Path) -> Option<Self> {
        let zones = fs::read_dir(sys.join("class/powercap"))
            .into_iter()
            .flatten()
            .flatten();
        // `intel-rapl:0` is a processor. `intel-rapl:0:1` is a part of it, whose energy the processor includes.
        let is_processor = |name: &str| {
            let number = name.strip_prefix("intel-rapl:");
            number.is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
            })
        };
        let mut folders: Vec<_> = zones
            .filter(|zone| zone.file_name().to_str().is_some_and(is_processor))
            .map(|zone| zone.path())
            // `psys` counts the whole platform, including its processors.
            .filter(|folder| {
                fs::read_to_string(folder.join("name"))
                    .is_ok_and(|name| name.trim().starts_with("package"))
            })
            .collect();
        folders.sort();
        let counter = |folder: PathBuf| {
            let range = number(&folder.join("max_energy_range_uj"))?;
            Some(Counter {
                energy: folder.join("energy_uj"),
                range,
            })
        };
        let counters = folders
            .into_iter()
            .map(counter)
            .collect::<Option<Vec<_>>>()?;
        let first = read(&counters)?;
        (!counters.is_empty()).then(|| Self {
            counters,
            last: Mutex::new((first, 0.0)),
        })
    }

    /// Returns the joules of all processors since the counters were found, used by all programs together; `None` if a
    /// counter cannot be read any more. Counters wrap around within the hour and must be read more often than that.
    pub(super) fn joules(&self) -> Option<f64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = read(&self.counters)?;
        let (before, sum) = &mut *last;
        for ((now, before), Counter { range, .. }) in
            now.iter().zip(before.iter_mut()).zip(&self.counters)
        {
            let more = now
                .checked_sub(*before)
                .unwrap_or_else(|| range.saturating_sub(*before).saturating_add(*now));
            *sum += more as f64 / 1e6;
            *before = *now;
        }
        Some(*sum)
    }
}

fn read(counters: &[Counter]) -> Option<Vec<u64>> {
    counters
        .iter()
        .map(|counter| number(&counter.energy))
        .collect()
}

pub(super) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(root: &Path, folder: &str, name: &str, microjoules: u64) {
        let folder = root.join("class/powercap").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "10000000\n").unwrap();
        fs::write(folder.join("energy_uj"), format!("{microjoules}\n")).unwrap();
    }

    #[test]
    fn joules_are_those_of_all_processors_and_go_on_where_a_counter_begins_again() {
        let root = tempfile::tempdir().unwrap();
        zone(root.path(), "intel-rapl:0", "package-0", 9_000_000);
        zone(root.path(), "intel-rapl:1", "package-1", 1_000_000);
        // A part of the first processor, and a counter of the whole platform.
        zone(root.path(), "intel-rapl:0:0", "core", 500);
        zone(root.path(), "intel-rapl:2", "psys", 500);
        let counters = EnergyCounters::find_in(root.path()).unwrap();
        assert_eq!(counters.joules(), Some(0.0));
        zone(root.path(), "intel-rapl:1", "package-1", 1_500_000);
        assert_eq!(counters.joules(), Some(0.5));
        zone(root.path(), "intel-rapl:0", "package-0", 500_000);
        zone(root.path(), "intel-rapl:0:0", "core", 9_000);
        zone(root.path(), "intel-rapl:2", "psys", 9_000);
        assert_eq!(counters.joules(), Some(2.0));
    }

    #[test]
    fn there_are_no_counters_where_none_can_be_read() {
        let root = tempfile::tempdir().unwrap();
        assert!(EnergyCounters::find_in(root.path()).is_none());
        zone(root.path(), "intel-rapl:0", "package-0", 1);
        let energy = root.path().join("class/powercap/intel-rapl:0/energy_uj");
        let counters = EnergyCounters::find_in(root.path()).unwrap();
        fs::remove_file(&energy).unwrap();
        assert_eq!(counters.joules(), None);
        assert!(EnergyCounters::find_in(root.path()).is_none());
    }
}

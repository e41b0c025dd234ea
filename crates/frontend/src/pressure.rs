//! Memory pressure: whether the system, or the control group of this process, runs out of memory.
//!
//! Linux measures for which share of the time tasks waited for memory (PSI), for the system and for each control group
//! (cgroup v2). A group with a limit kills or slows down its processes when their memory reaches it. Elsewhere, and where
//! the kernel has no PSI, only the available memory counts.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::machine;

/// The share of the last ten seconds in which some task waited for memory, in percent, from which memory is short.
const STALLED_PERCENT: f64 = 10.0;
/// The share of a control group's limit that its processes may allocate before memory is short, in percent.
const LIMIT_PERCENT: u64 = 90;
/// The share of the memory that has to be available, in percent.
const AVAILABLE_PERCENT: u64 = 3;

/// The files in which the system reports memory pressure.
#[derive(Clone, Debug)]
pub struct PressureFiles {
    root: PathBuf,
}

/// The reason why memory is short.
#[derive(Clone, Debug, PartialEq)]
pub enum Pressure {
    /// Tasks waited for memory in this share of the last ten seconds, in percent.
    Stalled {
        /// Whether that holds for the control group of this process; otherwise for the system.
        in_group: bool,
        /// The share, in percent.
        percent: f64,
    },
    /// The processes of a control group have allocated nearly all that they may.
    Limit {
        /// Bytes that cannot be given back, except to swap.
        allocated: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The machine has nearly no memory left.
    Available {
        /// Bytes that can be allocated.
        available: u64,
        /// All bytes.
        total: u64,
    },
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Stalled { in_group, percent } => {
                let whose = if *in_group { "control group" } else { "system" };
                write!(
                    f,
                    "tasks of the {whose} waited for memory {percent:.0} % of the time"
                )
            }
            Self::Limit { allocated, limit } => {
                write!(
                    f,
                    "{allocated} of {limit} bytes of the control group are allocated"
                )
            }
            Self::Available { available, total } => {
                write!(f, "{available} of {total} bytes of memory are available")
            }
        }
    }
}

impl Default for PressureFiles {
    /// Returns the files of this system.
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl PressureFiles {
    /// Returns the files below another folder than `/`, for tests. The memory of the machine does not count then.
    pub fn below(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// Returns the reason why memory is short now, if it is. A file that is not there reports nothing.
    pub fn read(&self) -> Option<Pressure> {
        let groups = self.groups();
        let stalled = |in_group, file: PathBuf| {
            let percent = stalled_percent(&fs::read_to_string(file).ok()?)?;
            (percent >= STALLED_PERCENT).then_some(Pressure::Stalled { in_group, percent })
        };
        stalled(false, self.root.join("proc/pressure/memory"))
            .or_else(|| {
                let files = groups.iter().map(|group| group.join("memory.pressure"));
                files.into_iter().find_map(|file| stalled(true, file))
            })
            .or_else(|| groups.iter().find_map(|group| of_limit(group)))
            .or_else(|| self.available())
    }

    /// Returns the folders of the control group of this process and of those that it is in.
    fn groups(&self) -> Vec<PathBuf> {
        let file = self.root.join("proc/self/cgroup");
        let text = fs::read_to_string(file).unwrap_or_default();
        let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
            return Vec::new();
        };
        let all = self.root.join("sys/fs/cgroup");
        let within = Path::new(path).ancestors();
        within.map(|path| all.join(path)).collect()
    }

    fn available(&self) -> Option<Pressure> {
        if self.root != Path::new("/") {
            return None;
        }
        let (available, total) = (machine::available_memory()?, machine::total_memory()?);
        let least = total / 100 * AVAILABLE_PERCENT;
        (available < least).then_some(Pressure::Available { available, total })
    }
}

/// Reads the share of the last ten seconds from a file of PSI: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn stalled_percent(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("avg10="))?;
    value
        .parse()
        .ok()
        .filter(|percent: &f64| percent.is_finite())
}

/// Returns the pressure of a control group that is near its limit.
fn of_limit(group: &Path) -> Option<Pressure> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    // Without a limit, the file has `max`.
    let limit = ["memory.high", "memory.max"]
        .iter()
        .filter_map(|file| read(file)?.trim().parse::<u64>().ok())
        .min()?;
    let numbers = read("memory.stat")?;
    let number = |name: &str| {
        let value = numbers
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    // Pages of files can be read again.
    let allocated = number("anon")?.saturating_add(number("shmem").unwrap_or(0));
    let most = limit / 100 * LIMIT_PERCENT;
    (allocated > most).then_some(Pressure::Limit { allocated, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, PressureFiles) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let files = PressureFiles::below(folder.path());
        (folder, files)
    }

    const CALM: &str = "some avg10=9.99 avg60=50.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    const SHORT: &str = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    const GROUP: (&str, &str) = ("proc/self/cgroup", "1:cpu:/x\n0::/user/triad\n");

    #[test]
    fn tasks_that_wait_for_memory_are_pressure() {
        assert_eq!(folder(&[]).1.read(), None);
        assert_eq!(folder(&[("proc/pressure/memory", CALM)]).1.read(), None);
        let stalled = |in_group| {
            let percent = 12.5;
            Some(Pressure::Stalled { in_group, percent })
        };
        let (_folder, files) = folder(&[("proc/pressure/memory", SHORT)]);
        assert_eq!(files.read(), stalled(false));
        for group in ["user/triad", "user"] {
            let file = format!("sys/fs/cgroup/{group}/memory.pressure");
            let (_folder, files) = folder(&[GROUP, ("proc/pressure/memory", CALM), (&file, SHORT)]);
            assert_eq!(files.read(), stalled(true), "{group}");
        }
        for damaged in [
            "",
            "some",
            "some avg10=NaN",
            "some avg10=x total=1",
            "full avg10=99.0",
        ] {
            let (_folder, files) = folder(&[("proc/pressure/memory", damaged)]);
            assert_eq!(files.read(), None, "{damaged}");
        }
    }

    #[test]
    fn a_control_group_near_its_limit_is_pressure_and_pages_of_files_do_not_count() {
        let read = |high: &str, max: &str, stat: &str| {
            let at = |file: &str| format!("sys/fs/cgroup/user/triad/{file}");
            let (_folder, files) = folder(&[
                GROUP,
                (&at("memory.high"), high),
                (&at("memory.max"), max),
                (&at("memory.stat"), stat),
            ]);
            files.read()
        };
        let full = "anon 900\nfile 90000\nshmem 20\n";
        let (allocated, limit) = (920, 1000);
        assert_eq!(
            read("1000\n", "max\n", full),
            Some(Pressure::Limit { allocated, limit })
        );
        assert_eq!(
            read("max\n", "1000\n", full),
            Some(Pressure::Limit { allocated, limit })
        );
        assert_eq!(read("2000\n", "3000\n", full), None);
        assert_eq!(read("max\n", "max\n", full), None);
        assert_eq!(read("1000\n", "max\n", "anon 800\nfile 90000\n"), None);
        assert_eq!(read("1000\n", "max\n", ""), None);
    }
}

//! The hardware as Linux and Android report it, in `/proc` and `/sys`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Cache, CoreGroup, Resident};

/// Returns the processor's name, as the system reports it.
pub(crate) fn processor() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    ["model name", "Hardware", "Processor"]
        .iter()
        .find_map(|key| field(&cpuinfo, key))
}

/// Returns the version of the processor's microcode, if the system reports it.
pub(crate) fn microcode() -> Option<String> {
    field(&fs::read_to_string("/proc/cpuinfo").ok()?, "microcode")
}

/// Returns the bytes of memory.
pub(super) fn memory_bytes() -> Option<u64> {
    memory("/proc/meminfo", "MemTotal")
}

/// Returns the bytes of memory that a process can allocate now, if the system reports them.
pub fn available_memory() -> Option<u64> {
    memory("/proc/meminfo", "MemAvailable")
}

/// Returns the bytes of address space that this process may still map, if there is a limit (`ulimit -v`).
pub(crate) fn available_addresses() -> Option<u64> {
    let limit = address_limit(&fs::read_to_string("/proc/self/limits").ok()?)?;
    Some(limit.saturating_sub(memory("/proc/self/status", "VmSize")?))
}

/// Parses the soft limit in a file like `/proc/self/limits`.
fn address_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the peak bytes of memory of this process, if the system reports them.
pub fn peak_resident_bytes() -> Option<u64> {
    memory("/proc/self/status", "VmHWM")
}

/// Returns the memory of this process now, if the system reports it.
pub fn resident() -> Option<Resident> {
    let of = |key| memory("/proc/self/status", key);
    let (anonymous_bytes, file_bytes, shared_bytes) =
        (of("RssAnon")?, of("RssFile")?, of("RssShmem")?);
    Some(Resident {
        bytes: of("VmRSS")?,
        anonymous_bytes,
        file_bytes,
        shared_bytes,
    })
}

/// Returns the bytes of a line `key: 123 kB` in a file of `/proc`.
fn memory(file: &str, key: &str) -> Option<u64> {
    let value = field(&fs::read_to_string(file).ok()?, key)?;
    value
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// Returns one folder for each hardware thread.
fn cpu_folders() -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten();
    let is_cpu = |path: &Path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.strip_prefix("cpu")
            .is_some_and(|number| number.parse::<usize>().is_ok())
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_cpu(path))
        .collect()
}

fn read(folder: &Path, file: &str) -> Option<String> {
    Some(
        fs::read_to_string(folder.join(file))
            .ok()?
            .trim()
            .to_owned(),
    )
}

/// Returns the number of cores, hyper-threads not counted.
pub(super) fn cores() -> Option<usize> {
    let core = |cpu: std::path::PathBuf| {
        Some((
            read(&cpu, "topology/physical_package_id")?,
            read(&cpu, "topology/core_id")?,
        ))
    };
    let cores: BTreeSet<_> = cpu_folders().into_iter().filter_map(core).collect();
    Some(cores.len()).filter(|count| *count > 0)
}

/// Returns the groups of threads with the same highest clock, fastest first.
pub(super) fn core_groups() -> Vec<CoreGroup> {
    let mut groups = BTreeMap::new();
    for cpu in cpu_folders() {
        let kilohertz =
            read(&cpu, "cpufreq/cpuinfo_max_freq").and_then(|text| text.parse::<u64>().ok());
        if let Some(kilohertz) = kilohertz {
            *groups.entry(kilohertz / 1000).or_insert(0) += 1;
        }
    }
    groups
        .into_iter()
        .rev()
        .map(|(megahertz, threads)| CoreGroup { threads, megahertz })
        .collect()
}

/// Returns the data caches, smallest first.
pub(super) fn caches() -> Vec<Cache> {
    let mut instances = BTreeSet::new();
    for cpu in cpu_folders() {
        for index in 0..8 {
            let folder = cpu.join(format!("cache/index{index}"));
            if read(&folder, "type").is_none_or(|kind| kind == "Instruction") {
                continue;
            }
            let level = read(&folder, "level").and_then(|text| text.parse::<u32>().ok());
            let bytes = read(&folder, "size").and_then(|text| size(&text));
            // An instance is identified by the threads that share it.
            if let (Some(level), Some(bytes), Some(shared)) =
                (level, bytes, read(&folder, "shared_cpu_list"))
            {
                instances.insert((level, bytes, shared));
            }
        }
    }
    let mut counts = BTreeMap::new();
    for (level, bytes, _) in instances {
        *counts.entry((level, bytes)).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|((level, bytes), count)| Cache {
            level,
            bytes,
            count,
        })
        .collect()
}

/// Parses sizes such as `48K` and `2M`.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text
            .strip_suffix('M')
            .map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_proc_is_found_by_its_whole_name() {
        let text = "MemTotalOther:  1 kB\nMemTotal:       24 kB\nmodel name\t: A: B\n";
        assert_eq!(field(text, "MemTotal").as_deref(), Some("24 kB"));
        assert_eq!(field(text, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(text, "Mem"), None);
    }

    #[test]
    fn the_limit_of_address_space_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max cpu time              unlimited            unlimited            seconds\n\
                      Max address space         4194304000           unlimited            bytes\n";
        assert_eq!(address_limit(limits), Some(4_194_304_000));
        assert_eq!(
            address_limit(&limits.replace("4194304000", "unlimited ")),
            None
        );
    }

    #[test]
    fn cache_sizes_have_units() {
        assert_eq!(
            [size("48K"), size("2M"), size("512"), size("x")],
            [Some(48 << 10), Some(2 << 20), Some(512), None]
        );
    }

    #[test]
    fn the_system_reports_memory() {
        assert!(peak_resident_bytes().unwrap() > 0);
        assert!(available_memory().unwrap() > 0);
    }
}

//! The hardware of this machine: memory, cores, caches, instruction sets. A value that the system does not report is
//! `None` or absent, never a guess.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Serialize;
use triad_kernels::{kernel_names, refused_kernels};

use crate::error::{Error, Result};

/// The processor and its memory.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as the system reports it.
    pub processor: Option<String>,
    /// Rust's name of the architecture: `x86_64`, `aarch64`.
    pub architecture: &'static str,
    /// Instruction sets of this processor that matter for the kernels.
    pub instruction_sets: Vec<&'static str>,
    /// The kernels that multiply matrices here.
    pub kernels: Kernels,
    /// Number of cores, hyper-threads not counted.
    pub cores: Option<usize>,
    /// Number of threads that run concurrently in this process.
    pub threads: usize,
    /// Groups of threads with the same highest clock, fastest first.
    pub core_groups: Vec<CoreGroup>,
    /// Data caches, smallest first.
    pub caches: Vec<Cache>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that a program can allocate now without swapping.
    pub memory_available_bytes: Option<u64>,
}

/// Names of the kernels for each number format.
#[derive(Debug, Serialize)]
pub struct Kernels {
    /// The kernel for INT8.
    pub int8: &'static str,
    /// The kernel for f32.
    pub f32: &'static str,
    /// The kernel for attention and for products of a prompt that may be rounded.
    pub rounded: &'static str,
    /// The format that these are rounded to: `INT16` or `bf16`; `f32` if they are not rounded.
    pub rounded_to: &'static str,
    /// Kernels that computed a small product wrongly on this processor, and are not used.
    pub refused: Vec<RefusedKernel>,
}

/// A kernel that is not used.
#[derive(Debug, Serialize)]
pub struct RefusedKernel {
    /// Its name.
    pub kernel: &'static str,
    /// The wrong result and the expected one.
    pub reason: &'static str,
}

/// Hardware threads with the same highest clock.
#[derive(Debug, Serialize)]
pub struct CoreGroup {
    /// Number of threads.
    pub threads: usize,
    /// Highest clock in MHz.
    pub megahertz: u64,
}

/// One level of cache.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cache {
    /// The level: 1 is nearest to the core.
    pub level: u32,
    /// Bytes of one instance.
    pub bytes: u64,
    /// Number of instances in the machine.
    pub count: usize,
}

impl Machine {
    /// Reads the hardware of the machine that this process runs on.
    pub fn detect() -> Self {
        let (cpus, kernels) = (cpu_folders(), kernel_names());
        let refused = refused_kernels().iter();
        let refused = refused
            .map(|refused| RefusedKernel {
                kernel: refused.kernel,
                reason: &refused.reason,
            })
            .collect();
        let kernels = Kernels {
            int8: kernels.int8,
            f32: kernels.f32,
            rounded: kernels.rounded,
            rounded_to: kernels.rounded_to,
            refused,
        };
        Self {
            processor: processor(),
            architecture: std::env::consts::ARCH,
            instruction_sets: instruction_sets(),
            kernels,
            cores: cores(&cpus),
            threads: threads(),
            core_groups: core_groups(&cpus),
            caches: caches(&cpus),
            memory_bytes: memory("/proc/meminfo", "MemTotal"),
            memory_available_bytes: available_memory(),
        }
    }
}

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

/// Returns the number of threads that run concurrently in this process; 1 if the system does not report it.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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

/// Address space of a run that is not counted otherwise: stacks of threads, and the allocator's reserve for each
/// thread.
const OTHER_ADDRESSES: u64 = 128 << 20;

/// Checks whether `bytes` of memory for `what` are available, before they are allocated. Succeeds where the system does
/// not report the available memory.
///
/// # Errors
/// [`Error::Memory`] or [`Error::MemoryLimit`] with both numbers.
pub fn check_memory(what: &str, bytes: usize) -> Result<()> {
    let needed = bytes as u64;
    if let Some(available) = available_memory() {
        fits(what, needed, available)?;
    }
    available_addresses().map_or(Ok(()), |available| fits_limit(what, needed, available))
}

fn fits_limit(what: &str, needed: u64, available: u64) -> Result<()> {
    if needed.saturating_add(OTHER_ADDRESSES) > available {
        let available = available.saturating_sub(OTHER_ADDRESSES);
        return Err(Error::MemoryLimit {
            what: what.into(),
            needed,
            available,
        });
    }
    Ok(())
}

fn fits(what: &str, needed: u64, available: u64) -> Result<()> {
    if needed > available {
        return Err(Error::Memory {
            what: what.into(),
            needed,
            available,
        });
    }
    Ok(())
}

/// Returns the peak bytes of memory of this process, if the system reports them.
pub fn peak_resident_bytes() -> Option<u64> {
    memory("/proc/self/status", "VmHWM")
}

/// The memory of this process now, as the system counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// All of the process's memory.
    pub bytes: u64,
    /// Memory of no file, which the process allocated.
    pub anonymous_bytes: u64,
    /// Pages of mapped files, such as weights that are read in place.
    pub file_bytes: u64,
    /// Memory shared with devices or other processes.
    pub shared_bytes: u64,
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

fn cores(cpus: &[std::path::PathBuf]) -> Option<usize> {
    let core = |cpu: &std::path::PathBuf| {
        Some((
            read(cpu, "topology/physical_package_id")?,
            read(cpu, "topology/core_id")?,
        ))
    };
    let cores: BTreeSet<_> = cpus.iter().filter_map(core).collect();
    Some(cores.len()).filter(|count| *count > 0)
}

fn core_groups(cpus: &[std::path::PathBuf]) -> Vec<CoreGroup> {
    let mut groups = BTreeMap::new();
    for cpu in cpus {
        let kilohertz =
            read(cpu, "cpufreq/cpuinfo_max_freq").and_then(|text| text.parse::<u64>().ok());
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

fn caches(cpus: &[std::path::PathBuf]) -> Vec<Cache> {
    let mut instances = BTreeSet::new();
    for cpu in cpus {
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

/// One macro call for each name, since the detection macros accept only literals.
macro_rules! detected {
    ($detect:ident: $($name:tt),+ $(,)?) => {
        [$(($name, std::arch::$detect!($name))),+].into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
    };
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<&'static str> {
    let mut sets: Vec<_> = detected!(is_x86_feature_detected:
        "sse4.2", "f16c", "fma", "avx", "avx2", "avxvnni",
        "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16",
    );
    // Rust has no macro for AMX, which the system must permit too.
    sets.extend(
        triad_kernels::tier::Tier::Amx
            .is_supported()
            .then_some("amx"),
    );
    sets
}

#[cfg(target_arch = "aarch64")]
fn instruction_sets() -> Vec<&'static str> {
    let mut found: Vec<_> = detected!(is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2");
    // The detection of SME in the standard library is unstable.
    found.extend(
        triad_kernels::tier::Tier::Sme
            .is_supported()
            .then_some("sme"),
    );
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instruction_sets() -> Vec<&'static str> {
    Vec::new()
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
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let error = fits("llama-2-7b", 13 << 30, 4 << 30)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "llama-2-7b needs 13.0 GiB of memory, but 4.0 GiB are available on this machine"
        );
        fits("llama-2-7b", 4 << 30, 4 << 30).unwrap();
    }

    #[test]
    fn a_limit_of_the_process_is_read_and_the_error_explains_how_to_raise_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max cpu time              unlimited            unlimited            seconds\n\
                      Max address space         4194304000           unlimited            bytes\n";
        assert_eq!(address_limit(limits), Some(4_194_304_000));
        assert_eq!(
            address_limit(&limits.replace("4194304000", "unlimited ")),
            None
        );
        let error = fits_limit("a context of 8192 tokens", 2 << 30, 1 << 30)
            .unwrap_err()
            .to_string();
        let expected = "a context of 8192 tokens needs 2.0 GiB of memory, but the limit of this process leaves 896.0 MiB: \
                        raise it (ulimit -v), or ask for less";
        assert_eq!(error, expected);
        fits_limit("", (1 << 30) - OTHER_ADDRESSES, 1 << 30).unwrap();
    }

    #[test]
    fn cache_sizes_have_units() {
        assert_eq!(
            [size("48K"), size("2M"), size("512"), size("x")],
            [Some(48 << 10), Some(2 << 20), Some(512), None]
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_reports_memory_on_linux() {
        assert!(peak_resident_bytes().unwrap() > 0);
        assert!(available_memory().unwrap() > 0);
    }
}

//! The hardware of this machine: memory, cores, caches, instruction sets. A value that the system does not report is
//! `None` or absent, never a guess.

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod elsewhere;
mod hardware;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

use serde::Serialize;
use triad_kernels::{kernel_names, refused_kernels};

use crate::error::{Error, Result};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use elsewhere as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as system;

pub use hardware::{Cache, CoreGroup, Resident};
pub(crate) use system::{available_addresses, microcode, processor};
pub use system::{available_memory, peak_resident_bytes, resident};

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

impl Machine {
    /// Reads the hardware of the machine that this process runs on.
    pub fn detect() -> Self {
        let kernels = kernel_names();
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
            cores: system::cores(),
            threads: threads(),
            core_groups: system::core_groups(),
            caches: system::caches(),
            memory_bytes: system::memory_bytes(),
            memory_available_bytes: available_memory(),
        }
    }
}

/// Returns the bytes of memory of this machine, if the system reports them.
pub fn total_memory() -> Option<u64> {
    system::memory_bytes()
}

/// Returns the number of files and connections that this process may have open, if there is a limit (`ulimit -n`).
#[cfg(unix)]
pub fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Returns `None`: this system limits files and connections by their memory alone.
#[cfg(not(unix))]
pub fn open_files() -> Option<u64> {
    None
}

/// Returns the number of threads that run concurrently in this process; 1 if the system does not report it.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
    sets.extend(triad_kernels::isa::Isa::Amx.is_supported().then_some("amx"));
    sets
}

#[cfg(target_arch = "aarch64")]
fn instruction_sets() -> Vec<&'static str> {
    let mut found: Vec<_> = detected!(is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2");
    // The detection of SME in the standard library is unstable.
    found.extend(triad_kernels::isa::Isa::Sme.is_supported().then_some("sme"));
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
    fn the_error_of_a_limit_of_the_process_explains_how_to_raise_it() {
        let error = fits_limit("a context of 8192 tokens", 2 << 30, 1 << 30)
            .unwrap_err()
            .to_string();
        let expected = "a context of 8192 tokens needs 2.0 GiB of memory, but the limit of this process leaves 896.0 MiB: \
                        raise it (ulimit -v), or ask for less";
        assert_eq!(error, expected);
        fits_limit("", (1 << 30) - OTHER_ADDRESSES, 1 << 30).unwrap();
    }
}

//! Parts of a machine, as the systems report them.

use serde::Serialize;

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

//! The hardware as other systems report it, by a library. What it does not tell is absent.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::{Cache, CoreGroup, Resident};

/// Returns the processor's name.
pub(crate) fn processor() -> Option<String> {
    let system = system(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()))?;
    let name = system.cpus().first()?.brand().trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// Returns the number of cores, hyper-threads not counted.
pub(super) fn cores() -> Option<usize> {
    System::physical_core_count().ok()
}

/// Returns the bytes of memory.
pub(super) fn memory_bytes() -> Option<u64> {
    known(memory()?.total_memory())
}

/// Returns the bytes of memory that a process can allocate now. On Windows these are the free ones.
pub fn available_memory() -> Option<u64> {
    known(memory()?.available_memory())
}

/// Returns `None`: a limit on the address space is Linux's.
pub(crate) fn available_addresses() -> Option<u64> {
    None
}

pub(crate) fn microcode() -> Option<String> {
    None
}

pub(super) fn core_groups() -> Vec<CoreGroup> {
    Vec::new()
}

pub(super) fn caches() -> Vec<Cache> {
    Vec::new()
}

/// Returns the peak bytes of memory of this process, if the system reports them.
pub fn peak_resident_bytes() -> Option<u64> {
    None
}

/// Returns the memory of this process now, if the system reports it.
pub fn resident() -> Option<Resident> {
    None
}

fn memory() -> Option<System> {
    system(RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()))
}

fn system(read: RefreshKind) -> Option<System> {
    System::new_with_specifics(read).ok()
}

/// Returns a number unless it is 0, which stands for one that the system does not report.
fn known(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

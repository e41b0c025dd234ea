//! Memory of the process that the allocator holds.

/// Gives memory that was freed back to the system. glibc keeps what lies between pieces in use until it is asked. Does
/// nothing where the allocator gives it back by itself.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: the call reads and changes only free memory, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

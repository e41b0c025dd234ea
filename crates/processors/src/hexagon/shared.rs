//! The file that host and device map, read and written as atomics: the other process may write to it at any time.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// A file without a name, mapped.
pub(super) struct SharedFile {
    map: MmapRaw,
}

impl SharedFile {
    /// Creates a file of so many bytes, and returns it beside its map. All bytes are zero and take no memory yet.
    pub fn create(bytes: usize) -> io::Result<(Self, File)> {
        let file = create(bytes as u64)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok((Self { map }, file))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// All words.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the map is readable and writable, as long as `self`, and aligned to a page. Nobody in this process accesses
        // it but through these atomics; what another process writes is some number.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / WORD)
        }
    }

    /// Returns a field; what the other process wrote before it is seen, too.
    pub fn field(&self, index: usize) -> u64 {
        u64::from_le(self.words()[index].load(Ordering::Acquire))
    }

    /// Sets a field; whoever sees it sees what was written before.
    pub fn set_field(&self, index: usize, value: u64) {
        self.words()[index].store(value.to_le(), Ordering::Release);
    }

    /// Writes whole words from byte `offset` on.
    pub fn write(&self, offset: usize, words: impl Iterator<Item = u64>) {
        for (place, word) in self.words()[offset / WORD..].iter().zip(words) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Returns `count` words from byte `offset` on.
    pub fn read(&self, offset: usize, count: usize) -> impl Iterator<Item = u64> {
        self.words()[offset / WORD..][..count].iter().map(|word| u64::from_le(word.load(Ordering::Relaxed)))
    }
}

/// A file in memory that nobody can shorten: an access behind the end of a map would end this process.
#[cfg(target_os = "linux")]
fn create(bytes: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = File::from(memfd_create("triad-hexagon", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A temporary file.
#[cfg(not(target_os = "linux"))]
fn create(bytes: u64) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    file.set_len(bytes)?;
    Ok(file)
}

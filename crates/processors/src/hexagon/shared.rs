//! The memory that host and device share. All accesses are atomic, since the device may write to it at any time.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::protocol::{HOST_MAGIC, VERSION, field};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// A mapped file or dma-buf.
pub(super) struct SharedMemory {
    map: MmapRaw,
}

impl SharedMemory {
    /// Creates a file of `bytes` bytes and returns its map and the file. All bytes are zero and occupy no memory yet.
    pub fn create(bytes: usize) -> io::Result<(Self, File)> {
        let file = create(bytes as u64)?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Maps the first `bytes` bytes of `file`, which must not be shortened.
    pub fn map(file: &File, bytes: usize) -> io::Result<Self> {
        Ok(Self {
            map: MmapOptions::new().len(bytes).map_raw(file)?,
        })
    }

    /// Writes the fields that the device needs before it starts, including its number of compute threads, its unit, and
    /// variants of its model of HMX.
    pub fn begin(&self, threads: usize, unit: u64, model: u64) {
        self.set_field(field::FILE_BYTES, self.bytes() as u64);
        self.set_field(field::HOST_VERSION, VERSION);
        self.set_field(field::THREADS, threads as u64);
        self.set_field(field::UNIT, unit);
        self.set_field(field::MODEL, model);
        self.set_field(field::HOST_MAGIC, HOST_MAGIC);
    }

    /// Returns the address of the map.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn address(&self) -> u64 {
        self.map.as_ptr().expose_provenance() as u64
    }

    /// Returns the bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Returns all words.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the map is readable and writable, lives as long as `self`, and is page-aligned. This process accesses
        // it only through these atomics, and any bits that another process writes are a valid number.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / WORD)
        }
    }

    /// Returns a field. Everything that the other process wrote before this field is visible afterwards.
    pub fn field(&self, index: usize) -> u64 {
        u64::from_le(self.words()[index].load(Ordering::Acquire))
    }

    /// Sets a field. A process that reads this value also sees everything that was written before.
    pub fn set_field(&self, index: usize, value: u64) {
        self.words()[index].store(value.to_le(), Ordering::Release);
    }

    /// Writes whole words, starting at byte `offset`.
    pub fn write(&self, offset: usize, words: impl Iterator<Item = u64>) {
        for (place, word) in self.words()[offset / WORD..].iter().zip(words) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Writes `bytes` to the beginning, zero-padded to whole words, for which there is room.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn write_bytes(&self, bytes: &[u8]) {
        self.write(
            0,
            bytes.chunks(WORD).map(|chunk| {
                let mut word = [0; WORD];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            }),
        );
    }

    /// Returns `count` words, starting at byte `offset`.
    pub fn read(&self, offset: usize, count: usize) -> impl Iterator<Item = u64> {
        self.words()[offset / WORD..][..count]
            .iter()
            .map(|word| u64::from_le(word.load(Ordering::Relaxed)))
    }
}

/// Creates a memory file that can't be shortened. Otherwise an access after the end of a map would kill this process.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn create(bytes: u64) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = File::from(memfd_create(
        "triad-hexagon",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Creates a temporary file.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn create(bytes: u64) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    file.set_len(bytes)?;
    Ok(file)
}

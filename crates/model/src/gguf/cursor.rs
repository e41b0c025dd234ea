//! Little-endian reads from a byte slice that never go past its end.

use crate::error::{Error, ErrorKind, Result};

/// A position in a file's bytes. Every read receives the name of its item for the error at the file's end.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(super) fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8]> {
        let bytes = self.bytes[self.position..].get(..length).ok_or_else(|| {
            let (position, remaining) = (self.position, self.remaining());
            Error::new(
                ErrorKind::Malformed,
                format!("truncated: {what} at byte {position} needs {length} bytes, the file has {remaining} more"),
            )
        })?;
        self.position += length;
        Ok(bytes)
    }

    pub(super) fn array<const LENGTH: usize>(&mut self, what: &str) -> Result<[u8; LENGTH]> {
        let mut array = [0; LENGTH];
        array.copy_from_slice(self.take(LENGTH, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a `u64` count of items that have at least `smallest` bytes each. Returns an error unless that many could
    /// follow, so that the count is safe for a loop.
    pub(super) fn count(&mut self, smallest: usize, what: &str) -> Result<usize> {
        let count = self.u64(what)?;
        let possible = self.remaining() / smallest;
        usize::try_from(count).ok().filter(|&count| count <= possible).ok_or_else(|| {
            let remaining = self.remaining();
            Error::new(
                ErrorKind::Malformed,
                format!("{what} is {count}, but the {remaining} bytes after it hold at most {possible}"),
            )
        })
    }

    /// Reads a string: its length in bytes as `u64`, then UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str> {
        let length = self.u64(what)?;
        let Some(length) = usize::try_from(length)
            .ok()
            .filter(|&length| length <= self.remaining())
        else {
            let remaining = self.remaining();
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("{what} has {length} bytes, but only {remaining} bytes of the file follow"),
            ));
        };
        std::str::from_utf8(self.take(length, what)?).map_err(|error| {
            Error::new(
                ErrorKind::Malformed,
                format!("{what} is not valid UTF-8: {error}"),
            )
        })
    }
}

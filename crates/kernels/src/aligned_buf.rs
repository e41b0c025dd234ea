//! Buffers that start at a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// Bytes of a cache line, and of the widest registers: a load that straddles two lines takes twice as long.
const LINE: usize = 64;

/// The bytes of one cache line.
#[derive(Clone, Copy, Debug, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// A buffer of numbers that starts at a cache line; it keeps its memory when it is resized.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuf<T> {
    lines: Vec<Line>,
    /// Number of elements.
    length: usize,
    of: PhantomData<T>,
}

impl<T: Pod> AlignedBuf<T> {
    /// Reserves memory for `length` numbers.
    pub(crate) fn reserve(&mut self, length: usize) {
        let lines = (length * size_of::<T>()).div_ceil(LINE);
        self.lines.reserve(lines.saturating_sub(self.lines.len()));
    }

    /// Changes the number of elements. Remaining elements keep their values; those of new elements are unspecified.
    pub(crate) fn resize(&mut self, length: usize) {
        let lines = (length * size_of::<T>()).div_ceil(LINE);
        self.lines
            .resize(lines.max(self.lines.len()), Line::zeroed());
        self.length = length;
    }
}

impl<T: Pod> Deref for AlignedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

impl<T: Pod> DerefMut for AlignedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_at_a_cache_line_and_stay_what_they_were() {
        let mut numbers = AlignedBuf::<u32>::default();
        assert!(numbers.is_empty());
        for length in [1, 16, 17, 1000, 5] {
            let before = numbers.to_vec();
            numbers.resize(length);
            assert_eq!(numbers.len(), length);
            assert!((numbers.as_ptr() as usize).is_multiple_of(LINE));
            let stay = length.min(before.len());
            assert_eq!(numbers[..stay], before[..stay]);
            numbers.fill(length as u32);
        }
    }
}

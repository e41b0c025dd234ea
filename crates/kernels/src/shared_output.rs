//! One output matrix, written by several tasks at once.

use std::marker::PhantomData;
use std::ops::Range;

/// A row-major matrix of which every task writes rectangles of its own.
#[derive(Clone, Copy)]
pub(crate) struct SharedOutput<'a> {
    pointer: *mut f32,
    rows: usize,
    columns: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from an exclusive borrow that lives as long as this value, and `row` requires
// its callers to keep concurrent rectangles apart.
#[allow(unsafe_code)]
unsafe impl Send for SharedOutput<'_> {}
// SAFETY: as for Send.
#[allow(unsafe_code)]
unsafe impl Sync for SharedOutput<'_> {}

impl<'a> SharedOutput<'a> {
    /// A matrix of `columns` columns over all of `values`.
    pub(crate) fn new(values: &'a mut [f32], columns: usize) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "{} values in rows of {columns}", values.len());
        Self { pointer: values.as_mut_ptr(), rows: values.len() / columns, columns, lifetime: PhantomData }
    }

    /// Columns of one row.
    ///
    /// # Safety
    /// While the slice lives, no other slice that shares an element with it may exist.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        // SAFETY: in bounds by the assertion; not aliased by the caller's promise.
        unsafe {
            let start = self.pointer.add(row * self.columns + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }

    /// Prefetches some cache lines of one row, from `column` on, for writing. Lines beyond the matrix are harmless.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn prefetch<const LINES: usize>(&self, row: usize, column: usize) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        /// Numbers of a cache line.
        const LINE: usize = 16;
        for line in 0..LINES {
            let place = self.pointer.wrapping_add(row * self.columns + column + line * LINE);
            // SAFETY: fetching ahead reads nothing, wherever it points.
            #[allow(unsafe_code)]
            unsafe {
                _mm_prefetch::<_MM_HINT_ET0>(place.cast());
            }
        }
    }

    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}

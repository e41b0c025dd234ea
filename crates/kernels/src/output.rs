//! Views of output matrices: [`OutputMut`], which can be split into views that different threads write, and
//! [`SharedOutput`], of which each task of an operator writes its own rectangles.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable view of a matrix `[rows, columns]` in f32. Its rows need not be contiguous: columns of other views may lie
/// between them.
///
/// Views that come from splitting one share no element, so different threads can write them:
///
/// ```
/// use triad_kernels::OutputMut;
///
/// let mut values = [0.0; 2 * 5]; // [2, 5]
/// let (mut left, mut right) = OutputMut::new(&mut values, 5).split_at_column(3);
/// std::thread::scope(|scope| {
///     scope.spawn(|| left.fill(1.0));
///     scope.spawn(|| right.fill(2.0));
/// });
/// assert_eq!(values, [1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
/// ```
#[derive(Debug)]
pub struct OutputMut<'a> {
    /// The only copy for these elements, so that the view may return slices of them.
    shared: SharedOutput<'a>,
}

impl<'a> OutputMut<'a> {
    /// Returns a view of all of `values`, as rows of `columns` numbers.
    ///
    /// # Panics
    /// If `columns` is zero, or `values` is no whole number of rows.
    pub fn new(values: &'a mut [f32], columns: usize) -> Self {
        Self {
            shared: SharedOutput::new(values, columns),
        }
    }

    /// Returns a view of `[rows, columns]` values at `pointer`, with rows `stride` values apart.
    ///
    /// # Safety
    /// During `'a`, these values must be readable and writable, and nothing but the view may access them.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn from_raw(
        pointer: *mut f32,
        rows: usize,
        columns: usize,
        stride: usize,
    ) -> Self {
        Self {
            shared: SharedOutput {
                pointer,
                rows,
                columns,
                stride,
                lifetime: PhantomData,
            },
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.shared.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.shared.columns
    }

    /// Returns the view with a shorter lifetime, after which this one can be used again.
    pub fn reborrow(&mut self) -> OutputMut<'_> {
        OutputMut {
            shared: self.shared,
        }
    }

    /// Splits the view into the columns before `at` and the others, for all rows.
    ///
    /// # Panics
    /// If there are fewer columns.
    pub fn split_at_column(self, at: usize) -> (Self, Self) {
        let shared = self.shared;
        assert!(at <= shared.columns, "column {at} of {}", shared.columns);
        let left = SharedOutput {
            columns: at,
            ..shared
        };
        // Without rows, the pointer may point anywhere, and is not used.
        let right = SharedOutput {
            pointer: shared.pointer.wrapping_add(at),
            columns: shared.columns - at,
            ..shared
        };
        (Self { shared: left }, Self { shared: right })
    }

    /// Splits the view into the rows before `at` and the others.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn split_at_row(self, at: usize) -> (Self, Self) {
        let shared = self.shared;
        assert!(at <= shared.rows, "row {at} of {}", shared.rows);
        let top = SharedOutput { rows: at, ..shared };
        // After the last row there may be no memory; the pointer is not used then.
        let pointer = shared.pointer.wrapping_add(at * shared.stride);
        let bottom = SharedOutput {
            pointer,
            rows: shared.rows - at,
            ..shared
        };
        (Self { shared: top }, Self { shared: bottom })
    }

    /// Returns one row, `[columns]`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        // SAFETY: the view is borrowed exclusively, so no other slice of it exists.
        #[allow(unsafe_code)]
        unsafe {
            self.shared.row(row, 0..self.shared.columns)
        }
    }

    /// Returns all values, `[rows, columns]`, if the rows are contiguous.
    pub fn as_contiguous(&mut self) -> Option<&mut [f32]> {
        let SharedOutput {
            pointer,
            rows,
            columns,
            stride,
            ..
        } = self.shared;
        if rows == 0 || columns == 0 {
            return Some(&mut []);
        }
        // SAFETY: rows are contiguous, all of them in this view, which is borrowed exclusively.
        #[allow(unsafe_code)]
        (rows == 1 || stride == columns)
            .then(|| unsafe { std::slice::from_raw_parts_mut(pointer, rows * columns) })
    }

    /// Sets all values to `value`.
    pub fn fill(&mut self, value: f32) {
        (0..self.rows()).for_each(|row| self.row_mut(row).fill(value));
    }

    /// Copies all rows from `values`, whose rows start at multiples of `stride`. Further values of these rows are
    /// ignored.
    ///
    /// # Panics
    /// If `values` has fewer rows, or shorter ones.
    pub fn copy_from_rows(&mut self, values: &[f32], stride: usize) {
        let columns = self.columns();
        assert!(columns <= stride, "{columns} columns of rows of {stride}");
        (0..self.rows()).for_each(|row| {
            self.row_mut(row)
                .copy_from_slice(&values[row * stride..][..columns]);
        });
    }

    /// Returns the view in the form that tasks write to.
    pub(crate) fn into_shared(self) -> SharedOutput<'a> {
        self.shared
    }
}

/// A matrix of which each task writes its own rectangles. Rows are `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedOutput<'a, T = f32> {
    pointer: *mut T,
    rows: usize,
    columns: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow that lives as long as this value, and callers of `row` must keep
// concurrent rectangles disjoint.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for SharedOutput<'_, T> {}
// SAFETY: as for Send.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for SharedOutput<'_, T> {}

impl<'a, T> SharedOutput<'a, T> {
    /// Returns a view of all of `values`, as rows of `columns`.
    ///
    /// # Panics
    /// If `columns` is zero, or `values` is no whole number of rows.
    pub(crate) fn new(values: &'a mut [T], columns: usize) -> Self {
        assert!(
            columns > 0 && values.len().is_multiple_of(columns),
            "{} values in rows of {columns}",
            values.len()
        );
        let rows = values.len() / columns;
        Self {
            pointer: values.as_mut_ptr(),
            rows,
            columns,
            stride: columns,
            lifetime: PhantomData,
        }
    }

    /// Returns columns of one row.
    ///
    /// # Safety
    /// While the slice lives, no other slice that shares an element with it may exist.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        // SAFETY: in bounds by the assertion; the caller guarantees that it is not aliased.
        unsafe {
            let start = self.pointer.add(row * self.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }
}

impl SharedOutput<'_> {
    /// Prefetches some cache lines of one row, from `column` on, for writing. Lines past the end of the matrix are
    /// harmless.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn prefetch<const LINES: usize>(&self, row: usize, column: usize) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        /// Numbers per cache line.
        const LINE: usize = 16;
        for line in 0..LINES {
            let place = self
                .pointer
                .wrapping_add(row * self.stride + column + line * LINE);
            // SAFETY: a prefetch never faults, wherever it points.
            #[allow(unsafe_code)]
            unsafe {
                _mm_prefetch::<_MM_HINT_ET0>(place.cast());
            }
        }
    }

    /// Asserts that the shape is `[rows, columns]`.
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        assert_eq!(
            [self.rows, self.columns],
            [rows, columns],
            "output is [{rows}, {columns}]"
        );
    }

    /// Returns a pointer to a number; it is only valid if the matrix has that number.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pointer(&self, row: usize, column: usize) -> *mut f32 {
        self.pointer.wrapping_add(row * self.stride + column)
    }

    /// Returns the distance between rows in numbers.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_rectangles_that_cuts_name(
            rows in 0usize..12, columns in 1usize..12,
            cuts in prop::collection::vec((any::<usize>(), any::<bool>(), any::<usize>()), 0..12),
        ) {
            let mut values = vec![0.0; rows * columns];
            let mut pieces = vec![(OutputMut::new(&mut values, columns), 0..rows, 0..columns)];
            for (piece, by_row, at) in cuts {
                let (view, rows, columns) = pieces.swap_remove(piece % pieces.len());
                let at = at % (if by_row { rows.len() } else { columns.len() } + 1);
                if by_row {
                    let (top, bottom) = view.split_at_row(at);
                    pieces.push((top, rows.start..rows.start + at, columns.clone()));
                    pieces.push((bottom, rows.start + at..rows.end, columns));
                } else {
                    let (left, right) = view.split_at_column(at);
                    pieces.push((left, rows.clone(), columns.start..columns.start + at));
                    pieces.push((right, rows, columns.start + at..columns.end));
                }
            }
            let mut expected = vec![0.0; rows * columns];
            for (index, (piece, rows, of_piece)) in pieces.iter_mut().enumerate() {
                prop_assert_eq!((piece.rows(), piece.columns()), (rows.len(), of_piece.len()));
                let value = |row: usize, column: usize| (index * 1000 + row * 12 + column) as f32;
                let stride = of_piece.len() + index % 3;
                let from: Vec<_> = rows.clone().flat_map(|row| (0..stride).map(move |column| value(row, column))).collect();
                let mut piece = piece.reborrow();
                piece.fill(-1.0);
                match piece.as_contiguous() {
                    Some(all) if stride == of_piece.len() => all.copy_from_slice(&from),
                    _ => piece.copy_from_rows(&from, stride),
                }
                for row in rows.clone() {
                    for column in of_piece.clone() {
                        expected[row * columns + column] = value(row, column - of_piece.start);
                    }
                }
            }
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn rows_that_follow_each_other_are_contiguous(rows in 1usize..5, columns in 2usize..5, at in 1usize..2) {
            let mut values = vec![0.0; rows * columns];
            let mut whole = OutputMut::new(&mut values, columns);
            prop_assert_eq!(whole.as_contiguous().map(|values| values.len()), Some(rows * columns));
            let (mut left, _) = whole.split_at_column(at);
            prop_assert_eq!(left.as_contiguous().is_some(), rows == 1);
        }
    }

    #[test]
    #[should_panic(expected = "column 4 of 3")]
    fn a_column_that_is_not_there_is_no_place_to_cut() {
        let _ = OutputMut::new(&mut [0.0; 6], 3).split_at_column(4);
    }
}

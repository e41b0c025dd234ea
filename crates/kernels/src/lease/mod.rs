//! A buffer that several threads use concurrently, by leases that are checked at run time.
//!
//! A [`LeasedMatrix`] is a row-major buffer in f32. Readers and writers each state the rows, or the rectangle, that
//! they use, and the width of a row. Any number of readers may share values; a writer must be the only user of its
//! values. A conflicting request is a bug, and panics with a message that names both rectangles. Nothing waits: the
//! caller must order conflicting accesses.
//!
//! ```
//! use triad_kernels::lease::LeasedMatrix;
//!
//! let matrix = LeasedMatrix::new(2 * 6);
//! let (mut left, mut right) = (matrix.write_part(6, 0..2, 0..4), matrix.write_part(6, 0..2, 4..6));
//! std::thread::scope(|scope| {
//!     scope.spawn(|| left.output().fill(1.0));
//!     scope.spawn(|| right.output().fill(2.0));
//! });
//! drop((left, right));
//! assert_eq!(matrix.read(6, 1..2)[..], [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
//! ```

mod leases;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::{Deref, DerefMut, Range};

use crate::OutputMut;
use leases::{Access, Entry, Leases, Rectangle, Rows};

/// A row-major buffer of f32 of which threads lease rows and rectangles. Each lease has its own width of rows.
#[derive(Debug)]
pub struct LeasedMatrix {
    /// The `len` values of a leaked box.
    values: *mut f32,
    len: usize,
    leases: Leases,
}

// SAFETY: values are only used through leases, or by the owner of the only reference. A lease for writing shares no
// value with any other, and successive leases synchronize, as `leases` does.
#[allow(unsafe_code)]
unsafe impl Send for LeasedMatrix {}
// SAFETY: as for Send.
#[allow(unsafe_code)]
unsafe impl Sync for LeasedMatrix {}

impl LeasedMatrix {
    /// Maximum number of values in a buffer.
    pub const MAX_VALUES: usize = leases::MAX_VALUES;

    /// Returns a buffer of `len` zeros.
    ///
    /// # Panics
    /// If `len` is 2³¹ or more.
    pub fn new(len: usize) -> Self {
        assert!(
            len <= leases::MAX_VALUES,
            "{len} values, at most {} can be leased",
            leases::MAX_VALUES
        );
        let values = Box::into_raw(vec![0.0; len].into_boxed_slice()).cast();
        Self {
            values,
            len,
            leases: Leases::default(),
        }
    }

    /// Returns all values; the exclusive borrow excludes leases.
    pub fn get_mut(&mut self) -> &mut [f32] {
        // SAFETY: these are the values of the box, and the matrix is borrowed exclusively.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.values, self.len)
        }
    }

    /// Leases rows of `width` values for reading.
    ///
    /// # Panics
    /// If the matrix has no such rows, or some of them are leased for writing.
    pub fn read(&self, width: usize, rows: Range<usize>) -> ReadLease<'_> {
        ReadLease {
            rows: self.lease_rows(Access::Read, width, rows),
            matrix: self,
        }
    }

    /// Leases rows of `width` values for writing.
    ///
    /// # Panics
    /// If the matrix has no such rows, or some of them are leased.
    pub fn write(&self, width: usize, rows: Range<usize>) -> WriteLease<'_> {
        WriteLease {
            rows: self.lease_rows(Access::Write, width, rows),
            matrix: self,
        }
    }

    /// Leases some columns of rows of `width` values for writing.
    ///
    /// # Panics
    /// If the matrix has no such rows, the rows no such columns, or some of these are leased.
    pub fn write_part(
        &self,
        width: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> PartLease<'_> {
        let rectangle = Rectangle {
            width,
            rows,
            columns,
        };
        rectangle.check(self.len);
        if rectangle.columns == (0..width) {
            let rows = self.lease_rows(Access::Write, width, rectangle.rows.clone());
            return PartLease {
                rectangle,
                rows: Some(rows),
                matrix: self,
            };
        }
        let entry = Entry {
            access: Access::Write,
            rectangle,
        };
        if let Err(held) = self.leases.acquire(entry.clone()) {
            refuse(&entry, &held);
        }
        PartLease {
            rectangle: entry.rectangle,
            rows: None,
            matrix: self,
        }
    }

    fn lease_rows(&self, access: Access, width: usize, rows: Range<usize>) -> Rows {
        let rectangle = Rectangle {
            width,
            rows,
            columns: 0..width,
        };
        rectangle.check(self.len);
        let rows = Rows::new(
            access,
            rectangle.rows.start * width..rectangle.rows.end * width,
        );
        if let Err(held) = self.leases.acquire_rows(rows) {
            refuse(&Entry { access, rectangle }, &held);
        }
        rows
    }

    fn pointer(&self, index: usize) -> *mut f32 {
        self.values.wrapping_add(index)
    }
}

#[cold]
fn refuse(requested: &Entry, held: &Entry) -> ! {
    let (access, rectangle) = (requested.access.name(), &requested.rectangle);
    let (held_for, held) = (
        held.access.name(),
        held.rectangle.in_rows_of(rectangle.width),
    );
    panic!("{rectangle} can't be leased for {access}: {held} is leased for {held_for}");
}

impl Drop for LeasedMatrix {
    fn drop(&mut self) {
        // SAFETY: this is the box of `new`, and leases don't outlive the matrix.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.values, self.len)) });
    }
}

/// A lease of rows of a [`LeasedMatrix`] for reading.
#[derive(Debug)]
pub struct ReadLease<'a> {
    matrix: &'a LeasedMatrix,
    rows: Rows,
}

/// A lease of rows of a [`LeasedMatrix`] for writing.
#[derive(Debug)]
pub struct WriteLease<'a> {
    matrix: &'a LeasedMatrix,
    rows: Rows,
}

/// A lease of a rectangle of a [`LeasedMatrix`] for writing.
#[derive(Debug)]
pub struct PartLease<'a> {
    matrix: &'a LeasedMatrix,
    rectangle: Rectangle,
    /// The lease as rows, if the rectangle is whole rows.
    rows: Option<Rows>,
}

impl PartLease<'_> {
    /// Returns the rectangle.
    pub fn output(&mut self) -> OutputMut<'_> {
        let Rectangle {
            width,
            rows,
            columns,
        } = &self.rectangle;
        // SAFETY: the rectangle is in the matrix, and no other lease has its values.
        #[allow(unsafe_code)]
        unsafe {
            let first = self.matrix.pointer(rows.start * width + columns.start);
            OutputMut::from_raw(first, rows.len(), columns.len(), *width)
        }
    }
}

impl Deref for ReadLease<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let values = self.rows.values();
        // SAFETY: the values are in the matrix, and nothing writes them.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.matrix.pointer(values.start), values.len())
        }
    }
}

impl Deref for WriteLease<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let values = self.rows.values();
        // SAFETY: the values are in the matrix, and no other lease has them.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.matrix.pointer(values.start), values.len())
        }
    }
}

impl DerefMut for WriteLease<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        let values = self.rows.values();
        // SAFETY: as above; the lease is borrowed exclusively.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.matrix.pointer(values.start), values.len())
        }
    }
}

impl Drop for ReadLease<'_> {
    fn drop(&mut self) {
        self.matrix.leases.release_rows(self.rows);
    }
}

impl Drop for WriteLease<'_> {
    fn drop(&mut self) {
        self.matrix.leases.release_rows(self.rows);
    }
}

impl Drop for PartLease<'_> {
    fn drop(&mut self) {
        match self.rows {
            Some(rows) => self.matrix.leases.release_rows(rows),
            None => self.matrix.leases.release(&Entry {
                access: Access::Write,
                rectangle: self.rectangle.clone(),
            }),
        }
    }
}

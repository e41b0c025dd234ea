//! One buffer that several threads use at once, by leases that are checked while they run.
//!
//! A [`LeasedMatrix`] is a row-major buffer in f32 whose readers and writers each name the rows, or the rectangle, that they
//! use, and the width of a row. Any number of readers share values, and writers write values of their own. Whoever
//! requests for values that another one writes, or to write values that another one uses, has a bug, and panics with a
//! message that names both rectangles. Nothing waits: that threads take turns where they must is up to the caller.
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

/// A row-major buffer of f32 that threads lease rows and rectangles of. Each lease has a width of rows of its own.
#[derive(Debug)]
pub struct LeasedMatrix {
    /// From a box, `len` values.
    values: *mut f32,
    len: usize,
    leases: Leases,
}

// SAFETY: values are used through leases alone, or by the owner of the only reference. Leases for writing share no value with
// any other, and those that follow each other synchronize, as `leases` does.
#[allow(unsafe_code)]
unsafe impl Send for LeasedMatrix {}
// SAFETY: as for Send.
#[allow(unsafe_code)]
unsafe impl Sync for LeasedMatrix {}

impl LeasedMatrix {
    /// The most values of a buffer.
    pub const MOST_VALUES: usize = leases::MOST_VALUES;

    /// Returns a buffer of `len` zeros.
    ///
    /// # Panics
    /// If these are 2³¹ or more.
    pub fn new(len: usize) -> Self {
        assert!(
            len <= leases::MOST_VALUES,
            "{len} values, at most {} can be leased",
            leases::MOST_VALUES
        );
        let values = Box::into_raw(vec![0.0; len].into_boxed_slice()).cast();
        Self {
            values,
            len,
            leases: Leases::default(),
        }
    }

    /// Returns all values, of which there are no leases then.
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
    /// If the matrix has no such rows, or a part of them is leased for writing.
    pub fn read(&self, width: usize, rows: Range<usize>) -> ReadLease<'_> {
        ReadLease {
            rows: self.lease_rows(Access::Read, width, rows),
            matrix: self,
        }
    }

    /// Leases rows of `width` values for writing.
    ///
    /// # Panics
    /// If the matrix has no such rows, or a part of them is leased.
    pub fn write(&self, width: usize, rows: Range<usize>) -> WriteLease<'_> {
        WriteLease {
            rows: self.lease_rows(Access::Write, width, rows),
            matrix: self,
        }
    }

    /// Leases some columns of rows of `width` values for writing.
    ///
    /// # Panics
    /// If the matrix has no such rows, the rows no such columns, or a part of these is leased.
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
        // SAFETY: this is the box that `new` made, and leases don't outlive the matrix.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.values, self.len)) });
    }
}

/// Rows of a [`LeasedMatrix`] that can be read, until it is dropped.
#[derive(Debug)]
pub struct ReadLease<'a> {
    matrix: &'a LeasedMatrix,
    rows: Rows,
}

/// Rows of a [`LeasedMatrix`] that can be written, until it is dropped.
#[derive(Debug)]
pub struct WriteLease<'a> {
    matrix: &'a LeasedMatrix,
    rows: Rows,
}

/// A rectangle of a [`LeasedMatrix`] that can be written, until it is dropped.
#[derive(Debug)]
pub struct PartLease<'a> {
    matrix: &'a LeasedMatrix,
    rectangle: Rectangle,
    /// Where it is whole rows, leased as these.
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
        // SAFETY: the rectangle is in the matrix, and this lease alone has it.
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
        // SAFETY: the values are in the matrix, and nobody writes them.
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
        // SAFETY: the values are in the matrix, and this lease alone has them.
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

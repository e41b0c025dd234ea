//! The set of leased rectangles of a buffer.
//!
//! In the usual case there is one lease, of whole rows. It is a single word, acquired and released by one
//! compare-exchange each. If there are several leases, or a rectangle, all of them are in a list under a lock, and the
//! word is [`LISTED`] until the list is empty again. If the word has changed when a lease is released, that lease is in
//! the list.

use std::fmt;
use std::ops::Range;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Bits of the index of a value.
const PLACE_BITS: u32 = 31;
/// Maximum number of values in a buffer.
pub(super) const MAX_VALUES: usize = (1 << PLACE_BITS) - 1;

/// The word if there is no lease.
const FREE: u64 = 0;
/// The word if leases are in the list.
const LISTED: u64 = 3 << (2 * PLACE_BITS);
/// Initial capacity of the list.
const CAPACITY: usize = 16;

/// The access that a lease permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read = 1,
    Write = 2,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Write => "writing",
        }
    }
}

/// Some columns of some rows of `width` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub width: usize,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl Rectangle {
    /// Asserts that a buffer of `len` values contains the rectangle.
    pub fn check(&self, len: usize) {
        let Self {
            width,
            rows,
            columns,
        } = self;
        assert!(
            rows.start <= rows.end && columns.start <= columns.end && columns.end <= *width,
            "{self} is no rectangle"
        );
        assert!(
            rows.end.checked_mul(*width).is_some_and(|end| end <= len),
            "{self} is not in a matrix of {len} values"
        );
    }

    /// Returns the same rectangle in rows of `width` values if it consists of whole such rows.
    pub fn in_rows_of(&self, width: usize) -> Self {
        match &self.columns {
            values
                if self.rows == (0..1)
                    && width > 0
                    && (values.start % width, values.end % width) == (0, 0) =>
            {
                Self {
                    width,
                    rows: values.start / width..values.end / width,
                    columns: 0..width,
                }
            }
            _ => self.clone(),
        }
    }

    /// Returns whether the rectangles have a value in common.
    fn overlaps(&self, other: &Self) -> bool {
        let disjoint = |a: &Range<usize>, b: &Range<usize>| a.end <= b.start || b.end <= a.start;
        if self.is_empty() || other.is_empty() {
            return false;
        }
        if self.width == other.width {
            return !disjoint(&self.rows, &other.rows) && !disjoint(&self.columns, &other.columns);
        }
        let (few, many) = if self.rows.len() < other.rows.len() {
            (self, other)
        } else {
            (other, self)
        };
        few.rows.clone().any(|row| {
            let values = row * few.width + few.columns.start..row * few.width + few.columns.end;
            // The first row that ends after the start of these values.
            let row = (values.start + 1)
                .saturating_sub(many.columns.end)
                .div_ceil(many.width)
                .max(many.rows.start);
            row < many.rows.end && row * many.width + many.columns.start < values.end
        })
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.columns.is_empty()
    }
}

impl fmt::Display for Rectangle {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            width,
            rows,
            columns,
        } = self;
        write!(formatter, "[{rows:?}, {columns:?}] of rows of {width}")
    }
}

/// A lease in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub access: Access,
    pub rectangle: Rectangle,
}

impl Entry {
    fn excludes(&self, other: &Self) -> bool {
        (self.access, other.access) != (Access::Read, Access::Read)
            && self.rectangle.overlaps(&other.rectangle)
    }
}

/// A lease of whole rows, of any width: an access and a range of values in one word, which is neither [`FREE`] nor
/// [`LISTED`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows(u64);

impl Rows {
    /// Creates a lease of `values` in a buffer of at most [`MAX_VALUES`].
    pub fn new(access: Access, values: Range<usize>) -> Self {
        debug_assert!(values.start <= values.end && values.end <= MAX_VALUES);
        Self(
            (access as u64) << (2 * PLACE_BITS)
                | (values.start as u64) << PLACE_BITS
                | values.end as u64,
        )
    }

    pub fn values(self) -> Range<usize> {
        let place = |shift: u32| (self.0 >> shift) as usize & MAX_VALUES;
        place(PLACE_BITS)..place(0)
    }

    fn entry(self) -> Entry {
        let access = if self.0 >> (2 * PLACE_BITS) == Access::Read as u64 {
            Access::Read
        } else {
            Access::Write
        };
        let values = self.values();
        Entry {
            access,
            rectangle: Rectangle {
                width: values.end,
                rows: 0..1,
                columns: values,
            },
        }
    }
}

/// All leases of one buffer.
#[derive(Debug)]
pub(super) struct Leases {
    /// [`FREE`], [`LISTED`], or the only lease.
    word: AtomicU64,
    /// Empty unless the word is [`LISTED`]; the word changes to and from that value under this lock.
    list: Mutex<Vec<Entry>>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(FREE),
            list: Mutex::new(Vec::with_capacity(CAPACITY)),
        }
    }
}

impl Leases {
    /// Adds a lease of whole rows.
    /// # Errors
    /// The lease that excludes it, if there is one.
    #[inline]
    pub fn acquire_rows(&self, rows: Rows) -> Result<(), Entry> {
        match self
            .word
            .compare_exchange(FREE, rows.0, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(_) => self.acquire(rows.entry()),
        }
    }

    /// Removes a lease of whole rows.
    #[inline]
    pub fn release_rows(&self, rows: Rows) {
        if self
            .word
            .compare_exchange(rows.0, FREE, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            self.release(&rows.entry());
        }
    }

    /// Adds a lease to the list.
    /// # Errors
    /// The lease that excludes it, if there is one.
    pub fn acquire(&self, entry: Entry) -> Result<(), Entry> {
        let mut list = lock(&self.list);
        let mut word = self.word.load(Ordering::Relaxed);
        while word != LISTED {
            // Acquire: the previous change of the word may have released the values that are leased now.
            match self
                .word
                .compare_exchange(word, LISTED, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(FREE) => break,
                Ok(only) => {
                    list.push(Rows(only).entry());
                    break;
                }
                Err(now) => word = now,
            }
        }
        if let Some(held) = list.iter().find(|held| held.excludes(&entry)) {
            return Err(held.clone());
        }
        list.push(entry);
        Ok(())
    }

    /// Removes a lease from the list.
    pub fn release(&self, entry: &Entry) {
        let mut list = lock(&self.list);
        // Equal entries are interchangeable.
        let place = list
            .iter()
            .position(|held| held == entry)
            .expect("a lease is in the list until it is dropped");
        list.swap_remove(place);
        if list.is_empty() {
            // Release: the next thread that acquires the word sees all writes under the leases of the list.
            self.word.store(FREE, Ordering::Release);
        }
    }
}

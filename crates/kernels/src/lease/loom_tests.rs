//! Checks the protocol in every order of its steps by loom. If two accesses are not ordered, loom reports a race on the
//! cell that represents the values.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::leases::{Access, Entry, Leases, Rectangle, Rows};

/// Values with one cell each; the lease of a value permits a thread to use its cell.
struct Leased {
    leases: Leases,
    cells: [UnsafeCell<usize>; 2],
}

// SAFETY: for the tests: loom checks each access.
#[allow(unsafe_code)]
unsafe impl Sync for Leased {}

impl Leased {
    /// Uses the cells in `values` if they can be leased as rows. Returns whether they can.
    fn rows(&self, access: Access, values: std::ops::Range<usize>) -> bool {
        let rows = Rows::new(access, values.clone());
        let is_leased = self.leases.acquire_rows(rows).is_ok();
        if is_leased {
            self.touch(access, values);
            self.leases.release_rows(rows);
        }
        is_leased
    }

    /// Writes one cell if it can be leased as a rectangle. Returns whether it can.
    fn part(&self, cell: usize) -> bool {
        let entry = Entry {
            access: Access::Write,
            rectangle: Rectangle {
                width: 2,
                rows: 0..1,
                columns: cell..cell + 1,
            },
        };
        let is_leased = self.leases.acquire(entry.clone()).is_ok();
        if is_leased {
            self.touch(Access::Write, cell..cell + 1);
            self.leases.release(&entry);
        }
        is_leased
    }

    #[allow(unsafe_code)]
    fn touch(&self, access: Access, values: std::ops::Range<usize>) {
        for cell in &self.cells[values] {
            match access {
                // SAFETY: for the tests: loom checks each access.
                Access::Read => cell.with(|value| assert!(unsafe { *value } < 10)),
                // SAFETY: as above.
                Access::Write => cell.with_mut(|value| unsafe { *value += 1 }),
            }
        }
    }
}

/// Runs two threads, and after them a writer of all values, which must succeed.
fn check(one: fn(&Leased) -> bool, other: fn(&Leased) -> bool, both_can: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let cells = [UnsafeCell::new(0), UnsafeCell::new(0)];
        let leased = Arc::new(Leased {
            leases: Leases::default(),
            cells,
        });
        let thread = {
            let leased = Arc::clone(&leased);
            thread::spawn(move || other(&leased))
        };
        let first = one(&leased);
        let second = thread.join().unwrap();
        assert!(if both_can {
            first && second
        } else {
            first || second
        });
        assert!(
            leased.rows(Access::Write, 0..2),
            "all leases must be released"
        );
    });
}

#[test]
fn readers_share() {
    check(
        |leased| leased.rows(Access::Read, 0..2),
        |leased| leased.rows(Access::Read, 0..1),
        true,
    );
}

#[test]
fn one_of_two_writers_may_be_refused() {
    check(
        |leased| leased.rows(Access::Write, 0..2),
        |leased| leased.rows(Access::Write, 0..2),
        false,
    );
}

#[test]
fn a_reader_excludes_a_writer_of_a_part() {
    check(
        |leased| leased.rows(Access::Read, 0..2),
        |leased| leased.part(1),
        false,
    );
}

#[test]
fn disjoint_writers_share() {
    check(
        |leased| leased.rows(Access::Write, 0..1),
        |leased| leased.part(1),
        true,
    );
    check(|leased| leased.part(0), |leased| leased.part(1), true);
}

#[test]
fn one_after_the_other_on_both_ways() {
    check(
        |leased| leased.rows(Access::Write, 0..1) && leased.part(0),
        |leased| leased.part(1) && leased.rows(Access::Write, 1..2),
        true,
    );
}

//! Compares leases with the definition of an overlap, and tests them in several threads.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;

/// A lease of a buffer of `LEN` values.
#[derive(Clone, Debug)]
struct Request {
    access: Access,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

const LEN: usize = 48;

impl Request {
    /// Returns the values by definition.
    fn values(&self) -> BTreeSet<usize> {
        let of_row = |row: usize| {
            self.columns
                .clone()
                .map(move |column| row * self.width + column)
        };
        self.rows.clone().flat_map(of_row).collect()
    }

    fn excludes(&self, other: &Self) -> bool {
        let writes = self.access == Access::Write || other.access == Access::Write;
        writes && !self.values().is_disjoint(&other.values())
    }

    fn is_part(&self) -> bool {
        self.access == Access::Write && self.columns != (0..self.width)
    }
}

fn range(limit: usize) -> impl Strategy<Value = Range<usize>> {
    (0..=limit, 0..=limit).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn request() -> impl Strategy<Value = Request> {
    let width = prop_oneof![Just(8usize), 1usize..20];
    (width, any::<bool>(), any::<bool>()).prop_flat_map(|(width, writes, is_part)| {
        let columns = if writes && is_part {
            range(width).boxed()
        } else {
            Just(0..width).boxed()
        };
        let access = if writes { Access::Write } else { Access::Read };
        (range(LEN / width), columns).prop_map(move |(rows, columns)| Request {
            access,
            width,
            rows,
            columns,
        })
    })
}

/// A lease of any kind.
#[allow(dead_code, reason = "held until it is dropped")]
enum Any<'a> {
    Read(ReadLease<'a>),
    Write(WriteLease<'a>),
    Part(PartLease<'a>),
}

fn lease<'a>(matrix: &'a LeasedMatrix, request: &Request) -> Any<'a> {
    let Request {
        access,
        width,
        rows,
        columns,
    } = request.clone();
    match access {
        Access::Read => Any::Read(matrix.read(width, rows)),
        Access::Write if request.is_part() => Any::Part(matrix.write_part(width, rows, columns)),
        Access::Write => Any::Write(matrix.write(width, rows)),
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

proptest! {
    #[test]
    fn a_lease_is_refused_where_another_one_has_a_value_of_it(
        steps in prop::collection::vec((request(), any::<bool>(), any::<usize>()), 1..20),
    ) {
        let mut matrix = LeasedMatrix::new(LEN);
        let mut held: Vec<(Request, Any)> = Vec::new();
        for (request, is_release, which) in steps {
            if is_release && !held.is_empty() {
                held.swap_remove(which % held.len());
            }
            let refused = held.iter().find(|(held, _)| held.excludes(&request));
            match catch_unwind(AssertUnwindSafe(|| lease(&matrix, &request))) {
                Ok(lease) => {
                    prop_assert!(refused.is_none(), "{:?} together with {:?}", request, refused.map(|(held, _)| held));
                    if let Any::Read(lease) = &lease {
                        prop_assert_eq!(lease.len(), request.rows.len() * request.width);
                    }
                    held.push((request, lease));
                }
                Err(panic) => {
                    prop_assert!(refused.is_some(), "{}", message(&*panic));
                    prop_assert!(message(&*panic).contains("is leased for "), "{}", message(&*panic));
                }
            }
        }
        drop(held);
        // All leases were released.
        drop(matrix.write(LEN, 0..1));
        prop_assert_eq!(matrix.get_mut().len(), LEN);
    }

    #[test]
    fn parts_that_threads_write_make_the_matrix(
        rows in 1usize..9, widths in prop::collection::vec(1usize..9, 1..5), row_cut: usize, rounds in 1usize..4,
    ) {
        let width: usize = widths.iter().sum();
        let matrix = LeasedMatrix::new(rows * width + 5);
        let row_cut = row_cut % (rows + 1);
        let value = |round: usize, row: usize, column: usize| (round * 10_000 + row * 100 + column) as f32;
        for round in 0..rounds {
            std::thread::scope(|scope| {
                let mut first = 0;
                for part in &widths {
                    let columns = first..first + part;
                    first += part;
                    for rows in [0..row_cut, row_cut..rows] {
                        let (matrix, columns) = (&matrix, columns.clone());
                        scope.spawn(move || {
                            let mut lease = matrix.write_part(width, rows.clone(), columns.clone());
                            let mut out = lease.output();
                            for (index, row) in rows.enumerate() {
                                let out = out.row_mut(index).iter_mut().zip(columns.clone());
                                out.for_each(|(out, column)| *out = value(round, row, column));
                            }
                        });
                    }
                }
            });
            std::thread::scope(|scope| {
                for row in 0..rows {
                    let matrix = &matrix;
                    scope.spawn(move || {
                        let lease = matrix.read(width, 0..rows);
                        for column in 0..width {
                            assert_eq!(lease[row * width + column], value(round, row, column));
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn threads_that_take_turns_see_what_others_wrote(threads in 2usize..5, turns in 1usize..50) {
        // Each thread adds one to all values in its turn.
        let matrix = LeasedMatrix::new(16);
        let turn = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (matrix, turn) = (&matrix, &turn);
                scope.spawn(move || {
                    for index in (thread..threads * turns).step_by(threads) {
                        // Relaxed: only the leases order the writes.
                        while turn.load(std::sync::atomic::Ordering::Relaxed) != index {
                            std::thread::yield_now();
                        }
                        if index % 3 == 0 {
                            let (mut top, mut bottom) = (matrix.write_part(4, 0..2, 0..4), matrix.write_part(4, 2..4, 0..4));
                            for out in [&mut top, &mut bottom] {
                                let mut out = out.output();
                                (0..2).for_each(|row| out.row_mut(row).iter_mut().for_each(|x| *x += 1.0));
                            }
                        } else {
                            matrix.write(4, 0..4).iter_mut().for_each(|x| *x += 1.0);
                        }
                        turn.store(index + 1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        prop_assert_eq!(&matrix.read(16, 0..1)[..], &[(threads * turns) as f32; 16][..]);
    }
}

#[test]
fn a_message_names_both_rectangles() {
    let matrix = LeasedMatrix::new(64);
    let refused = |what: &dyn Fn()| message(&*catch_unwind(AssertUnwindSafe(what)).unwrap_err());
    let held = matrix.write(8, 1..3);
    assert_eq!(
        refused(&|| drop(matrix.read(8, 0..2))),
        "[0..2, 0..8] of rows of 8 can't be leased for reading: [1..3, 0..8] of rows of 8 is leased for writing"
    );
    drop(held);
    let held = [matrix.read(8, 0..1), matrix.read(16, 3..4)];
    assert_eq!(
        refused(&|| drop(matrix.write_part(8, 2..8, 1..3))),
        "[2..8, 1..3] of rows of 8 can't be leased for writing: [6..8, 0..8] of rows of 8 is leased for reading"
    );
    drop(held);
    assert_eq!(
        refused(&|| drop(matrix.read(16, 0..5))),
        "[0..5, 0..16] of rows of 16 is not in a matrix of 64 values"
    );
    assert_eq!(
        refused(&|| drop(matrix.write_part(4, 0..5, 3..5))),
        "[0..5, 3..5] of rows of 4 is no rectangle"
    );
}

#[test]
fn a_lease_that_a_panic_drops_is_released() {
    let matrix = LeasedMatrix::new(64);
    for other in [None, Some(7..8)] {
        // With and without another lease.
        let neighbour = other.map(|rows| matrix.read(8, rows));
        for kind in 0..3 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let _lease = match kind {
                    0 => Any::Read(matrix.read(8, 0..2)),
                    1 => Any::Write(matrix.write(8, 0..2)),
                    _ => Any::Part(matrix.write_part(8, 0..2, 2..4)),
                };
                panic!("on the way");
            }));
            assert!(outcome.is_err());
            drop(matrix.write(8, 0..2));
        }
        drop(neighbour);
        drop(matrix.write(8, 0..8));
    }
}

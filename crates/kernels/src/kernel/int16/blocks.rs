//! Products with quantized blocks: a block is unpacked to integers of 16 bits once for several rows, in plain Rust that is
//! compiled for the kernel's instructions, and each row adds its products by these.

use triad_blocks::simple::{Block, ELEMENTS};
use triad_blocks::super_block::{PARTS, SUPER_BLOCK, SuperBlock};
use triad_blocks::with_layout;

use super::PART;
use super::columns::BlockColumns;
use super::tiles::{ROWS, each_tile};
use crate::dot::sum;

/// Parts of a block of 32.
const SIMPLE_PARTS: usize = ELEMENTS / PART;

/// Sixteen sums of a row and column, in registers of a set of instructions.
pub(super) trait Sums: Copy {
    /// Of nothing.
    fn zero() -> Self;

    /// Adds, times `scale`, the exact sums of the products of neighbouring pairs: of those at 2 i and 2 i + 1 of each 32 to
    /// sum i. The numbers are a multiple of 32, and none of the sums overflows.
    fn add_products(self, integers: &[i16], x: &[i16], scale: f32) -> Self;

    /// Subtracts, times `scale`, the exact product of each minimum and sum.
    fn subtract_products(self, minimums: &[i32; PARTS], sums: &[i32; PARTS], scale: f32) -> Self;

    /// `a · b + c`, rounded once where the others are.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;

    /// The sum of all, halves first.
    fn total(self) -> f32;
}

/// Computes all outputs. To be inlined into a function that is compiled for the instructions of `S`.
#[inline(always)]
pub(super) fn multiply<S: Sums>(task: &BlockColumns) {
    each_tile(
        task.x.rows(),
        task.columns.len(),
        task.column_bytes(),
        #[inline(always)]
        |rows, row, column| match rows {
            1 => tile::<S, 1>(task, row, column),
            2 => tile::<S, 2>(task, row, column),
            3 => tile::<S, 3>(task, row, column),
            _ => tile::<S, ROWS>(task, row, column),
        },
    );
}

#[inline(always)]
fn tile<S: Sums, const ROWS: usize>(task: &BlockColumns, row: usize, column: usize) {
    let totals = with_layout!(
        task.format,
        Block B => simple::<B, S, ROWS>(task, row, column),
        SuperBlock B => super_blocks::<B, S, ROWS>(task, row, column)
    );
    for (index, total) in totals.into_iter().enumerate() {
        task.write(row + index, column, total * task.x.scales()[row + index]);
    }
}

#[inline(always)]
fn simple<B: Block, S: Sums, const ROWS: usize>(task: &BlockColumns, row: usize, column: usize) -> [f32; ROWS] {
    let x: [&[i16]; ROWS] = std::array::from_fn(|index| task.x.row(row + index));
    let sums_of_x: [&[i32]; ROWS] = std::array::from_fn(|index| task.x.sums(row + index));
    let (mut totals, mut offsets) = ([[S::zero(); 2]; ROWS], [[0.0; 2]; ROWS]);
    let mut integers = [0; ELEMENTS];
    for (index, block) in task.column(column).chunks_exact(B::BYTES).enumerate() {
        // One after the other would wait for each addition.
        let side = index % 2;
        let (scale, minimum) = B::unpack(block, &mut integers);
        for row in 0..ROWS {
            let x = &x[row][index * ELEMENTS..][..ELEMENTS];
            totals[row][side] = totals[row][side].add_products(&integers, x, scale);
            if B::HAS_MINIMUM {
                let sum: i32 = sums_of_x[row][index * SIMPLE_PARTS..][..SIMPLE_PARTS].iter().sum();
                offsets[row][side] = S::multiply_add(sum as f32, minimum, offsets[row][side]);
            }
        }
    }
    std::array::from_fn(|row| {
        let ([even, odd], [even_offset, odd_offset]) = (totals[row], offsets[row]);
        let total = even.total() + odd.total();
        if B::HAS_MINIMUM { total + (even_offset + odd_offset) } else { total }
    })
}

#[inline(always)]
fn super_blocks<B: SuperBlock, S: Sums, const ROWS: usize>(
    task: &BlockColumns,
    row: usize,
    column: usize,
) -> [f32; ROWS] {
    let x: [&[[i16; SUPER_BLOCK]]; ROWS] = std::array::from_fn(|index| task.x.row(row + index).as_chunks().0);
    let sums_of_x: [&[[i32; PARTS]]; ROWS] = std::array::from_fn(|index| task.x.sums(row + index).as_chunks().0);
    let mut totals = [S::zero(); ROWS];
    let (mut integers, mut minimums) = ([0; SUPER_BLOCK], [0; PARTS]);
    for (index, block) in task.column(column).chunks_exact(B::BYTES).enumerate() {
        // Sixteen products of numbers of these sizes are added to each sum: 16 · 4096 · 32512 < 2³¹.
        let (scale, minimum_scale) = B::unpack(block, &mut integers, &mut minimums);
        for row in 0..ROWS {
            totals[row] = totals[row].add_products(&integers, &x[row][index], scale);
            if B::HAS_MINIMUMS {
                totals[row] = totals[row].subtract_products(&minimums, &sums_of_x[row][index], minimum_scale);
            }
        }
    }
    totals.map(S::total)
}

/// In plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; PARTS]);

impl Sums for Plain {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; PARTS])
    }

    #[inline(always)]
    fn add_products(mut self, integers: &[i16], x: &[i16], scale: f32) -> Self {
        let mut exact = [0i32; PARTS];
        for (integers, x) in integers.as_chunks::<ELEMENTS>().0.iter().zip(x.as_chunks::<ELEMENTS>().0) {
            for lane in 0..PARTS {
                exact[lane] += i32::from(integers[2 * lane]) * i32::from(x[2 * lane])
                    + i32::from(integers[2 * lane + 1]) * i32::from(x[2 * lane + 1]);
            }
        }
        for (sum, exact) in self.0.iter_mut().zip(exact) {
            *sum = Self::multiply_add(exact as f32, scale, *sum);
        }
        self
    }

    #[inline(always)]
    fn subtract_products(mut self, minimums: &[i32; PARTS], sums: &[i32; PARTS], scale: f32) -> Self {
        for ((sum, minimum), sum_of_x) in self.0.iter_mut().zip(minimums).zip(sums) {
            *sum = Self::multiply_add((minimum * sum_of_x) as f32, -scale, *sum);
        }
        self
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn total(self) -> f32 {
        sum(self.0)
    }
}

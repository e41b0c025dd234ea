//! Products with quantized blocks. Plain Rust, compiled for the kernel's instructions, unpacks a block to 16-bit
//! integers once for four rows (or for one, if fewer are left). Each row then adds its products with these integers.

use std::marker::PhantomData;

use triad_blocks::nvfp4;
use triad_blocks::shared::SharedLayout;
use triad_blocks::simple::{Block, ELEMENTS};
use triad_blocks::super_block::{PARTS, SUPER_BLOCK, SuperBlock};

use super::columns::BlockColumns;
use super::tiles::{ROWS, each_tile};
use super::{AHEAD, FETCHED, PART, prefetch_ahead};
use crate::dot::sum;

/// Parts per block of 32.
const SIMPLE_PARTS: usize = ELEMENTS / PART;
/// Numbers whose products are added to sixteen sums.
const RUN: usize = 32;

/// Sixteen sums of a row and column, in registers of a set of instructions.
pub(super) trait Sums: Copy {
    /// A factor of sums.
    type Scale: Copy;
    /// A factor of the first eight sums, and another of the others.
    type Scales: Copy;

    /// Returns sums of zero.
    fn zero() -> Self;

    /// Adds `scale` times the exact sums of the products of neighbouring pairs: numbers 2 i and 2 i + 1 of each 32 go
    /// to sum i. The count of numbers must be a multiple of 32, and no sum may overflow.
    fn add_products(self, integers: &[i16], x: &[i16], scale: Self::Scale) -> Self;

    /// Does the same for 32 numbers whose halves have a scale each.
    fn add_halves(self, integers: &[i16; RUN], x: &[i16; RUN], scales: Self::Scales) -> Self;

    /// Subtracts `scale` times the exact product of each minimum and sum.
    fn subtract_products(
        self,
        minimums: &[i32; PARTS],
        sums: &[i32; PARTS],
        scale: Self::Scale,
    ) -> Self;

    /// Adds the products of all rows with a super-block, times its scale, to the rows' sums. Writes the minimums as
    /// [`SuperBlock::scales`] does, and returns their scale.
    fn add_super_block<B: SuperBlock, const ROWS: usize>(
        sums: &mut [Self; ROWS],
        block: &[u8],
        x: [&[i16; SUPER_BLOCK]; ROWS],
        minimums: &mut [i32; PARTS],
    ) -> Self::Scale;

    /// Returns the value of an f16 with these bits.
    fn scale(bits: u16) -> Self::Scale;

    /// Returns a number as a scale.
    fn scale_of(number: f32) -> Self::Scale;

    /// Returns two numbers as the scales of halves.
    fn scales_of(numbers: [f32; 2]) -> Self::Scales;

    /// Returns the values of two f16, the second as a plain number.
    fn scale_and_number(bits: [u16; 2]) -> (Self::Scale, f32);

    /// Writes the numbers of a block, and returns the result of [`Block::unpack`].
    #[inline(always)]
    fn unpack<B: Block>(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        B::unpack(block, integers)
    }

    /// Computes `a · b + c`, rounded once if the other functions round once.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;

    /// Returns the sum of all, adding one half to the other repeatedly.
    fn total(self) -> f32;
}

/// How the blocks of one layout are multiplied.
///
/// A kernel compiles its function once for each layout. One function for all of them would be so large that LLVM takes
/// twice as long for the crate.
pub(super) trait Tiles {
    /// Returns the products of some rows with a column, without the rows' units.
    fn totals<S: Sums, const ROWS: usize>(
        &self,
        task: &BlockColumns,
        row: usize,
        column: usize,
    ) -> [f32; ROWS];
}

/// Blocks of 32 with a scale.
pub(super) struct Simple<B>(pub PhantomData<B>);

/// Blocks of 256 with scales for their parts.
pub(super) struct Super<B>(pub PhantomData<B>);

/// NVFP4's blocks.
pub(super) struct Nvfp4;

/// Evaluates an expression with the [`Tiles`] of a format.
macro_rules! with_tiles {
    ($format:expr, $tiles:ident => $result:expr) => {
        triad_blocks::with_layout!(
            $format,
            Block B => {
                let $tiles = &$crate::kernel::int16::blocks::Simple::<B>(std::marker::PhantomData);
                $result
            },
            SuperBlock B => {
                let $tiles = &$crate::kernel::int16::blocks::Super::<B>(std::marker::PhantomData);
                $result
            },
            Shared layout => {
                let $tiles = &layout;
                $result
            },
            Nvfp4 => {
                let $tiles = &$crate::kernel::int16::blocks::Nvfp4;
                $result
            }
        )
    };
}

pub(super) use with_tiles;

/// Computes all outputs. Must be inlined into a function that is compiled for the instructions of `S`.
#[inline(always)]
pub(super) fn multiply<S: Sums>(task: &BlockColumns, tiles: &impl Tiles) {
    each_tile(
        task.x.rows(),
        task.columns.len(),
        task.column_bytes(),
        #[inline(always)]
        |rows, row, column| match rows {
            ROWS => tile::<S, ROWS>(task, tiles, row, column),
            // Each kind of tile is compiled for each format and set of instructions, so fewer rows are computed one by
            // one. (A loop, since a closure would not be compiled for the instructions.)
            _ => {
                for row in row..row + rows {
                    tile::<S, 1>(task, tiles, row, column);
                }
            }
        },
    );
}

#[inline(always)]
fn tile<S: Sums, const ROWS: usize>(
    task: &BlockColumns,
    tiles: &impl Tiles,
    row: usize,
    column: usize,
) {
    let totals = tiles.totals::<S, ROWS>(task, row, column);
    for (index, total) in totals.into_iter().enumerate() {
        task.write(row + index, column, total * task.x.scales()[row + index]);
    }
}

impl<B: Block> Tiles for Simple<B> {
    #[inline(always)]
    fn totals<S: Sums, const ROWS: usize>(
        &self,
        task: &BlockColumns,
        row: usize,
        column: usize,
    ) -> [f32; ROWS] {
        let rows = rows_of::<ROWS>(task, row);
        // Two accumulators each, for blocks at even and at odd places; with one, each addition would wait for the previous
        // one.
        let (mut even, mut odd) = ([(S::zero(), 0.0); ROWS], [(S::zero(), 0.0); ROWS]);
        let mut pairs = task.column(column).chunks_exact(2 * B::BYTES);
        let mut index = 0;
        for pair in pairs.by_ref() {
            prefetch_block(pair);
            let (first, second) = pair.split_at(B::BYTES);
            add_block::<B, S, ROWS>(first, index, &rows, &mut even);
            add_block::<B, S, ROWS>(second, index + 1, &rows, &mut odd);
            index += 2;
        }
        if !pairs.remainder().is_empty() {
            add_block::<B, S, ROWS>(pairs.remainder(), index, &rows, &mut even);
        }
        let mut totals = [0.0; ROWS];
        for (total, (even, odd)) in totals.iter_mut().zip(even.into_iter().zip(odd)) {
            *total = even.0.total() + odd.0.total();
            if B::HAS_MINIMUM {
                *total += even.1 + odd.1;
            }
        }
        totals
    }
}

/// Returns some rows, each with the sums of its parts.
#[inline(always)]
fn rows_of<'a, const ROWS: usize>(
    task: &BlockColumns<'a>,
    row: usize,
) -> [(&'a [i16], &'a [i32]); ROWS] {
    let mut rows: [(&[i16], &[i32]); ROWS] = [(&[], &[]); ROWS];
    for (index, place) in rows.iter_mut().enumerate() {
        *place = (task.x.row(row + index), task.x.sums(row + index));
    }
    rows
}

/// Adds the products with the block at `index` and with its minimum.
#[inline(always)]
fn add_block<B: Block, S: Sums, const ROWS: usize>(
    block: &[u8],
    index: usize,
    rows: &[(&[i16], &[i32]); ROWS],
    totals: &mut [(S, f32); ROWS],
) {
    let mut integers = [0; ELEMENTS];
    let bits = S::unpack::<B>(block, &mut integers);
    let (scale, minimum) = if B::HAS_MINIMUM {
        S::scale_and_number(bits)
    } else if B::SCALE_IS_BF16 {
        (S::scale_of(B::scale(bits[0])), 0.0)
    } else {
        (S::scale(bits[0]), 0.0)
    };
    for ((x, sums), (total, offset)) in rows.iter().zip(totals) {
        *total = total.add_products(&integers, &x[index * ELEMENTS..][..ELEMENTS], scale);
        if B::HAS_MINIMUM {
            let sums = &sums[index * SIMPLE_PARTS..][..SIMPLE_PARTS];
            *offset = S::multiply_add((sums[0] + sums[1]) as f32, minimum, *offset);
        }
    }
}

impl<B: SuperBlock> Tiles for Super<B> {
    #[inline(always)]
    fn totals<S: Sums, const ROWS: usize>(
        &self,
        task: &BlockColumns,
        row: usize,
        column: usize,
    ) -> [f32; ROWS] {
        let rows = rows_of::<ROWS>(task, row);
        let mut sums = [S::zero(); ROWS];
        let mut minimums = [0; PARTS];
        for (index, block) in task.column(column).chunks_exact(B::BYTES).enumerate() {
            prefetch_block(block);
            let mut x = [&[0; SUPER_BLOCK]; ROWS];
            for (x, (row, _)) in x.iter_mut().zip(&rows) {
                *x = row[index * SUPER_BLOCK..]
                    .first_chunk()
                    .expect("activations have the length of a super-block");
            }
            let minimum_scale = S::add_super_block::<B, ROWS>(&mut sums, block, x, &mut minimums);
            if B::HAS_MINIMUMS {
                for ((_, parts), sums) in rows.iter().zip(&mut sums) {
                    let parts = parts[index * PARTS..]
                        .first_chunk()
                        .expect("sums have the parts of a super-block");
                    *sums = sums.subtract_products(&minimums, parts, minimum_scale);
                }
            }
        }
        let mut totals = [0.0; ROWS];
        for (total, sums) in totals.iter_mut().zip(sums) {
            *total = sums.total();
        }
        totals
    }
}

impl Tiles for SharedLayout {
    #[inline(always)]
    fn totals<S: Sums, const ROWS: usize>(
        &self,
        task: &BlockColumns,
        row: usize,
        column: usize,
    ) -> [f32; ROWS] {
        let rows = rows_of::<ROWS>(task, row);
        let mut sums = [S::zero(); ROWS];
        let mut integers = [0; SUPER_BLOCK];
        let blocks = task.column(column).chunks_exact(self.bytes);
        for (index, block) in blocks.enumerate() {
            prefetch_block(block);
            let bits = (self.unpack)(block, &mut integers);
            let scale = S::scale_of(triad_blocks::widen(bits) * self.factor);
            let integers = &integers[..self.elements];
            for ((x, _), sums) in rows.iter().zip(&mut sums) {
                let x = &x[index * self.elements..][..self.elements];
                *sums = sums.add_products(integers, x, scale);
            }
        }
        let mut totals = [0.0; ROWS];
        for (total, sums) in totals.iter_mut().zip(sums) {
            *total = sums.total();
        }
        totals
    }
}

impl Tiles for Nvfp4 {
    #[inline(always)]
    fn totals<S: Sums, const ROWS: usize>(
        &self,
        task: &BlockColumns,
        row: usize,
        column: usize,
    ) -> [f32; ROWS] {
        let rows = rows_of::<ROWS>(task, row);
        let mut sums = [[S::zero(); 2]; ROWS];
        let mut integers = [0; nvfp4::ELEMENTS];
        for (index, block) in task.column(column).chunks_exact(nvfp4::BYTES).enumerate() {
            prefetch_block(block);
            let [first, second, third, fourth] = nvfp4::unpack(block, &mut integers);
            let scales = [S::scales_of([first, second]), S::scales_of([third, fourth])];
            for ((x, _), sums) in rows.iter().zip(&mut sums) {
                let x = x[index * nvfp4::ELEMENTS..][..nvfp4::ELEMENTS]
                    .as_chunks()
                    .0;
                let runs = integers.as_chunks().0.iter().zip(x).zip(scales);
                for (sums, ((integers, x), scales)) in sums.iter_mut().zip(runs) {
                    *sums = sums.add_halves(integers, x, scales);
                }
            }
        }
        let mut totals = [0.0; ROWS];
        for (total, [even, odd]) in totals.iter_mut().zip(sums) {
            *total = even.total() + odd.total();
        }
        totals
    }
}

/// Prefetches the data [`AHEAD`] bytes after a block: blocks straddle cache lines, and the hardware prefetcher alone
/// does not keep up.
#[inline(always)]
fn prefetch_block(block: &[u8]) {
    for line in block.chunks(FETCHED) {
        prefetch_ahead(line.as_ptr(), AHEAD);
    }
}

/// Sums in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; PARTS]);

impl Sums for Plain {
    type Scale = f32;
    type Scales = [f32; 2];

    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; PARTS])
    }

    #[inline(always)]
    fn add_products(mut self, integers: &[i16], x: &[i16], scale: f32) -> Self {
        for (sum, exact) in self.0.iter_mut().zip(products(integers, x)) {
            *sum = Self::multiply_add(exact as f32, scale, *sum);
        }
        self
    }

    #[inline(always)]
    fn add_halves(mut self, integers: &[i16; RUN], x: &[i16; RUN], scales: [f32; 2]) -> Self {
        let exact = products(integers, x);
        for (lane, (sum, exact)) in self.0.iter_mut().zip(exact).enumerate() {
            *sum = Self::multiply_add(exact as f32, scales[lane / (PARTS / 2)], *sum);
        }
        self
    }

    #[inline(always)]
    fn subtract_products(
        mut self,
        minimums: &[i32; PARTS],
        sums: &[i32; PARTS],
        scale: f32,
    ) -> Self {
        for ((sum, minimum), sum_of_x) in self.0.iter_mut().zip(minimums).zip(sums) {
            *sum = Self::multiply_add((minimum * sum_of_x) as f32, -scale, *sum);
        }
        self
    }

    #[inline(always)]
    fn add_super_block<B: SuperBlock, const ROWS: usize>(
        sums: &mut [Self; ROWS],
        block: &[u8],
        x: [&[i16; SUPER_BLOCK]; ROWS],
        minimums: &mut [i32; PARTS],
    ) -> f32 {
        let mut integers = [0; SUPER_BLOCK];
        // Each sum adds sixteen products of numbers of these magnitudes: 16 · 4096 · 32512 < 2³¹.
        let [scale, minimum_scale] = B::unpack(block, &mut integers, minimums);
        let scale = Self::scale(scale);
        for (sums, x) in sums.iter_mut().zip(x) {
            *sums = sums.add_products(&integers, x, scale);
        }
        Self::scale(minimum_scale)
    }

    #[inline(always)]
    fn scale(bits: u16) -> f32 {
        triad_blocks::widen(bits)
    }

    #[inline(always)]
    fn scale_of(number: f32) -> f32 {
        number
    }

    #[inline(always)]
    fn scales_of(numbers: [f32; 2]) -> [f32; 2] {
        numbers
    }

    #[inline(always)]
    fn scale_and_number(bits: [u16; 2]) -> (f32, f32) {
        (Self::scale(bits[0]), Self::scale(bits[1]))
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

/// Returns the exact sums of products, as [`Sums::add_products`] defines them.
#[inline(always)]
fn products(integers: &[i16], x: &[i16]) -> [i32; PARTS] {
    let mut exact = [0; PARTS];
    let runs = integers.as_chunks::<RUN>().0.iter();
    for (integers, x) in runs.zip(x.as_chunks::<RUN>().0) {
        for lane in 0..PARTS {
            exact[lane] += i32::from(integers[2 * lane]) * i32::from(x[2 * lane])
                + i32::from(integers[2 * lane + 1]) * i32::from(x[2 * lane + 1]);
        }
    }
    exact
}

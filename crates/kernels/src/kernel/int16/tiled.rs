//! Products with weights in INT8 and INT4, generic over 128-bit and 256-bit registers.

use half::f16;

use super::blocks::Sums;
use super::columns::{Int4Columns, Int8Columns};
use super::registers::Registers;
use super::steps::{GROUPS, STEP, Step};
use super::tiles::{ROWS, each_tile};
use super::vector::WeightVector;
use super::{AHEAD, FETCHED, prefetch_ahead};
use crate::int4::HALF;

/// Columns per tile, which share the loads of activations: with INT8 weights and [`ROWS`] they use eight registers for
/// sums if a register has 256 bits.
const COLUMNS: usize = 2;

/// Computes all outputs. Must be inlined into a function that is compiled for the instructions of `V`.
///
/// # Safety
/// The processor must have these instructions.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn multiply_int8<V: WeightVector>(task: &Int8Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    // With one row, columns are adjacent: the processor prefetches one stream faster than several.
    let distance = if rows == 1 { 0 } else { count / COLUMNS };
    each_tile(
        rows,
        distance,
        COLUMNS * task.x.in_features(),
        #[inline(always)]
        |rows, row, column| {
            let columns = [column, column + distance];
            // SAFETY: as the caller promises.
            unsafe {
                match rows {
                    1 => int8_tile::<V, 1, COLUMNS>(task, row, columns),
                    2 => int8_tile::<V, 2, COLUMNS>(task, row, columns),
                    3 => int8_tile::<V, 3, COLUMNS>(task, row, columns),
                    _ => int8_tile::<V, ROWS, COLUMNS>(task, row, columns),
                }
            }
        },
    );
    for column in COLUMNS * distance..count {
        for row in 0..rows {
            // SAFETY: as above.
            unsafe { int8_tile::<V, 1, 1>(task, row, [column]) }
        }
    }
}

/// Computes some rows of some columns. Two distant columns are separate streams for the hardware prefetcher.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn int8_tile<V: WeightVector, const ROWS: usize, const COLUMNS: usize>(
    task: &Int8Columns,
    row: usize,
    columns: [usize; COLUMNS],
) {
    let (depth, lanes) = (task.x.in_features(), 2 * V::LANES);
    let (mut x, mut weights): ([&[i16]; ROWS], [&[i8]; COLUMNS]) = ([&[]; ROWS], [&[]; COLUMNS]);
    for (index, x) in x.iter_mut().enumerate() {
        *x = task.x.row(row + index);
        assert_eq!(x.len(), depth, "expected the features of a row");
    }
    for (weights, column) in weights.iter_mut().zip(columns) {
        *weights = task.weights_of(column);
        assert_eq!(weights.len(), depth, "expected the features of a column");
    }
    let whole = depth / lanes * lanes;
    let mut totals = [[0; COLUMNS]; ROWS];
    // SAFETY: the processor has the instructions; each row and column has at least `whole` numbers.
    unsafe {
        let mut sums = [[V::begin(V::splat_i16(0)); COLUMNS]; ROWS];
        for first in (0..whole).step_by(lanes) {
            // With one row, the hardware prefetcher alone does not saturate the memory.
            if ROWS * COLUMNS == 1 && first.is_multiple_of(FETCHED) {
                prefetch_ahead(weights[0].as_ptr().wrapping_add(first), AHEAD);
            }
            let mut factors = [V::splat_i16(0); COLUMNS];
            for (factor, weights) in factors.iter_mut().zip(weights) {
                *factor = V::widen_signed(weights.as_ptr().add(first));
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = V::load(x.as_ptr().add(first));
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = V::add_products(*sum, factor, x);
                }
            }
        }
        for (totals, sums) in totals.iter_mut().zip(sums) {
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = V::total_i32(sum);
            }
        }
    }
    for (index, (totals, x)) in totals.into_iter().zip(x).enumerate() {
        let unit = task.x.scales()[row + index];
        for ((column, weights), mut total) in columns.into_iter().zip(weights).zip(totals) {
            for (x, weight) in x[whole..].iter().zip(&weights[whole..]) {
                total += i32::from(*x) * i32::from(*weight);
            }
            task.write(
                row + index,
                column,
                total as f32 * (unit * task.scales[column]),
            );
        }
    }
}

/// Does the same as [`multiply_int8`] for INT4, one column after the other: unpacking takes longer than loading
/// activations again.
///
/// # Safety
/// The processor must have these instructions.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn multiply_int4<V: WeightVector>(task: &Int4Columns) {
    each_tile(
        task.x.rows(),
        task.columns.len(),
        task.groups() * HALF,
        #[inline(always)]
        |rows, row, column| {
            // SAFETY: as the caller promises.
            unsafe {
                match rows {
                    1 => int4_tile::<V, 1>(task, row, column),
                    2 => int4_tile::<V, 2>(task, row, column),
                    3 => int4_tile::<V, 3>(task, row, column),
                    _ => int4_tile::<V, ROWS>(task, row, column),
                }
            }
        },
    );
}

/// Computes some rows of a column.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn int4_tile<V: WeightVector, const ROWS: usize>(
    task: &Int4Columns,
    row: usize,
    column: usize,
) {
    let groups = task.groups();
    let (whole, left) = (groups / GROUPS, groups % GROUPS);
    let mut x: [&[Step]; ROWS] = [&[]; ROWS];
    for (index, x) in x.iter_mut().enumerate() {
        *x = task.steps(row + index);
        assert_eq!(
            x.len(),
            groups.div_ceil(GROUPS),
            "expected the steps of a row"
        );
    }
    let (weights, scales) = task.column(column);
    let (weights, rest) = weights.as_chunks::<STEP>();
    let mut sums = [Registers::<V>::zero(); ROWS];
    // SAFETY: the processor has the instructions; a row has a step for every four groups, the last of which may have
    // fewer.
    unsafe {
        for (step, weights) in weights.iter().enumerate() {
            let scales = V::group_scales(scales.as_ptr().add(step * GROUPS).cast());
            for (register, scales) in scales.as_ref().iter().enumerate() {
                let words = V::load(weights.as_ptr().add(register * 4 * V::LANES));
                add_words::<V, ROWS>(words, *scales, &x, (step, register), &mut sums);
            }
        }
        if left > 0 {
            let scales = V::group_scales(&last_scales(scales, left));
            for (register, bytes) in rest.chunks(4 * V::LANES).enumerate() {
                let is_whole = bytes.len() == 4 * V::LANES;
                let words = if is_whole {
                    V::load(bytes.as_ptr())
                } else {
                    one_group::<V>(bytes)
                };
                add_words::<V, ROWS>(
                    words,
                    scales.as_ref()[register],
                    &x,
                    (whole, register),
                    &mut sums,
                );
            }
        }
    }
    for (index, sums) in sums.into_iter().enumerate() {
        task.write(
            row + index,
            column,
            sums.total() * task.x.scales()[row + index],
        );
    }
}

/// Adds the products of a register of words.
///
/// # Safety
/// The processor must have the instructions, and rows must have such a step.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn add_words<V: WeightVector, const ROWS: usize>(
    words: V::Integers,
    scales: V::Floats,
    x: &[&[Step]; ROWS],
    (step, register): (usize, usize),
    sums: &mut [Registers<V>; ROWS],
) {
    // SAFETY: as the caller promises; the loads cover the register's share of a step.
    unsafe {
        let factors = V::factors(words);
        for (x, sums) in x.iter().zip(sums) {
            let step = x.get_unchecked(step);
            let offset = V::load(step.offset.as_ptr().add(register * V::LANES));
            let mut exact = V::begin(offset);
            for (factor, x) in factors.into_iter().zip(&step.x) {
                exact = V::add_products(
                    exact,
                    factor,
                    V::load(x.as_ptr().add(register * 2 * V::LANES)),
                );
            }
            let sum = &mut sums.0.as_mut()[register];
            *sum = V::multiply_add(V::to_floats(V::end(exact, offset)), scales, *sum);
        }
    }
}

/// Returns the bits of the last `left` scales, padded with zeros.
#[inline(always)]
fn last_scales(scales: &[f16], left: usize) -> [u16; GROUPS] {
    let mut bits = [0; GROUPS];
    if let Some(last) = scales.last_chunk::<GROUPS>() {
        // As one word: a loop would become a function call.
        let word =
            u64::from_le_bytes(bytemuck::cast(last.map(f16::to_bits))) >> (16 * (GROUPS - left));
        bits = bytemuck::cast(word.to_le_bytes());
    } else {
        for (bits, scale) in bits.iter_mut().zip(&scales[scales.len() - left..]) {
            *bits = scale.to_bits();
        }
    }
    bits
}

/// Loads a register with the bytes of one group, padded with zeros.
///
/// # Safety
/// The processor must have the instructions.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn one_group<V: WeightVector>(bytes: &[u8]) -> V::Integers {
    let mut padded = [0; STEP];
    padded[..HALF].copy_from_slice(&bytes[..HALF]);
    // SAFETY: as the caller promises; a step is as long as the widest register.
    unsafe { V::load(padded.as_ptr()) }
}

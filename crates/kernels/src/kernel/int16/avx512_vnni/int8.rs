//! Weights in INT8.

use std::arch::x86_64::{
    __m512i, _mm_add_epi32, _mm_cvtepi32_ps, _mm_loadu_ps, _mm_mul_ps, _mm_set1_ps, _mm_storeu_ps,
    _mm256_add_epi32, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256,
    _mm256_maskz_loadu_epi8, _mm512_add_epi32, _mm512_castsi512_si256, _mm512_cvtepi8_epi16,
    _mm512_dpwssd_epi32, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_maskz_loadu_epi16,
    _mm512_reduce_add_epi32, _mm512_setzero_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::ops::Range;

use super::super::{AHEAD, prefetch_ahead};
use super::{BLOCK, COLUMNS, Int8Columns, ROWS, tile, write};
use crate::chunks::parts;

/// Numbers per instruction.
const LANES: usize = 32;
/// Bytes between the weights that are multiplied and those that are prefetched, in each of several streams.
const AHEAD_IN_STREAMS: usize = 2048;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn multiply(task: &Int8Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    if rows == 1 {
        let at_once = count / COLUMNS;
        for first in 0..at_once {
            // Separate streams: memory delivers more with several than with one.
            let columns: [usize; COLUMNS] = std::array::from_fn(|stream| first + stream * at_once);
            one_row(task, 0, columns, AHEAD_IN_STREAMS);
        }
        return (COLUMNS * at_once..count).for_each(|column| one_row(task, 0, [column], AHEAD));
    }
    let distance = count / COLUMNS;
    let tiles_of_rows = rows.div_ceil(ROWS);
    for start in (0..distance).step_by(BLOCK) {
        let block = start..(start + BLOCK).min(distance);
        for (index, part) in parts(rows, ROWS).enumerate() {
            // Tiles of later rows read cached weights, and each of them prefetches a part of the next block's.
            let ahead = (index > 0).then(|| Ahead {
                lines: tiles_of_rows - 1,
                first: index - 1,
            });
            tile!(
                part.len(),
                tiles,
                task,
                part.start,
                block.clone(),
                distance,
                ahead.as_ref()
            );
        }
    }
    for row in 0..rows {
        (COLUMNS * distance..count).for_each(|column| one_row(task, row, [column], AHEAD));
    }
}

/// Computes a row and some columns, and prefetches weights `ahead` bytes later: the hardware prefetcher alone does not
/// saturate the memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn one_row<const COLUMNS: usize>(
    task: &Int8Columns,
    row: usize,
    columns: [usize; COLUMNS],
    ahead: usize,
) {
    let (x, weights) = (
        task.x.row(row),
        columns.map(|column| task.weights_of(column)),
    );
    // Two sums per column, so that no instruction waits for the previous one.
    let mut sums = [[_mm512_setzero_si512(); 2]; COLUMNS];
    let (whole, rest) = x.as_chunks::<{ 2 * LANES }>();
    for (index, x) in whole.iter().enumerate() {
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weights = &weights[2 * LANES * index..];
            prefetch_ahead(weights.as_ptr(), ahead);
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = add_products(*sum, &x[half * LANES..], &weights[half * LANES..], LANES);
            }
        }
    }
    for first in (0..rest.len()).step_by(LANES) {
        let start = x.len() - rest.len() + first;
        for (sums, weights) in sums.iter_mut().zip(weights) {
            sums[0] = add_products(
                sums[0],
                &x[start..],
                &weights[start..],
                (rest.len() - first).min(LANES),
            );
        }
    }
    for (column, [first, second]) in columns.into_iter().zip(sums) {
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        task.write(
            row,
            column,
            sum as f32 * (task.x.scales()[row] * task.scales[column]),
        );
    }
}

/// Adds the products of the first `count` numbers of both, at most [`LANES`], to `sum`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_products(sum: __m512i, x: &[i16], weights: &[i8], count: usize) -> __m512i {
    assert!((1..=LANES).contains(&count) && x.len() >= count && weights.len() >= count);
    let mask = u32::MAX >> (LANES - count);
    // SAFETY: the masked loads do not touch anything after `count` numbers.
    #[allow(unsafe_code)]
    let (x, weights) = unsafe {
        (
            _mm512_maskz_loadu_epi16(mask, x.as_ptr()),
            _mm256_maskz_loadu_epi8(mask, weights.as_ptr()),
        )
    };
    _mm512_dpwssd_epi32(sum, _mm512_cvtepi8_epi16(weights), x)
}

/// The lines of the next block's weights that a tile prefetches: the `first`, and every `lines`-th after it.
struct Ahead {
    lines: usize,
    first: usize,
}

/// Computes some rows of [`COLUMNS`] times the columns of a block. Each of the [`COLUMNS`] parts is a stream of its own
/// for the hardware prefetcher.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn tiles<const ROWS: usize>(
    task: &Int8Columns,
    row: usize,
    block: Range<usize>,
    distance: usize,
    ahead: Option<&Ahead>,
) {
    let mut out = [[[0.0; BLOCK]; COLUMNS]; ROWS];
    for (index, column) in block.clone().enumerate() {
        one_tile::<ROWS>(task, row, (column, distance), ahead, (index, &mut out));
    }
    write(
        task.out,
        row,
        task.columns.start + block.start,
        (block.len(), distance),
        &out,
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn one_tile<const ROWS: usize>(
    task: &Int8Columns,
    row: usize,
    (column, distance): (usize, usize),
    ahead: Option<&Ahead>,
    (place, out): (usize, &mut [[[f32; BLOCK]; COLUMNS]; ROWS]),
) {
    let depth = task.x.in_features();
    let x: [&[i16]; ROWS] = std::array::from_fn(|index| task.x.row(row + index));
    let columns: [usize; COLUMNS] = std::array::from_fn(|index| column + index * distance);
    let weights = columns.map(|column| task.weights_of(column));
    assert!(
        x.iter().all(|x| x.len() == depth) && weights.iter().all(|weights| weights.len() == depth)
    );
    // In units of a line, which is two vectors of weights.
    let (period, phase) =
        ahead.map_or((usize::MAX, usize::MAX), |ahead| (ahead.lines, ahead.first));
    let mut line = 0;
    let mut sums = [[_mm512_setzero_si512(); COLUMNS]; ROWS];
    let whole = depth / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        if first % (2 * LANES) == 0 {
            if line == phase {
                weights
                    .iter()
                    .for_each(|weights| prefetch_ahead(weights[first..].as_ptr(), BLOCK * depth));
            }
            line = if line + 1 == period { 0 } else { line + 1 };
        }
        let mut factors = [_mm512_setzero_si512(); COLUMNS];
        for (factor, weights) in factors.iter_mut().zip(weights) {
            // SAFETY: the column has at least [`LANES`] more numbers.
            #[allow(unsafe_code)]
            let bytes = unsafe { _mm256_loadu_si256(weights.as_ptr().add(first).cast()) };
            *factor = _mm512_cvtepi8_epi16(bytes);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: the row has at least [`LANES`] more numbers.
            #[allow(unsafe_code)]
            let x = unsafe { _mm512_loadu_si512(x.as_ptr().add(first).cast()) };
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum = _mm512_dpwssd_epi32(*sum, factor, x);
            }
        }
    }
    if whole < depth {
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = add_products(*sum, &x[whole..], &weights[whole..], depth - whole);
            }
        }
    }
    let scales = columns.map(|column| task.scales[column]);
    for (index, sums) in sums.into_iter().enumerate() {
        let values = finish(sums, task.x.scales()[row + index], &scales);
        out[index]
            .iter_mut()
            .zip(values)
            .for_each(|(line, value)| line[place] = value);
    }
}

/// Computes the outputs of four columns from their sums.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish(sums: [__m512i; COLUMNS], unit: f32, scales: &[f32; COLUMNS]) -> [f32; COLUMNS] {
    let mut out = [0.0; COLUMNS];
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pairs(sums[0], sums[1]), pairs(sums[2], sums[3]));
    let sum = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let sum = _mm256_add_epi32(
        _mm512_castsi512_si256(sum),
        _mm512_extracti64x4_epi64::<1>(sum),
    );
    let sum = _mm_add_epi32(
        _mm256_castsi256_si128(sum),
        _mm256_extracti128_si256::<1>(sum),
    );
    // SAFETY: four numbers each.
    #[allow(unsafe_code)]
    unsafe {
        let scales = _mm_mul_ps(_mm_set1_ps(unit), _mm_loadu_ps(scales.as_ptr()));
        _mm_storeu_ps(out.as_mut_ptr(), _mm_mul_ps(_mm_cvtepi32_ps(sum), scales));
    }
    out
}

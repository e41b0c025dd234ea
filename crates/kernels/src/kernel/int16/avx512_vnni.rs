//! AVX-512 with VNNI (Ice Lake, Zen 4 and later): `vpdpwssd` adds two products of 16-bit numbers to each of sixteen sums.
//!
//! What limits several rows with weights in INT4, on Zen 4: it begins one `vpdpwssd` or fused multiply-add of 64 bytes in
//! a cycle, and reads one line. A step of a row and column is four `vpdpwssd` and one multiply-add, five cycles, so that
//! at most four fifths of the peak of INT16 are possible. Shifts, masks and conversions have units of their own, but not
//! many to spare: a tile's rows share the unpacking, and whole steps are read without masks, which would take one. A
//! step's activations are five lines, which for each column would take as long again: two columns share a reading of them.

use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm_add_epi32, _mm_add_ps, _mm_cvtepi32_ps, _mm_cvtph_ps, _mm_cvtsi32_si128,
    _mm_cvtss_f32, _mm_loadu_ps, _mm_loadu_si128, _mm_maskz_loadu_epi16, _mm_movehdup_ps, _mm_movehl_ps, _mm_movelh_ps,
    _mm_mul_ps, _mm_set1_ps, _mm_shuffle_ps, _mm_srli_epi16, _mm_storeu_ps, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_si256, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_castsi256_si128, _mm256_extractf128_ps,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_maskz_loadu_epi8, _mm256_set_m128i, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcastss_ps, _mm512_castps_pd,
    _mm512_castps128_ps512, _mm512_castps512_ps256, _mm512_castsi512_si256, _mm512_cvtepi8_epi16, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi16, _mm512_cvtph_ps, _mm512_dpwssd_epi32, _mm512_extractf64x4_pd, _mm512_extracti64x4_epi64,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_si512, _mm512_mask_set1_epi16, _mm512_maskz_loadu_epi8,
    _mm512_maskz_loadu_epi16, _mm512_maskz_set1_epi16, _mm512_mullo_epi16, _mm512_mullo_epi32, _mm512_or_si512,
    _mm512_permutexvar_ps, _mm512_reduce_add_epi32, _mm512_reduce_add_ps, _mm512_set1_epi16, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sll_epi16, _mm512_srl_epi16,
    _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi16,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use std::arch::asm;
use std::ops::Range;

use half::f16;

use super::blocks;
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::registers::Registers;
use super::steps::{GROUPS, MASK, SHIFTS, STEP, Step};
use super::vector::Vector;
use super::{AHEAD, prefetch_ahead};
use crate::chunks::parts;
use crate::int4::HALF;
use crate::output::SharedOutput;
use crate::tier::Tier;

/// Numbers that an instruction takes.
const LANES: usize = 32;
/// Rows of the largest tile: with [`COLUMNS`] they make 24 registers of sums and leave eight for operands.
const ROWS: usize = 6;
/// Columns of a tile.
const COLUMNS: usize = 4;
/// Columns of a stream that several rows meet one after the other: with those of the other streams, weights that the
/// second-level cache holds, and a line of each row's outputs.
const BLOCK: usize = 16;
/// Rows of the largest tile with weights in INT4, which need more operands.
const INT4_ROWS: usize = 4;
/// Bytes within which the processor takes what is read in turns for one stream, and fetches it ahead: columns that are
/// longer together meet one row one by one.
const STREAM: usize = 4096;

/// The kernel; having one proves that the processor can run it.
pub(in crate::kernel) struct Avx512Vnni(());

impl Avx512Vnni {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Tier::has_vnni().then_some(Self(()))
    }
}

impl Int16Kernel for Avx512Vnni {
    fn name(&self) -> &'static str {
        "avx512-vpdpwssd"
    }

    fn multiply_int8(&self, columns: &Int8Columns) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply_int8(columns);
        }
    }

    fn multiply_int4(&self, columns: &Int4Columns) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            multiply_int4(columns);
        }
    }

    fn multiply_blocks(&self, columns: &BlockColumns) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            multiply_blocks(columns);
        }
    }
}

/// Calls the tile of so many rows.
macro_rules! tile {
    ($rows:expr, $function:ident, $($argument:expr),*) => {
        match $rows {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            _ => $function::<ROWS>($($argument),*),
        }
    };
}

/// The exact sums of a [`Step`] with two columns, which share the reading of its activations. As a function it would not
/// always be inlined, and take its operands through memory; as intrinsics, LLVM would make two instructions of each of
/// these, to shorten a chain that waits for nothing.
macro_rules! products {
    ($first:expr, $second:expr, $step:expr) => {{
        let ([a, b, c, d], [e, f, g, h]): ([__m512i; SHIFTS], [__m512i; SHIFTS]) = ($first, $second);
        let step: &Step = $step;
        let (first, second, _x): (__m512i, __m512i, __m512i);
        // SAFETY: instructions that AVX-512 with VNNI has, on registers and the 320 bytes of a step.
        #[allow(unsafe_code)]
        unsafe {
            asm!(
                "vmovdqa64 {first}, [{step} + 256]",
                "vmovdqa64 {x}, [{step}]",
                "vmovdqa64 {second}, {first}",
                "vpdpwssd {first}, {a}, {x}",
                "vpdpwssd {second}, {e}, {x}",
                "vmovdqa64 {x}, [{step} + 64]",
                "vpdpwssd {first}, {b}, {x}",
                "vpdpwssd {second}, {f}, {x}",
                "vmovdqa64 {x}, [{step} + 128]",
                "vpdpwssd {first}, {c}, {x}",
                "vpdpwssd {second}, {g}, {x}",
                "vmovdqa64 {x}, [{step} + 192]",
                "vpdpwssd {first}, {d}, {x}",
                "vpdpwssd {second}, {h}, {x}",
                first = out(zmm_reg) first, second = out(zmm_reg) second, x = out(zmm_reg) _x,
                step = in(reg) std::ptr::from_ref(step),
                a = in(zmm_reg) a, b = in(zmm_reg) b, c = in(zmm_reg) c, d = in(zmm_reg) d,
                e = in(zmm_reg) e, f = in(zmm_reg) f, g = in(zmm_reg) g, h = in(zmm_reg) h,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [first, second]
    }};
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiply_int8(task: &Int8Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    if rows == 1 {
        // One column after the other: the processor fetches one stream ahead faster than several.
        return int8_row(task, 0, 0..count);
    }
    let distance = count / COLUMNS;
    let tiles = rows.div_ceil(ROWS);
    for start in (0..distance).step_by(BLOCK) {
        let block = start..(start + BLOCK).min(distance);
        for (index, part) in parts(rows, ROWS).enumerate() {
            // While later rows meet weights that are in the cache, those of the next block come, some with each tile.
            let ahead = (index > 0).then(|| Ahead { lines: tiles - 1, first: index - 1 });
            tile!(part.len(), int8_tiles, task, part.start, block.clone(), distance, ahead.as_ref());
        }
    }
    for row in 0..rows {
        int8_row(task, row, COLUMNS * distance..count);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn int8_row(task: &Int8Columns, row: usize, columns: Range<usize>) {
    let (x, unit) = (task.x.row(row), task.x.scales()[row]);
    let weights = task.weights[columns.start * x.len()..columns.end * x.len()].chunks_exact(x.len());
    for (column, weights) in columns.zip(weights) {
        // Two sums, so that no instruction waits for the one before it.
        let mut sums = [_mm512_setzero_si512(); 2];
        let (whole, rest) = x.as_chunks::<{ 2 * LANES }>();
        for (x, weights) in whole.iter().zip(weights.as_chunks::<{ 2 * LANES }>().0) {
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = add_products(*sum, &x[half * LANES..], &weights[half * LANES..], LANES);
            }
        }
        for first in (0..rest.len()).step_by(LANES) {
            let start = x.len() - rest.len() + first;
            sums[0] = add_products(sums[0], &x[start..], &weights[start..], (rest.len() - first).min(LANES));
        }
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]));
        task.write(row, column, sum as f32 * (unit * task.scales[column]));
    }
}

/// Adds the products of the first `count` of both, at most [`LANES`], to `sum`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_products(sum: __m512i, x: &[i16], weights: &[i8], count: usize) -> __m512i {
    assert!((1..=LANES).contains(&count) && x.len() >= count && weights.len() >= count);
    let mask = u32::MAX >> (LANES - count);
    // SAFETY: the mask leaves what is beyond the numbers alone.
    #[allow(unsafe_code)]
    let (x, weights) =
        unsafe { (_mm512_maskz_loadu_epi16(mask, x.as_ptr()), _mm256_maskz_loadu_epi8(mask, weights.as_ptr())) };
    _mm512_dpwssd_epi32(sum, _mm512_cvtepi8_epi16(weights), x)
}

/// Which lines of the weights that are needed later a tile prefetches: the `first`, and every one at so many `lines` from it.
struct Ahead {
    lines: usize,
    first: usize,
}

/// Some rows of [`COLUMNS`] times the columns of a block, each of which begins a stream of its own that the processor
/// fetches ahead.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn int8_tiles<const ROWS: usize>(
    task: &Int8Columns,
    row: usize,
    block: Range<usize>,
    distance: usize,
    ahead: Option<&Ahead>,
) {
    let mut out = [[[0.0; BLOCK]; COLUMNS]; ROWS];
    for (index, column) in block.clone().enumerate() {
        int8_tile::<ROWS>(task, row, (column, distance), ahead, (index, &mut out));
    }
    write(task.out, row, task.columns.start + block.start, (block.len(), distance), &out);
}

/// Writes what a block's tiles computed, line by line: the lines of one column in several rows may be in the same set of
/// the cache, which holds few of them at once.
fn write<const ROWS: usize>(
    to: SharedOutput,
    row: usize,
    column: usize,
    (count, distance): (usize, usize),
    out: &[[[f32; BLOCK]; COLUMNS]; ROWS],
) {
    for (index, row_out) in out.iter().enumerate() {
        for (stream, line) in row_out.iter().enumerate() {
            let start = column + stream * distance;
            // SAFETY: these columns belong to this task alone.
            #[allow(unsafe_code)]
            let to = unsafe { to.row(row + index, start..start + count) };
            to.copy_from_slice(&line[..count]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn int8_tile<const ROWS: usize>(
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
    assert!(x.iter().all(|x| x.len() == depth) && weights.iter().all(|weights| weights.len() == depth));
    // Of two vectors of weights, which are a line.
    let (period, phase) = ahead.map_or((usize::MAX, usize::MAX), |ahead| (ahead.lines, ahead.first));
    let mut line = 0;
    let mut sums = [[_mm512_setzero_si512(); COLUMNS]; ROWS];
    let whole = depth / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        if first % (2 * LANES) == 0 {
            if line == phase {
                weights.iter().for_each(|weights| prefetch_ahead(weights[first..].as_ptr(), BLOCK * depth));
            }
            line = if line + 1 == period { 0 } else { line + 1 };
        }
        let mut factors = [_mm512_setzero_si512(); COLUMNS];
        for (factor, weights) in factors.iter_mut().zip(weights) {
            // SAFETY: so many more numbers are in the column.
            #[allow(unsafe_code)]
            let bytes = unsafe { _mm256_loadu_si256(weights.as_ptr().add(first).cast()) };
            *factor = _mm512_cvtepi8_epi16(bytes);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: so many more numbers are in the row.
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
        let values = finish_int8(sums, task.x.scales()[row + index], &scales);
        out[index].iter_mut().zip(values).for_each(|(line, value)| line[place] = value);
    }
}

/// From the sums of four columns to their outputs.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish_int8(sums: [__m512i; COLUMNS], unit: f32, scales: &[f32; COLUMNS]) -> [f32; COLUMNS] {
    let mut out = [0.0; COLUMNS];
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pairs(sums[0], sums[1]), pairs(sums[2], sums[3]));
    let sum = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let sum = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    // SAFETY: four numbers each.
    #[allow(unsafe_code)]
    unsafe {
        let scales = _mm_mul_ps(_mm_set1_ps(unit), _mm_loadu_ps(scales.as_ptr()));
        _mm_storeu_ps(out.as_mut_ptr(), _mm_mul_ps(_mm_cvtepi32_ps(sum), scales));
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn multiply_int4(task: &Int4Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    if rows == 1 {
        let tiled = if COLUMNS * task.groups() * HALF < STREAM { count / COLUMNS * COLUMNS } else { 0 };
        int4_row::<COLUMNS>(task, 0, 0..tiled);
        return int4_row::<1>(task, 0, tiled..count);
    }
    let distance = count / COLUMNS;
    for start in (0..distance).step_by(BLOCK) {
        let block = start..(start + BLOCK).min(distance);
        for part in parts(rows, INT4_ROWS) {
            tile!(part.len(), int4_tiles, task, part.start, block.clone(), distance);
        }
    }
    for row in 0..rows {
        int4_row::<1>(task, row, COLUMNS * distance..count);
    }
}

/// One row, some neighbouring columns at once, which share the reading of activations.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn int4_row<const COLUMNS: usize>(task: &Int4Columns, row: usize, columns: Range<usize>) {
    let (groups, steps, unit) = (task.groups(), task.steps(row), task.x.scales()[row]);
    for first_column in columns.step_by(COLUMNS) {
        let weights = &task.weights[first_column * groups * HALF..][..COLUMNS * groups * HALF];
        let scales = &task.scales[first_column * groups..][..COLUMNS * groups];
        let mut sums = [_mm512_setzero_ps(); COLUMNS];
        // A macro, so that whole steps are read without masks.
        macro_rules! add_step {
            ($index:expr, $step:expr, $groups:expr) => {{
                let (step, first): (&Step, _) = ($step, $index * GROUPS);
                // SAFETY: sixteen sums, and as many pairs for each shift.
                #[allow(unsafe_code)]
                let (offset, x) = unsafe {
                    let offset = _mm512_loadu_si512(step.offset.as_ptr().cast());
                    (offset, step.x.each_ref().map(|x| _mm512_loadu_si512(x.as_ptr().cast())))
                };
                for (column, sums) in sums.iter_mut().enumerate() {
                    let group = column * groups + first;
                    prefetch_int4(weights, scales, group);
                    // SAFETY: the column's groups from `first` on.
                    #[allow(unsafe_code)]
                    let (words, scales) = unsafe {
                        int4_operands(weights.as_ptr().add(group * HALF), scales.as_ptr().add(group), $groups)
                    };
                    let exact = products(factors(words), &x, offset);
                    *sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scales, *sums);
                }
            }};
        }
        let (whole, left) = (groups / GROUPS, groups % GROUPS);
        for (index, step) in steps.iter().enumerate().take(whole) {
            add_step!(index, step, GROUPS);
        }
        if left > 0 {
            add_step!(whole, &steps[whole], left);
        }
        for (index, sums) in sums.into_iter().enumerate() {
            task.write(row, first_column + index, _mm512_reduce_add_ps(sums) * unit);
        }
    }
}

/// The exact sums of a step that columns share: where there are several rows, see `products!`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn products(factors: [__m512i; SHIFTS], x: &[__m512i; SHIFTS], offset: __m512i) -> __m512i {
    let first = _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(offset, factors[0], x[0]), factors[1], x[1]);
    _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(first, factors[2], x[2]), factors[3], x[3])
}

/// Prefetches weights that follow a group by [`AHEAD`], and their scales.
#[inline(always)]
fn prefetch_int4(weights: &[u8], scales: &[f16], group: usize) {
    prefetch_ahead(weights.as_ptr(), group * HALF + AHEAD);
    prefetch_ahead(scales.as_ptr(), group * size_of::<f16>() + AHEAD * size_of::<f16>() / HALF);
}

/// Of up to four groups of a column, weights and a scale for each of sixteen sums; of missing groups, zeros.
///
/// # Safety
/// So many groups, at least one, can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
#[allow(unsafe_code)]
unsafe fn int4_operands(weights: *const u8, scales: *const f16, groups: usize) -> (__m512i, __m512) {
    let (bytes, halves) = (u64::MAX >> (STEP - groups * HALF), (1 << groups) - 1);
    // SAFETY: as the caller promises.
    let (words, scales) =
        unsafe { (_mm512_maskz_loadu_epi8(bytes, weights.cast()), _mm_maskz_loadu_epi16(halves, scales.cast())) };
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    (words, _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_cvtph_ps(scales))))
}

/// As [`int8_tiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn int4_tiles<const ROWS: usize>(task: &Int4Columns, row: usize, block: Range<usize>, distance: usize) {
    let mut out = [[[0.0; BLOCK]; COLUMNS]; ROWS];
    for (index, column) in block.clone().enumerate() {
        int4_tile::<ROWS>(task, row, (column, distance), (index, &mut out));
    }
    write(task.out, row, task.columns.start + block.start, (block.len(), distance), &out);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn int4_tile<const ROWS: usize>(
    task: &Int4Columns,
    row: usize,
    (column, distance): (usize, usize),
    (place, out): (usize, &mut [[[f32; BLOCK]; COLUMNS]; ROWS]),
) {
    let x: [&[Step]; ROWS] = std::array::from_fn(|index| task.steps(row + index));
    let columns: [(&[u8], &[f16]); COLUMNS] = std::array::from_fn(|index| task.column(column + index * distance));
    let groups = task.groups();
    assert!(x.iter().all(|x| x.len() == groups.div_ceil(GROUPS)));
    // Later rows find the weights in the cache.
    let ahead = row == 0;
    let mut sums = [[_mm512_setzero_ps(); ROWS]; COLUMNS];
    // Spelled out: loops and closures would be too large to be inlined, and sums would leave their registers.
    macro_rules! operands {
        ($column:expr, $step:expr, $groups:expr) => {{
            let ((weights, scales), group) = (columns[$column], $step * GROUPS);
            // SAFETY: the column's groups from this one on.
            #[allow(unsafe_code)]
            let (words, scales) = unsafe {
                let (weights, scales) = (weights.as_ptr().add(group * HALF), scales.as_ptr().add(group));
                int4_operands(weights, scales, $groups)
            };
            (factors(words), scales)
        }};
    }
    macro_rules! add_columns {
        ($first:literal, $second:literal, $step:expr, $groups:expr) => {
            let (first, first_scales) = operands!($first, $step, $groups);
            let (second, second_scales) = operands!($second, $step, $groups);
            for row in 0..ROWS {
                // SAFETY: a row has so many steps, by the assertion.
                #[allow(unsafe_code)]
                let exact = products!(first, second, unsafe { &*x[row].as_ptr().add($step) });
                let [first, second] = exact.map(|exact| _mm512_cvtepi32_ps(exact));
                sums[$first][row] = _mm512_fmadd_ps(first, first_scales, sums[$first][row]);
                sums[$second][row] = _mm512_fmadd_ps(second, second_scales, sums[$second][row]);
            }
        };
    }
    let (whole, left) = (groups / GROUPS, groups % GROUPS);
    for step in 0..whole {
        if ahead {
            columns.iter().for_each(|(weights, scales)| prefetch_int4(weights, scales, step * GROUPS));
        }
        add_columns!(0, 1, step, GROUPS);
        add_columns!(2, 3, step, GROUPS);
    }
    if left > 0 {
        add_columns!(0, 1, whole, left);
        add_columns!(2, 3, whole, left);
    }
    for index in 0..ROWS {
        let sums = sums.each_ref().map(|column| column[index]);
        let values = finish_int4(sums, task.x.scales()[row + index]);
        out[index].iter_mut().zip(values).for_each(|(line, value)| line[place] = value);
    }
}

/// Words of weights shifted and masked, as pairs of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn factors(words: __m512i) -> [__m512i; SHIFTS] {
    let mask = _mm512_set1_epi32(MASK);
    [
        _mm512_and_si512(words, mask),
        _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask),
        _mm512_and_si512(_mm512_srli_epi32::<8>(words), mask),
        // Of sixteen bits each, nothing else is left.
        _mm512_srli_epi16::<12>(words),
    ]
}

/// From the sums of four columns to their outputs, each in the order of a sum of halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish_int4(sums: [__m512; COLUMNS], unit: f32) -> [f32; COLUMNS] {
    let mut out = [0.0; COLUMNS];
    let [a, b, c, d] = sums.map(|sum| quarter(sum));
    let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    let sum = _mm_add_ps(_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd));
    // SAFETY: four numbers.
    #[allow(unsafe_code)]
    unsafe {
        _mm_storeu_ps(out.as_mut_ptr(), _mm_mul_ps(sum, _mm_set1_ps(unit)));
    }
    out
}

/// Sixteen sums as four.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(sums: __m512) -> __m128 {
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sums)));
    let sums = _mm256_add_ps(_mm512_castps512_ps256(sums), upper);
    _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums))
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn multiply_blocks(task: &BlockColumns) {
    blocks::multiply::<Registers<Wide>>(task);
}

/// Registers of 512 bits.
#[derive(Clone, Copy)]
struct Wide;

// SAFETY (of all functions): as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Vector for Wide {
    const LANES: usize = 16;
    type Integers = __m512i;
    type Floats = __m512;
    type Exact = __m512i;
    type Sixteen<T: Copy> = [T; 1];

    #[inline(always)]
    fn sixteen<T: Copy>(register: T) -> [T; 1] {
        [register; 1]
    }

    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }

    #[inline(always)]
    unsafe fn widen_unsigned(from: *const u8) -> __m512i {
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    unsafe fn four_bits(from: *const u8, _: usize) -> __m512i {
        let bytes = _mm_loadu_si128(from.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm512_cvtepu8_epi16(_mm256_and_si256(both, _mm256_set1_epi8(15)))
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: u32, _: usize) -> __m512i {
        _mm512_maskz_set1_epi16(bits, 16)
    }

    #[inline(always)]
    unsafe fn splat_i16(number: i16) -> __m512i {
        _mm512_set1_epi16(number)
    }

    #[inline(always)]
    unsafe fn splat_halves(numbers: *const i16, _: usize) -> __m512i {
        _mm512_mask_set1_epi16(_mm512_set1_epi16(*numbers), 0xffff_0000, *numbers.add(1))
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }

    #[inline(always)]
    unsafe fn shift_i16(numbers: __m512i, right: i32) -> __m512i {
        if right < 0 {
            _mm512_sll_epi16(numbers, _mm_cvtsi32_si128(-right))
        } else {
            _mm512_srl_epi16(numbers, _mm_cvtsi32_si128(right))
        }
    }

    #[inline(always)]
    unsafe fn subtract_i16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_sub_epi16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }

    #[inline(always)]
    unsafe fn begin(offset: __m512i) -> __m512i {
        offset
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpwssd_epi32(sums, a, b)
    }

    #[inline(always)]
    unsafe fn end(sums: __m512i, _: __m512i) -> __m512i {
        sums
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m512 {
        _mm512_set1_ps(number)
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(numbers)
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn multiply_subtract(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store_integers(numbers: __m512i, to: *mut i16) {
        _mm512_storeu_si512(to.cast(), numbers);
    }

    #[inline(always)]
    unsafe fn store(numbers: __m512, to: *mut f32) {
        _mm512_storeu_ps(to, numbers);
    }

    #[inline(always)]
    unsafe fn splat_f16(bits: u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_set1_epi16(bits as i16))
    }

    #[inline(always)]
    unsafe fn splat_and_widen(bits: [u16; 2]) -> (__m512, f32) {
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits[0]) | i32::from(bits[1]) << 16));
        (_mm512_broadcastss_ps(both), _mm_cvtss_f32(_mm_movehdup_ps(both)))
    }
}

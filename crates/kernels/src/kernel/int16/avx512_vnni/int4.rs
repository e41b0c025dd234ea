//! Weights in INT4.
//!
//! With several rows on Zen 4, the limit is as follows: per cycle it starts one `vpdpwssd` or fused multiply-add of 64
//! bytes, and reads one line. A step of a row and column is four `vpdpwssd` and one multiply-add, five cycles, so at
//! most four fifths of the peak of INT16 are possible. Shifts, masks and conversions have units of their own, but
//! little of their capacity is spare: a tile's rows share the unpacking, and whole steps are read without masks, which
//! would take one of these units. A step's activations are five lines; reading them for each column would take as long
//! again, so two columns share one read.

use std::arch::asm;
use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm_add_ps, _mm_cvtph_ps, _mm_loadl_epi64, _mm_maskz_loadu_epi16,
    _mm_movehl_ps, _mm_movelh_ps, _mm_mul_ps, _mm_set1_ps, _mm_shuffle_ps, _mm_storeu_ps,
    _mm256_add_ps, _mm256_castpd_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
    _mm512_and_si512, _mm512_castps_pd, _mm512_castps128_ps512, _mm512_castps512_ps256,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_extractf64x4_pd,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_permutexvar_ps,
    _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_srli_epi16, _mm512_srli_epi32,
};
use std::ops::Range;

use half::f16;

use super::super::steps::{ByteStep, GROUPS, MASK, SHIFTS, STEP, Step};
use super::super::{AHEAD, prefetch_ahead};
use super::{BLOCK, COLUMNS, Int4Columns, ROWS, tile, write};
use crate::chunks::parts;
use crate::int4::HALF;

/// Rows of the largest tile. It needs more operands than a tile with INT8 weights.
const LARGEST_TILE: usize = 4;
/// Bytes between the weights that are multiplied and those that are prefetched, in each of several streams.
const AHEAD_IN_STREAMS: usize = 1024;
/// Mask of the numbers that unpacking leaves in each byte.
const BYTES_MASK: i32 = 0x0f0f_0f0f;

/// Computes the exact sums of a [`Step`] with two columns, which share the loads of its activations. As a function, it
/// would not always be inlined, and its operands would pass through memory. With intrinsics, LLVM would split each of
/// these instructions in two, to shorten a dependency chain that is not the bottleneck.
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn multiply(task: &Int4Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    if rows == 1 {
        return only_row(task);
    }
    let distance = count / COLUMNS;
    for start in (0..distance).step_by(BLOCK) {
        let block = start..(start + BLOCK).min(distance);
        for part in parts(rows, LARGEST_TILE) {
            tile!(part.len(), tiles, task, part.start, block.clone(), distance);
        }
    }
    for row in 0..rows {
        for column in COLUMNS * distance..count {
            one_output(task, row, column);
        }
    }
}

/// Computes the only row with byte activations, whose products need half as many instructions to unpack weights.
/// [`COLUMNS`] columns, each a stream of its own, share the loads of activations: on Zen 4, adjacent columns of 768
/// bytes get half the memory bandwidth.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn only_row(task: &Int4Columns) {
    let count = task.columns.len();
    let at_once = count / COLUMNS;
    for first in 0..at_once {
        columns::<COLUMNS>(task, first, at_once, AHEAD_IN_STREAMS);
    }
    for column in COLUMNS * at_once..count {
        columns::<1>(task, column, 1, AHEAD);
    }
}

/// Computes some columns of the only row, `distance` apart from each other. Prefetches the weights and scales `ahead`
/// bytes later in each column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn columns<const COLUMNS: usize>(task: &Int4Columns, first: usize, distance: usize, ahead: usize) {
    let (whole, left) = (task.groups() / GROUPS, task.groups() % GROUPS);
    let columns: [(&[u8], &[f16]); COLUMNS] =
        std::array::from_fn(|index| task.column(first + index * distance));
    let mut sums = [_mm512_setzero_ps(); COLUMNS];
    for (index, step) in task.byte_steps().iter().enumerate() {
        let (x, group) = (operands(step), index * GROUPS);
        for ((weights, scales), sums) in columns.iter().zip(&mut sums) {
            prefetch(weights, scales, group, ahead);
            // SAFETY: the column's groups from this step's first on: four, or the rest after whole steps.
            #[allow(unsafe_code)]
            let (bytes, scales) = unsafe {
                let (weights, scales) = (
                    weights.as_ptr().add(group * HALF),
                    scales.as_ptr().add(group),
                );
                if index < whole {
                    load_whole(weights, scales)
                } else {
                    load(weights, scales, left)
                }
            };
            *sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(byte_products(bytes, &x)), scales, *sums);
        }
    }
    for (index, sums) in sums.into_iter().enumerate() {
        task.write(
            0,
            first + index * distance,
            _mm512_reduce_add_ps(sums) * task.x.scales()[0],
        );
    }
}

/// Loads the activations of a step in bytes: high bytes, low bytes, and the initial sums.
#[inline]
#[target_feature(enable = "avx512f")]
fn operands(step: &ByteStep) -> ([__m512i; 2], [__m512i; 2], __m512i) {
    let load = |bytes: &[i8; STEP]| {
        // SAFETY: 64 bytes.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_loadu_si512(bytes.as_ptr().cast())
        }
    };
    // SAFETY: sixteen sums.
    #[allow(unsafe_code)]
    let offset = unsafe { _mm512_loadu_si512(step.offset.as_ptr().cast()) };
    (
        step.high.each_ref().map(load),
        step.low.each_ref().map(load),
        offset,
    )
}

/// Computes the exact sums of a step: 256 times those of the high bytes, which have 16 bits, plus those of the low
/// bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn byte_products(
    bytes: __m512i,
    (high, low, offset): &([__m512i; 2], [__m512i; 2], __m512i),
) -> __m512i {
    let mask = _mm512_set1_epi32(BYTES_MASK);
    let factors = [
        _mm512_and_si512(bytes, mask),
        _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), mask),
    ];
    let sums = |from, x: &[__m512i; 2]| {
        _mm512_dpbusd_epi32(
            _mm512_dpbusd_epi32(from, factors[0], x[0]),
            factors[1],
            x[1],
        )
    };
    // The upper word of 256 is 0; it is multiplied only by the sign extension of a sum.
    _mm512_dpwssd_epi32(
        sums(*offset, low),
        sums(_mm512_setzero_si512(), high),
        _mm512_set1_epi32(256),
    )
}

/// Computes one row and column.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn one_output(task: &Int4Columns, row: usize, column: usize) {
    let (groups, (weights, scales)) = (task.groups(), task.column(column));
    let mut sums = _mm512_setzero_ps();
    for (index, step) in task.steps(row).iter().enumerate() {
        let group = index * GROUPS;
        // SAFETY: sixteen sums, and as many pairs for each shift; the column's groups from this step's first on.
        #[allow(unsafe_code)]
        let (offset, x, (words, scales)) = unsafe {
            (
                _mm512_loadu_si512(step.offset.as_ptr().cast()),
                step.x
                    .each_ref()
                    .map(|x| _mm512_loadu_si512(x.as_ptr().cast())),
                load(
                    weights.as_ptr().add(group * HALF),
                    scales.as_ptr().add(group),
                    GROUPS.min(groups - group),
                ),
            )
        };
        let exact = products(factors(words), &x, offset);
        sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scales, sums);
    }
    task.write(
        row,
        column,
        _mm512_reduce_add_ps(sums) * task.x.scales()[row],
    );
}

/// Computes the exact sums of a step for one column. For several rows, see `products!`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn products(factors: [__m512i; SHIFTS], x: &[__m512i; SHIFTS], offset: __m512i) -> __m512i {
    let first = _mm512_dpwssd_epi32(
        _mm512_dpwssd_epi32(offset, factors[0], x[0]),
        factors[1],
        x[1],
    );
    _mm512_dpwssd_epi32(
        _mm512_dpwssd_epi32(first, factors[2], x[2]),
        factors[3],
        x[3],
    )
}

/// Prefetches the weights `ahead` bytes after a group, and their scales.
#[inline(always)]
fn prefetch(weights: &[u8], scales: &[f16], group: usize, ahead: usize) {
    prefetch_ahead(weights.as_ptr(), group * HALF + ahead);
    prefetch_ahead(
        scales.as_ptr(),
        group * size_of::<f16>() + ahead * size_of::<f16>() / HALF,
    );
}

/// Does the same as [`load`] for four groups, without masks. Scales are converted and then spread: two instructions,
/// where LLVM, which would spread the halves first, makes three.
///
/// # Safety
/// Four groups must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,f16c")]
#[allow(unsafe_code)]
unsafe fn load_whole(weights: *const u8, scales: *const f16) -> (__m512i, __m512) {
    // SAFETY: as the caller promises.
    let (words, scales) = unsafe {
        (
            _mm512_loadu_si512(weights.cast()),
            _mm_loadl_epi64(scales.cast()),
        )
    };
    let wide = _mm512_castps128_ps512(_mm_cvtph_ps(scales));
    let spread: __m512;
    // SAFETY: an instruction that AVX-512 has, on registers.
    unsafe {
        asm!(
            "vpermps {spread}, {lanes}, {wide}",
            spread = lateout(zmm_reg) spread, lanes = in(zmm_reg) lanes(), wide = in(zmm_reg) wide,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    (words, spread)
}

/// Returns which of four scales applies to each of sixteen sums.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes() -> __m512i {
    _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
}

/// Loads up to four groups of a column: weights, and a scale for each of sixteen sums; missing groups are zeros.
///
/// # Safety
/// The given number of groups, at least one, must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
#[allow(unsafe_code)]
unsafe fn load(weights: *const u8, scales: *const f16, groups: usize) -> (__m512i, __m512) {
    let (bytes, halves) = (u64::MAX >> (STEP - groups * HALF), (1 << groups) - 1);
    // SAFETY: as the caller promises.
    let (words, scales) = unsafe {
        (
            _mm512_maskz_loadu_epi8(bytes, weights.cast()),
            _mm_maskz_loadu_epi16(halves, scales.cast()),
        )
    };
    (
        words,
        _mm512_permutexvar_ps(lanes(), _mm512_castps128_ps512(_mm_cvtph_ps(scales))),
    )
}

/// Computes some rows of [`COLUMNS`] times the columns of a block, as the function for INT8 does.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn tiles<const ROWS: usize>(task: &Int4Columns, row: usize, block: Range<usize>, distance: usize) {
    let mut out = [[[0.0; BLOCK]; COLUMNS]; ROWS];
    for (index, column) in block.clone().enumerate() {
        one_tile::<ROWS>(task, row, (column, distance), (index, &mut out));
    }
    write(
        task.out,
        row,
        task.columns.start + block.start,
        (block.len(), distance),
        &out,
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn one_tile<const ROWS: usize>(
    task: &Int4Columns,
    row: usize,
    (column, distance): (usize, usize),
    (place, out): (usize, &mut [[[f32; BLOCK]; COLUMNS]; ROWS]),
) {
    let x: [&[Step]; ROWS] = std::array::from_fn(|index| task.steps(row + index));
    let columns: [(&[u8], &[f16]); COLUMNS] =
        std::array::from_fn(|index| task.column(column + index * distance));
    let groups = task.groups();
    assert!(x.iter().all(|x| x.len() == groups.div_ceil(GROUPS)));
    // Only the first rows prefetch: later rows find the weights in the cache.
    let ahead = row == 0;
    let mut sums = [[_mm512_setzero_ps(); ROWS]; COLUMNS];
    // Written without loops and closures, which would be too large to be inlined; sums would then leave their
    // registers.
    macro_rules! operands {
        ($column:expr, $step:expr, $groups:expr) => {{
            let ((weights, scales), group) = (columns[$column], $step * GROUPS);
            // SAFETY: the column's groups from this one on.
            #[allow(unsafe_code)]
            let (words, scales) = unsafe {
                let (weights, scales) = (
                    weights.as_ptr().add(group * HALF),
                    scales.as_ptr().add(group),
                );
                load(weights, scales, $groups)
            };
            (factors(words), scales)
        }};
    }
    macro_rules! add_columns {
        ($first:literal, $second:literal, $step:expr, $groups:expr) => {
            let (first, first_scales) = operands!($first, $step, $groups);
            let (second, second_scales) = operands!($second, $step, $groups);
            for row in 0..ROWS {
                // SAFETY: a row has at least this many steps, by the assertion.
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
            columns
                .iter()
                .for_each(|(weights, scales)| prefetch(weights, scales, step * GROUPS, AHEAD));
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
        let values = finish(sums, task.x.scales()[row + index]);
        out[index]
            .iter_mut()
            .zip(values)
            .for_each(|(line, value)| line[place] = value);
    }
}

/// Shifts and masks words of weights into pairs of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn factors(words: __m512i) -> [__m512i; SHIFTS] {
    let mask = _mm512_set1_epi32(MASK);
    [
        _mm512_and_si512(words, mask),
        _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask),
        _mm512_and_si512(_mm512_srli_epi32::<8>(words), mask),
        // A logical shift by 12 leaves only the upper four of sixteen bits.
        _mm512_srli_epi16::<12>(words),
    ]
}

/// Computes the outputs of four columns from their sums, adding one half of the sums to the other repeatedly.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish(sums: [__m512; COLUMNS], unit: f32) -> [f32; COLUMNS] {
    let mut out = [0.0; COLUMNS];
    let [a, b, c, d] = sums.map(|sum| quarter(sum));
    let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    let sum = _mm_add_ps(
        _mm_shuffle_ps::<0b10_00_10_00>(ab, cd),
        _mm_shuffle_ps::<0b11_01_11_01>(ab, cd),
    );
    // SAFETY: four numbers.
    #[allow(unsafe_code)]
    unsafe {
        _mm_storeu_ps(out.as_mut_ptr(), _mm_mul_ps(sum, _mm_set1_ps(unit)));
    }
    out
}

/// Reduces sixteen sums to four.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(sums: __m512) -> __m128 {
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sums)));
    let sums = _mm256_add_ps(_mm512_castps512_ps256(sums), upper);
    _mm_add_ps(
        _mm256_castps256_ps128(sums),
        _mm256_extractf128_ps::<1>(sums),
    )
}

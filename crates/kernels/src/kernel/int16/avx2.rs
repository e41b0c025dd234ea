//! AVX2: `vpmaddwd` adds two products of 16-bit numbers, in each of eight sums.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_add_ps, _mm_add_ss, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64,
    _mm_loadu_si128, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256,
    _mm256_castps128_ps256, _mm256_castps256_ps128, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mullo_epi32, _mm256_permutevar8x32_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_srli_epi32,
    _mm256_storeu_si256,
};

use half::f16;

use triad_blocks::super_block::PARTS;

use super::blocks::{self, Sums};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::steps::{GROUPS, MASK, SHIFTS, STEP, SUMS, Step};
use super::tiles::{ROWS, each_tile};
use crate::int4::HALF;
use crate::tier::Tier;

/// Numbers that an instruction takes.
const LANES: usize = 16;
/// Columns of a tile with weights in INT8: with [`ROWS`], and as two halves of a step in INT4, they make eight registers of
/// sums.
const COLUMNS: usize = 2;

/// The kernel; having one proves that the processor can run it.
pub(in crate::kernel) struct Avx2(());

impl Avx2 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        (Tier::Avx2.is_supported() && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

impl Int16Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2-vpmaddwd"
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

#[target_feature(enable = "avx2")]
fn multiply_int8(task: &Int8Columns) {
    let (rows, count) = (task.x.rows(), task.columns.len());
    // One row meets one column after the other: the processor fetches one stream ahead faster than several.
    let distance = if rows == 1 { 0 } else { count / COLUMNS };
    each_tile(rows, distance, COLUMNS * task.x.in_features(), |rows, row, column| {
        let columns = [column, column + distance];
        match rows {
            1 => int8_tile::<1, COLUMNS>(task, row, columns),
            2 => int8_tile::<2, COLUMNS>(task, row, columns),
            3 => int8_tile::<3, COLUMNS>(task, row, columns),
            _ => int8_tile::<ROWS, COLUMNS>(task, row, columns),
        }
    });
    for column in COLUMNS * distance..count {
        for row in 0..rows {
            int8_tile::<1, 1>(task, row, [column]);
        }
    }
}

/// Some rows of some columns. Two that are far from each other each begin a stream of their own that the processor
/// fetches ahead.
#[target_feature(enable = "avx2")]
fn int8_tile<const ROWS: usize, const COLUMNS: usize>(task: &Int8Columns, row: usize, columns: [usize; COLUMNS]) {
    let depth = task.x.in_features();
    let x: [&[i16]; ROWS] = std::array::from_fn(|index| task.x.row(row + index));
    let weights = columns.map(|column| task.weights_of(column));
    assert!(x.iter().all(|x| x.len() == depth) && weights.iter().all(|weights| weights.len() == depth));
    let mut sums = [[_mm256_setzero_si256(); COLUMNS]; ROWS];
    let whole = depth / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let mut factors = [_mm256_setzero_si256(); COLUMNS];
        for (factor, weights) in factors.iter_mut().zip(weights) {
            // SAFETY: so many more numbers are in the column.
            #[allow(unsafe_code)]
            let bytes = unsafe { _mm_loadu_si128(weights.as_ptr().add(first).cast()) };
            *factor = _mm256_cvtepi8_epi16(bytes);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: so many more numbers are in the row.
            #[allow(unsafe_code)]
            let x = unsafe { _mm256_loadu_si256(x.as_ptr().add(first).cast()) };
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(factor, x));
            }
        }
    }
    for (index, (sums, x)) in sums.into_iter().zip(x).enumerate() {
        let unit = task.x.scales()[row + index];
        for ((column, weights), sum) in columns.into_iter().zip(weights).zip(sums) {
            let rest = x[whole..].iter().zip(&weights[whole..]);
            let rest = rest.map(|(x, weight)| i32::from(*x) * i32::from(*weight));
            let sum: i32 = rest.chain(lanes(sum)).sum();
            task.write(row + index, column, sum as f32 * (unit * task.scales[column]));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(sums: __m256i) -> [i32; 8] {
    let mut lanes = [0; 8];
    // SAFETY: the array is as long as a register.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums);
    }
    lanes
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_int4(task: &Int4Columns) {
    each_tile(task.x.rows(), task.columns.len(), task.groups() * HALF, |rows, row, column| match rows {
        1 => int4_tile::<1>(task, row, column),
        2 => int4_tile::<2>(task, row, column),
        3 => int4_tile::<3>(task, row, column),
        _ => int4_tile::<ROWS>(task, row, column),
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn int4_tile<const ROWS: usize>(task: &Int4Columns, row: usize, column: usize) {
    let groups = task.groups();
    let x: [&[Step]; ROWS] = std::array::from_fn(|index| task.steps(row + index));
    assert!(x.iter().all(|x| x.len() == groups.div_ceil(GROUPS)));
    let (weights, scales) = task.column(column);
    let (weights, rest) = weights.as_chunks::<STEP>();
    let (scales, rest_scales) = scales.as_chunks::<GROUPS>();
    let (mut last, mut last_scales) = ([0; STEP], [f16::ZERO; GROUPS]);
    last[..rest.len()].copy_from_slice(rest);
    last_scales[..rest_scales.len()].copy_from_slice(rest_scales);
    let last = (!rest.is_empty()).then_some((&last, &last_scales));
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for (step, (weights, scales)) in weights.iter().zip(scales).chain(last).enumerate() {
        // SAFETY: four numbers of two bytes.
        #[allow(unsafe_code)]
        let scales = _mm256_castps128_ps256(_mm_cvtph_ps(unsafe { _mm_loadl_epi64(scales.as_ptr().cast()) }));
        let groups = [_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)];
        for (half, groups) in groups.into_iter().enumerate() {
            // SAFETY: half of a step.
            #[allow(unsafe_code)]
            let words = unsafe { _mm256_loadu_si256(weights[half * STEP / 2..].as_ptr().cast()) };
            let factors = factors(words);
            let scales = _mm256_permutevar8x32_ps(scales, groups);
            for (sums, x) in sums.iter_mut().zip(x) {
                let (lane, step) = (half * SUMS / 2, &x[step]);
                // SAFETY: eight sums from the half's first on.
                #[allow(unsafe_code)]
                let mut exact = unsafe { _mm256_loadu_si256(step.offset[lane..].as_ptr().cast()) };
                for (factor, x) in factors.into_iter().zip(&step.x) {
                    // SAFETY: as many pairs.
                    #[allow(unsafe_code)]
                    let x = unsafe { _mm256_loadu_si256(x[2 * lane..].as_ptr().cast()) };
                    exact = _mm256_add_epi32(exact, _mm256_madd_epi16(factor, x));
                }
                sums[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scales, sums[half]);
            }
        }
    }
    for (index, [low, high]) in sums.into_iter().enumerate() {
        task.write(row + index, column, sum(_mm256_add_ps(low, high)) * task.x.scales()[row + index]);
    }
}

/// Words of weights shifted and masked, as pairs of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn factors(words: __m256i) -> [__m256i; SHIFTS] {
    let mask = _mm256_set1_epi32(MASK);
    [
        _mm256_and_si256(words, mask),
        _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask),
        _mm256_and_si256(_mm256_srli_epi32::<8>(words), mask),
        _mm256_and_si256(_mm256_srli_epi32::<12>(words), mask),
    ]
}

/// The sum of eight, halves first.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(sums: __m256) -> f32 {
    let sums: __m128 = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
    _mm_cvtss_f32(_mm_add_ss(sums, _mm_shuffle_ps::<1>(sums, sums)))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_blocks(task: &BlockColumns) {
    blocks::multiply::<TwoHalves>(task);
}

/// Sixteen sums as two registers of eight.
#[derive(Clone, Copy)]
struct TwoHalves([__m256; 2]);

// SAFETY (of all functions): they are inlined into `multiply_blocks`, which is called where the processor has the
// instructions.
#[allow(unsafe_code)]
impl Sums for TwoHalves {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: as above.
        Self(unsafe { [_mm256_setzero_ps(); 2] })
    }

    #[inline(always)]
    fn add_products(self, integers: &[i16], x: &[i16], scale: f32) -> Self {
        let numbers = integers.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0);
        // SAFETY: as above; sixteen numbers each.
        unsafe {
            let mut exact = [_mm256_setzero_si256(); 2];
            for (index, (integers, x)) in numbers.enumerate() {
                let [integers, x] = [integers, x].map(|numbers| _mm256_loadu_si256(numbers.as_ptr().cast()));
                exact[index % 2] = _mm256_add_epi32(exact[index % 2], _mm256_madd_epi16(integers, x));
            }
            self.add(exact, scale)
        }
    }

    #[inline(always)]
    fn subtract_products(self, minimums: &[i32; PARTS], sums: &[i32; PARTS], scale: f32) -> Self {
        let half = |half: usize| {
            // SAFETY: as above; eight numbers each.
            unsafe {
                let [minimums, sums] =
                    [minimums, sums].map(|numbers| _mm256_loadu_si256(numbers[8 * half..].as_ptr().cast()));
                _mm256_mullo_epi32(minimums, sums)
            }
        };
        self.add([half(0), half(1)], -scale)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        // SAFETY: as above.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn total(self) -> f32 {
        // SAFETY: as above.
        unsafe { sum(_mm256_add_ps(self.0[0], self.0[1])) }
    }
}

impl TwoHalves {
    /// Adds integers, times `scale`.
    #[inline(always)]
    fn add(self, exact: [__m256i; 2], scale: f32) -> Self {
        let Self([low, high]) = self;
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            let add = |exact, sums| _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_set1_ps(scale), sums);
            Self([add(exact[0], low), add(exact[1], high)])
        }
    }
}

//! AVX2: `vpmaddwd` adds two products of 16-bit numbers to each other, eight times. Both operands are widened:
//! activations before they are used, a stretch of some rows at a time; weights as they are loaded.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_cvtepi8_epi16,
    _mm256_cvtepi32_ps, _mm256_hadd_epi32, _mm256_loadu_ps, _mm256_madd_epi16, _mm256_mul_ps,
    _mm256_permute4x64_epi64, _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_storeu_ps,
};

use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::isa::Isa;

/// Rows of the largest tile: with [`PARTS`] they use twelve of sixteen registers.
const ROWS: usize = 6;
/// Registers with the sums of a tile's channels: a register has eight sums, two for each of four channels.
const PARTS: usize = 2;
/// Output channels per tile.
const CHANNELS: usize = 4 * PARTS;
/// Adjacent tiles that use the same widened activations.
const TILES: usize = 8;
/// Steps per stretch: together with the weights of a block it stays in the first-level cache.
const STRETCH: usize = 128;

/// Widened activations of some rows.
type Stretch<const ROWS: usize> = [[i16; STRETCH * QUAD]; ROWS];

/// The sums of a tile.
type Sums<const ROWS: usize> = [[__m256i; PARTS]; ROWS];

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx2(());

impl Avx2 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::Avx2.is_supported().then_some(Self(()))
    }
}

impl Int8Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2-vpmaddwd"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(rectangle);
        }
    }
}

#[target_feature(enable = "avx2")]
fn multiply(rectangle: &Rectangle) {
    for column in rectangle.columns.clone().step_by(TILES * CHANNELS) {
        let mut row = rectangle.rows.start;
        while row + ROWS <= rectangle.rows.end {
            tiles::<ROWS>(rectangle, row, column);
            row += ROWS;
        }
        match rectangle.rows.end - row {
            0 => {}
            1 => tiles::<1>(rectangle, row, column),
            2 => tiles::<2>(rectangle, row, column),
            3 => tiles::<3>(rectangle, row, column),
            4 => tiles::<4>(rectangle, row, column),
            _ => tiles::<5>(rectangle, row, column),
        }
    }
}

/// Computes some rows of up to [`TILES`] tiles from `column` on.
#[target_feature(enable = "avx2")]
fn tiles<const ROWS: usize>(rectangle: &Rectangle, row: usize, column: usize) {
    let tiles = (rectangle.columns.end - column)
        .div_ceil(CHANNELS)
        .min(TILES);
    let steps = rectangle.weight.in_features.div_ceil(QUAD);
    let mut x: Stretch<ROWS> = [[0; STRETCH * QUAD]; ROWS];
    let mut sums: [Sums<ROWS>; TILES] = [[[_mm256_setzero_si256(); PARTS]; ROWS]; TILES];
    for first in (0..steps).step_by(STRETCH) {
        let stretch = first..(first + STRETCH).min(steps);
        for (index, x) in x.iter_mut().enumerate() {
            let bytes = rectangle.x.quads(row + index)[stretch.clone()].as_flattened();
            // Activations are stored 128 too large.
            x.iter_mut()
                .zip(bytes)
                .for_each(|(x, byte)| *x = i16::from(*byte) - 128);
        }
        for (tile, sums) in sums.iter_mut().enumerate().take(tiles) {
            let channel = column + tile * CHANNELS;
            let weights = &rectangle.weight.block(channel / BLOCK)[stretch.clone()];
            add_products(&x, weights, channel % BLOCK, sums);
        }
    }
    for (tile, sums) in sums.iter().enumerate().take(tiles) {
        finish(rectangle, row, column + tile * CHANNELS, sums);
    }
}

/// Adds the products of a stretch of activations and the weights of [`CHANNELS`] channels of a block, from `channel`
/// on.
#[target_feature(enable = "avx2")]
fn add_products<const ROWS: usize>(
    x: &Stretch<ROWS>,
    weights: &[[i8; STEP]],
    channel: usize,
    total: &mut Sums<ROWS>,
) {
    assert!(weights.len() <= STRETCH && channel + CHANNELS <= BLOCK);
    let mut sums = *total;
    for (step, weights) in weights.iter().enumerate() {
        let mut factors = [_mm256_setzero_si256(); PARTS];
        for (part, factor) in factors.iter_mut().enumerate() {
            // SAFETY: a step has four bytes for each channel of a block, by the assertion.
            #[allow(unsafe_code)]
            let bytes = unsafe {
                _mm_loadu_si128(
                    weights
                        .as_ptr()
                        .add(channel * QUAD + part * 4 * QUAD)
                        .cast(),
                )
            };
            *factor = _mm256_cvtepi8_epi16(bytes);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: a stretch has a quad for each step, by the assertion.
            #[allow(unsafe_code)]
            let quad = unsafe { x.as_ptr().add(step * QUAD).cast::<i64>().read_unaligned() };
            let quad = _mm256_set1_epi64x(quad);
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(factor, quad));
            }
        }
    }
    *total = sums;
}

/// Computes a tile's outputs from its sums.
#[target_feature(enable = "avx2")]
fn finish<const ROWS: usize>(rectangle: &Rectangle, row: usize, column: usize, sums: &Sums<ROWS>) {
    let columns = column..(column + CHANNELS).min(rectangle.columns.end);
    let scales = load(&rectangle.weight.scales[columns.clone()]);
    let biases = rectangle
        .bias
        .map_or(_mm256_setzero_ps(), |bias| load(&bias[columns.clone()]));
    for (index, [first, second]) in sums.iter().enumerate() {
        // Adds neighbours, and restores the order of channels.
        let sum = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(*first, *second));
        let row_scale = _mm256_set1_ps(rectangle.x.scales()[row + index]);
        let value = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(row_scale, scales));
        let value = _mm256_add_ps(value, biases);
        let mut values = [0.0; CHANNELS];
        // SAFETY: the array is as long as a register; only this task writes the rectangle.
        #[allow(unsafe_code)]
        let out = unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), value);
            rectangle.out.row(row + index, columns.clone())
        };
        out.copy_from_slice(&values[..out.len()]);
    }
}

/// Loads up to eight numbers, padded with zeros.
#[target_feature(enable = "avx2")]
fn load(values: &[f32]) -> __m256 {
    let mut padded = [0.0; CHANNELS];
    padded[..values.len()].copy_from_slice(values);
    // SAFETY: the array is as long as a register.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_ps(padded.as_ptr())
    }
}

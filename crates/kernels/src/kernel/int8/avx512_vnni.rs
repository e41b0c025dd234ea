//! AVX-512 with VNNI (Ice Lake, Zen 4 and later): `vpdpbusd` adds four products of unsigned by signed
//! bytes to each of sixteen sums.

use std::arch::x86_64::{
    __m512i, __mmask16, _MM_HINT_T1, _mm_prefetch, _mm512_add_ps, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi32,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_sub_epi32,
};

use super::avx512_rows;
use super::quantize::ActivationRow;
use super::rows::Outliers;
use super::shadow::ShadowColumns;
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::chunks::parts;
use crate::isa::Isa;
use crate::kernel::avx512::{lanes, load};

/// Rows of the largest tile: with [`BLOCKS`] they use 24 registers for sums and leave eight for operands.
const ROWS: usize = 6;
/// Blocks of output channels of the largest tile.
const BLOCKS: usize = 4;
/// Up to this many rows, memory limits the speed. Tiles then have at most [`FEW_ROWS`], so that there are several tiles
/// and each of them prefetches weights.
const FEW: usize = 16;
const FEW_ROWS: usize = 4;
/// Steps between prefetches of lines that are needed later.
const STRETCH: usize = 8;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx512Vnni(());

impl Avx512Vnni {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::has_vnni().then_some(Self(()))
    }
}

impl Int8Kernel for Avx512Vnni {
    fn name(&self) -> &'static str {
        "avx512-vpdpbusd"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(rectangle);
        }
    }

    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        // SAFETY: as in `multiply`.
        #[allow(unsafe_code)]
        unsafe {
            avx512_rows::quantize(row, numbers, outliers);
        }
    }

    fn shadow(&self, columns: &ShadowColumns) {
        // SAFETY: as in `multiply`.
        #[allow(unsafe_code)]
        unsafe {
            avx512_rows::shadow(columns);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiply(rectangle: &Rectangle) {
    let mut column = rectangle.columns.start;
    while column < rectangle.columns.end {
        if rectangle.columns.end - column > (BLOCKS - 1) * BLOCK {
            panel::<BLOCKS>(rectangle, column);
            column += BLOCKS * BLOCK;
        } else {
            panel::<1>(rectangle, column);
            column += BLOCK;
        }
    }
}

/// Computes all rows of some blocks of output channels, and prefetches the weights of the following blocks. A single
/// tile prefetches nothing: it reads its own weights from memory, by the hardware prefetcher.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn panel<const BLOCKS: usize>(rectangle: &Rectangle, column: usize) {
    let mut ahead = rectangle.weight.blocks(column / BLOCK + BLOCKS, BLOCKS);
    let most = if rectangle.rows.len() <= FEW {
        FEW_ROWS
    } else {
        ROWS
    };
    let tiles = rectangle.rows.len().div_ceil(most);
    let lines = if tiles > 1 {
        ahead.len().div_ceil(tiles)
    } else {
        0
    };
    for part in parts(rectangle.rows.len(), most) {
        let (row, now) = (rectangle.rows.start + part.start, lines.min(ahead.len()));
        let now = ahead.split_off(..now).expect("no more than are left");
        match part.len() {
            1 => tile::<1, BLOCKS>(rectangle, row, column, now),
            2 => tile::<2, BLOCKS>(rectangle, row, column, now),
            3 => tile::<3, BLOCKS>(rectangle, row, column, now),
            4 => tile::<4, BLOCKS>(rectangle, row, column, now),
            5 => tile::<5, BLOCKS>(rectangle, row, column, now),
            _ => tile::<ROWS, BLOCKS>(rectangle, row, column, now),
        }
    }
}

/// Computes some rows of some blocks: all sums stay in registers from the first input feature to the last. Prefetches
/// `ahead`, weights that are needed later, into the second-level cache.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile<const ROWS: usize, const BLOCKS: usize>(
    rectangle: &Rectangle,
    row: usize,
    column: usize,
    ahead: &[[i8; STEP]],
) {
    let steps = rectangle.weight.in_features.div_ceil(QUAD);
    let columns = |block: usize| {
        let first = column + block * BLOCK;
        first..(first + BLOCK).min(rectangle.columns.end)
    };
    let mut sums = [[_mm512_setzero_si512(); BLOCKS]; ROWS];
    let mut weights: [&[[i8; STEP]]; BLOCKS] = [&[]; BLOCKS];
    for (block, weights) in weights.iter_mut().enumerate() {
        *weights = rectangle.weight.block(column / BLOCK + block);
        // Activations are stored 128 too large.
        let row_sums = &rectangle.weight.sums[columns(block)];
        let excess = _mm512_slli_epi32::<7>(load_i32(row_sums, lanes(row_sums.len())));
        for sums in &mut sums {
            sums[block] = _mm512_sub_epi32(_mm512_setzero_si512(), excess);
        }
    }
    let mut x: [&[[u8; QUAD]]; ROWS] = [&[]; ROWS];
    for (index, x) in x.iter_mut().enumerate() {
        *x = rectangle.x.quads(row + index);
    }
    assert!(
        weights.iter().all(|block| block.len() == steps) && x.iter().all(|row| row.len() == steps)
    );
    // Prefetches the lines of the output while sums are computed, so that no store at the end waits for one.
    for index in 0..ROWS {
        rectangle.out.prefetch::<BLOCKS>(row + index, column);
    }
    let lines = (ahead.len() * STRETCH).div_ceil(steps);
    let mut ahead = ahead.iter();
    for first in (0..steps).step_by(STRETCH) {
        for line in ahead.by_ref().take(lines) {
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr());
        }
        for step in first..(first + STRETCH).min(steps) {
            let mut factors = [_mm512_setzero_si512(); BLOCKS];
            for (factor, block) in factors.iter_mut().zip(weights) {
                // SAFETY: `step` is below the length, by the assertion; a step is as long as a register.
                #[allow(unsafe_code)]
                unsafe {
                    *factor = _mm512_loadu_si512(block.as_ptr().add(step).cast());
                }
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                // SAFETY: `step` is below the length, by the assertion.
                #[allow(unsafe_code)]
                let quad = unsafe { *x.get_unchecked(step) };
                let quad = _mm512_set1_epi32(i32::from_le_bytes(quad));
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = _mm512_dpbusd_epi32(*sum, quad, factor);
                }
            }
        }
    }
    let mut scales = [_mm512_setzero_ps(); BLOCKS];
    let mut biases = [_mm512_setzero_ps(); BLOCKS];
    for (block, (scales, biases)) in scales.iter_mut().zip(&mut biases).enumerate() {
        let columns = columns(block);
        *scales = load(&rectangle.weight.scales[columns.clone()]);
        if let Some(bias) = rectangle.bias {
            *biases = load(&bias[columns]);
        }
    }
    let row_scales = rectangle.x.scales()[row..]
        .first_chunk::<ROWS>()
        .expect("every row has a scale");
    for ((index, sums), row_scale) in sums.into_iter().enumerate().zip(row_scales) {
        let row_scale = _mm512_set1_ps(*row_scale);
        for (block, ((sum, scale), bias)) in sums.into_iter().zip(scales).zip(biases).enumerate() {
            let value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(row_scale, scale));
            let value = _mm512_add_ps(value, bias);
            // SAFETY: only this task writes the rectangle; the mask covers the slice's length.
            #[allow(unsafe_code)]
            unsafe {
                let out = rectangle.out.row(row + index, columns(block));
                _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes(out.len()), value);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn load_i32(values: &[i32], mask: __mmask16) -> __m512i {
    debug_assert_eq!(mask, lanes(values.len()));
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_maskz_loadu_epi32(mask, values.as_ptr())
    }
}

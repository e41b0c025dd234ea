//! What AVX-512 does with rows of activations: quantizes them, and multiplies their outliers.

use std::arch::x86_64::{
    __m512, __mmask16, _CMP_NLE_UQ, _mm_mask_storeu_epi8, _mm_set1_epi8, _mm_xor_si128, _mm512_abs_ps,
    _mm512_add_epi32, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtps_epi32,
    _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_compress_epi32,
    _mm512_maskz_compress_ps, _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps, _mm512_storeu_si512,
};

use std::ops::Range;

use super::LARGEST;
use super::activations::{ActivationRow, OFFSET, Outliers};
use super::layout::{BLOCK, QUAD, STEP};
use super::shadow::ShadowColumns;

/// Numbers of a register.
const LANES: usize = 16;
/// Rows between the one whose shadow is computed and the one that is fetched.
const ROWS_AHEAD: usize = 4;

/// See [`Kernel::quantize`](super::kernel::Kernel::quantize).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) fn quantize(row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
    let ActivationRow { x, smoothing, inverse, limit } = *row;
    assert!(numbers.len() == x.len() && smoothing.is_none_or(|smoothing| smoothing.len() == x.len()));
    let Outliers { channels, numbers: beyond } = outliers;
    let mut count = channels.len();
    assert_eq!(count, beyond.len(), "a number for each channel");
    // Whole registers are written behind the last outlier.
    channels.reserve(x.len() + LANES);
    beyond.reserve(x.len() + LANES);
    let (largest, smallest) = (_mm512_set1_ps(LARGEST), _mm512_set1_ps(-LARGEST));
    let lane_numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Where nothing but what is no number is beyond, that is rare.
    let rare = limit == f32::MAX;
    for first in (0..x.len()).step_by(LANES) {
        let mask = lanes(x.len() - first);
        // SAFETY: the mask covers what is left of the slices.
        #[allow(unsafe_code)]
        let x = unsafe {
            let x = _mm512_maskz_loadu_ps(mask, x.as_ptr().add(first));
            match smoothing {
                Some(smoothing) => _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, smoothing.as_ptr().add(first))),
                None => x,
            }
        };
        let scaled = _mm512_mul_ps(x, _mm512_set1_ps(inverse));
        let clipped = _mm512_min_ps(_mm512_max_ps(scaled, smallest), largest);
        let stored = _mm_xor_si128(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(clipped)), _mm_set1_epi8(OFFSET as i8));
        // SAFETY: the mask covers what is left of the slice.
        #[allow(unsafe_code)]
        unsafe {
            _mm_mask_storeu_epi8(numbers.as_mut_ptr().add(first).cast(), mask, stored);
        }
        let exceeds = mask & _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_abs_ps(x), _mm512_set1_ps(limit));
        if rare && exceeds == 0 {
            continue;
        }
        let numbers = _mm512_add_epi32(lane_numbers, _mm512_set1_epi32(first as i32));
        // SAFETY: at most as many as there are activations were counted before, and both have room for a register more.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_si512(channels.as_mut_ptr().add(count).cast(), _mm512_maskz_compress_epi32(exceeds, numbers));
            _mm512_storeu_ps(beyond.as_mut_ptr().add(count), _mm512_maskz_compress_ps(exceeds, x));
        }
        count += exceeds.count_ones() as usize;
    }
    // SAFETY: so many were written.
    #[allow(unsafe_code)]
    unsafe {
        channels.set_len(count);
        beyond.set_len(count);
    }
}

/// See [`Kernel::shadow`](super::kernel::Kernel::shadow).
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn shadow(columns: &ShadowColumns) {
    let mut first = columns.columns.start;
    while first < columns.columns.end {
        first += match (columns.columns.end - first).div_ceil(BLOCK) {
            8.. => blocks::<8>(columns, first),
            4.. => blocks::<4>(columns, first),
            _ => blocks::<1>(columns, first),
        };
    }
}

/// The shadow of some blocks, which begin with output channel `first`. Answers how many channels they have.
#[target_feature(enable = "avx512f,avx512vnni")]
fn blocks<const BLOCKS: usize>(columns: &ShadowColumns, first: usize) -> usize {
    let ShadowColumns { x, weight, columns: Range { end, .. }, out, add } = *columns;
    assert_eq!(x.in_features(), weight.in_features, "as many channels as the weight reads");
    let of_block = |index: usize| first + index * BLOCK..(first + (index + 1) * BLOCK).min(end);
    let mut blocks: [&[[i8; STEP]]; BLOCKS] = [&[]; BLOCKS];
    let mut scales = [_mm512_setzero_ps(); BLOCKS];
    for (index, (block, scales)) in blocks.iter_mut().zip(&mut scales).enumerate() {
        *block = weight.block(first / BLOCK + index);
        *scales = load(&weight.scales[of_block(index)]);
    }
    for (row, channels, remainders) in columns.rows() {
        out.prefetch(row + ROWS_AHEAD, first..of_block(BLOCKS - 1).end);
        let mut sums = [_mm512_setzero_ps(); BLOCKS];
        for (channel, remainder) in channels.iter().zip(remainders) {
            let channel = *channel as usize;
            // A one at the place of the channel's weight: the product with a quad is that weight.
            let one = _mm512_set1_epi32(1 << (8 * (channel % QUAD)));
            let remainder = _mm512_set1_ps(*remainder);
            for (sum, block) in sums.iter_mut().zip(blocks) {
                // SAFETY: a block has a step for every four channels, and a row's channels are below their number; a
                // step is as long as a register.
                #[allow(unsafe_code)]
                let quads = unsafe { _mm512_loadu_si512(block.as_ptr().add(channel / QUAD).cast()) };
                let number = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), one, quads));
                // Rounded twice, as in plain Rust.
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(remainder, number));
            }
        }
        for (index, (sum, scale)) in sums.into_iter().zip(scales).enumerate() {
            // SAFETY: these columns belong to this task alone.
            #[allow(unsafe_code)]
            let out = unsafe { out.row(row, of_block(index)) };
            let shadow = _mm512_mul_ps(sum, scale);
            let value = if add { _mm512_add_ps(load(out), shadow) } else { shadow };
            // SAFETY: the mask covers the slice.
            #[allow(unsafe_code)]
            unsafe {
                _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes(out.len()), value);
            }
        }
    }
    BLOCKS * BLOCK
}

/// At most sixteen numbers, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(numbers: &[f32]) -> __m512 {
    // SAFETY: the mask covers the slice.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_maskz_loadu_ps(lanes(numbers.len()), numbers.as_ptr())
    }
}

/// The mask of the first lanes, of all if there are more.
fn lanes(count: usize) -> __mmask16 {
    if count >= LANES { __mmask16::MAX } else { (1 << count) - 1 }
}

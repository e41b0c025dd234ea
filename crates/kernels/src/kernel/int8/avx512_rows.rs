//! AVX-512 functions for rows of activations: quantization, and products of their outliers.

use std::arch::x86_64::{
    __m512, __m512i, __mmask16, _CMP_NLE_UQ, _mm_mask_storeu_epi8, _mm_set1_epi8, _mm_xor_si128,
    _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8,
    _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_dpbusd_epi32, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_compress_epi32,
    _mm512_maskz_compress_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_packs_epi16,
    _mm512_packs_epi32, _mm512_permutexvar_epi32, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use std::ops::Range;

use super::LARGEST;
use super::quantize::ActivationRow;
use super::rows::{OFFSET, Outliers};
use super::shadow::ShadowColumns;
use super::weight::{BLOCK, QUAD, STEP};
use crate::kernel::avx512::{lanes, load};

/// Numbers per register.
const LANES: usize = 16;
/// Distance in rows between the row whose shadow is computed and the one that is prefetched.
const ROWS_AHEAD: usize = 4;

/// Implements [`Int8Kernel::quantize`](super::Int8Kernel::quantize).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) fn quantize(row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
    let ActivationRow {
        x,
        smoothing,
        inverse,
        limit,
    } = *row;
    assert!(
        numbers.len() == x.len() && smoothing.is_none_or(|smoothing| smoothing.len() == x.len())
    );
    outliers.reserve(x.len() + LANES);
    let inverse = _mm512_set1_ps(inverse);
    // The order of 32-bit groups after packing four registers.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let (whole, rest) = numbers.as_chunks_mut::<{ 4 * LANES }>();
    let first_of_rest = whole.len() * 4 * LANES;
    for (index, numbers) in whole.iter_mut().enumerate() {
        let places = [0, 1, 2, 3].map(|register| index * 4 * LANES + register * LANES);
        let mut values = [_mm512_setzero_ps(); 4];
        for (value, first) in values.iter_mut().zip(places) {
            // SAFETY: `x` and `smoothing` have at least sixteen more numbers.
            #[allow(unsafe_code)]
            unsafe {
                *value = _mm512_loadu_ps(x.as_ptr().add(first));
                if let Some(smoothing) = smoothing {
                    *value = _mm512_mul_ps(*value, _mm512_loadu_ps(smoothing.as_ptr().add(first)));
                }
            }
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|register| nearest(values[register], inverse));
        let packed = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        let stored = _mm512_xor_si512(
            _mm512_permutexvar_epi32(order, packed),
            _mm512_set1_epi8(OFFSET as i8),
        );
        // SAFETY: 64 bytes.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_si512(numbers.as_mut_ptr().cast(), stored);
        }
        let exceeding = [0, 1, 2, 3].map(|register| exceeding(values[register], limit));
        if exceeding.iter().any(|mask| *mask != 0) {
            for ((value, exceeding), first) in values.into_iter().zip(exceeding).zip(places) {
                append(outliers, value, exceeding, first);
            }
        }
    }
    for (index, numbers) in rest.chunks_mut(LANES).enumerate() {
        let first = first_of_rest + index * LANES;
        let places = first..first + numbers.len();
        let mut value = load(&x[places.clone()]);
        if let Some(smoothing) = smoothing {
            value = _mm512_mul_ps(value, load(&smoothing[places]));
        }
        let stored = _mm_xor_si128(
            _mm512_cvtepi32_epi8(nearest(value, inverse)),
            _mm_set1_epi8(OFFSET as i8),
        );
        let mask = lanes(numbers.len());
        // SAFETY: the mask covers the slice.
        #[allow(unsafe_code)]
        unsafe {
            _mm_mask_storeu_epi8(numbers.as_mut_ptr().cast(), mask, stored);
        }
        append(outliers, value, mask & exceeding(value, limit), first);
    }
}

/// Computes the nearest integers to x / scale, from −127 to 127.
#[inline]
#[target_feature(enable = "avx512f")]
fn nearest(x: __m512, inverse: __m512) -> __m512i {
    let (smallest, largest) = (_mm512_set1_ps(-LARGEST), _mm512_set1_ps(LARGEST));
    _mm512_cvtps_epi32(_mm512_min_ps(
        _mm512_max_ps(_mm512_mul_ps(x, inverse), smallest),
        largest,
    ))
}

/// Returns a mask of the magnitudes above the limit and of NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn exceeding(x: __m512, limit: f32) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_abs_ps(x), _mm512_set1_ps(limit))
}

/// Appends the lanes of `x` in `mask`, which are channels from `first` on. The lists must have capacity for one more
/// register.
#[inline]
#[target_feature(enable = "avx512f,popcnt")]
fn append(outliers: &mut Outliers, x: __m512, mask: __mmask16, first: usize) {
    let Outliers { channels, numbers } = outliers;
    let count = channels.len();
    debug_assert!(
        count == numbers.len() && count + LANES <= channels.capacity().min(numbers.capacity())
    );
    let lane_numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let of_lanes = _mm512_add_epi32(lane_numbers, _mm512_set1_epi32(first as i32));
    let count_after = count + mask.count_ones() as usize;
    // SAFETY: `quantize` reserved capacity for every activation of the row and one more register.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_storeu_si512(
            channels.as_mut_ptr().add(count).cast(),
            _mm512_maskz_compress_epi32(mask, of_lanes),
        );
        _mm512_storeu_ps(
            numbers.as_mut_ptr().add(count),
            _mm512_maskz_compress_ps(mask, x),
        );
        channels.set_len(count_after);
        numbers.set_len(count_after);
    }
}

/// Implements [`Int8Kernel::shadow`](super::Int8Kernel::shadow).
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

/// Computes the shadow of some blocks, which start with output channel `first`. Returns their number of channels.
#[target_feature(enable = "avx512f,avx512vnni")]
fn blocks<const BLOCKS: usize>(columns: &ShadowColumns, first: usize) -> usize {
    let ShadowColumns {
        x,
        weight,
        columns: Range { end, .. },
        out,
        add,
        ..
    } = *columns;
    assert_eq!(
        x.in_features(),
        weight.in_features,
        "expected as many channels as the weight has"
    );
    let of_block = |index: usize| first + index * BLOCK..(first + (index + 1) * BLOCK).min(end);
    let mut blocks: [&[[i8; STEP]]; BLOCKS] = [&[]; BLOCKS];
    let mut scales = [_mm512_setzero_ps(); BLOCKS];
    for (index, (block, scales)) in blocks.iter_mut().zip(&mut scales).enumerate() {
        *block = weight.block(first / BLOCK + index);
        *scales = load(&weight.scales[of_block(index)]);
    }
    for (row, channels, remainders) in columns.rows() {
        out.prefetch::<BLOCKS>(row + ROWS_AHEAD, first);
        let mut sums = [_mm512_setzero_ps(); BLOCKS];
        for (channel, remainder) in channels.iter().zip(remainders) {
            let channel = *channel as usize;
            // A one at the place of the channel's weight: its product with a quad is that weight.
            let one = _mm512_set1_epi32(1 << (8 * (channel % QUAD)));
            let remainder = _mm512_set1_ps(*remainder);
            for (sum, block) in sums.iter_mut().zip(blocks) {
                // SAFETY: a block has a step for every four channels, and a row's channels are below their number; a
                // step is as long as a register.
                #[allow(unsafe_code)]
                let quads =
                    unsafe { _mm512_loadu_si512(block.as_ptr().add(channel / QUAD).cast()) };
                let number =
                    _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), one, quads));
                // Rounded twice, as in plain Rust.
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(remainder, number));
            }
        }
        for (index, (sum, scale)) in sums.into_iter().zip(scales).enumerate() {
            // SAFETY: only this task writes these columns.
            #[allow(unsafe_code)]
            let out = unsafe { out.row(row, of_block(index)) };
            let shadow = _mm512_mul_ps(sum, scale);
            let value = if add {
                _mm512_add_ps(load(out), shadow)
            } else {
                shadow
            };
            // SAFETY: the mask covers the slice.
            #[allow(unsafe_code)]
            unsafe {
                _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes(out.len()), value);
            }
        }
    }
    BLOCKS * BLOCK
}

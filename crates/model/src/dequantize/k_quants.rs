//! K-quants: super-blocks of 256 elements in 16 parts of 16 (Q2_K, Q3_K, Q6_K) or 8 parts of 32 (Q4_K,
//! Q5_K). A part's scale is itself an integer of few bits, times the super-block's scale `d`; where
//! there is a minimum, it is likewise an integer times `dmin`: `x = d · scale · q − dmin · minimum`.
//!
//! Two-bit numbers are packed four to a byte, 32 bytes for 128 elements: the lowest bits of all 32 bytes first.

use super::scale;
use crate::tensor::SUPER_BLOCK;

/// `scales: [u4 scale, u4 minimum; 16], q: [u2; 256], d: f16, dmin: f16`.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; SUPER_BLOCK]) {
    let (scales, packed) = (&block[..16], &block[16..80]);
    let (d, dmin) = (scale(&block[80..]), scale(&block[82..]));
    for (index, part) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let step = d * f32::from(scales[index] & 0xF);
        let minimum = dmin * f32::from(scales[index] >> 4);
        let (bytes, shift) = two_bits(packed, index);
        for (out, &byte) in part.iter_mut().zip(bytes) {
            *out = step * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// `high: [u1; 256], q: [u2; 256], scales: [u6; 16], d: f16`; a number is stored with 4 added (its third
/// bit in `high`), a scale with 32.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; SUPER_BLOCK]) {
    let (high, packed, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = scale(&block[108..]);
    for (index, part) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[index % 8] >> (4 * (index / 8)) & 0xF;
        let top = scales[8 + index % 4] >> (2 * (index / 4)) & 3;
        let step = d * f32::from((low | top << 4) as i8 - 32);
        let (bytes, shift) = two_bits(packed, index);
        let high = &high[16 * (index % 2)..][..16];
        for ((out, &byte), &high) in part.iter_mut().zip(bytes).zip(high) {
            let q = byte >> shift & 3 | (high >> (index / 2) & 1) << 2;
            *out = step * f32::from(q as i8 - 4);
        }
    }
}

/// `d: f16, dmin: f16, scales: [u6 scale, u6 minimum; 8], q: [u4; 256]`.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; SUPER_BLOCK]) {
    let (scales, packed) = (&block[4..16], &block[16..]);
    for (index, part) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, minimum) = step_and_minimum(block, scales, index);
        let shift = 4 * (index % 2);
        for (out, &byte) in part.iter_mut().zip(&packed[32 * (index / 2)..][..32]) {
            *out = step * f32::from(byte >> shift & 0xF) - minimum;
        }
    }
}

/// `d: f16, dmin: f16, scales: [u6 scale, u6 minimum; 8], high: [u1; 256], q: [u4; 256]`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; SUPER_BLOCK]) {
    let (scales, high, packed) = (&block[4..16], &block[16..48], &block[48..]);
    for (index, part) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, minimum) = step_and_minimum(block, scales, index);
        let shift = 4 * (index % 2);
        for ((out, &byte), &high) in part.iter_mut().zip(&packed[32 * (index / 2)..][..32]).zip(high) {
            let q = byte >> shift & 0xF | (high >> index & 1) << 4;
            *out = step * f32::from(q) - minimum;
        }
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`; a number is stored with 32 added.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; SUPER_BLOCK]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = scale(&block[208..]);
    for (index, part) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let step = d * f32::from(scales[index] as i8);
        // 128 elements share 64 bytes: the low halves of all of them first, then the high halves.
        let (half, in_half) = (index / 8, index % 8);
        let low = &low[64 * half + 16 * (in_half % 4)..][..16];
        let low_shift = 4 * (in_half / 4);
        let (high, high_shift) = two_bits(high, index);
        for ((out, &low), &high) in part.iter_mut().zip(low).zip(high) {
            let q = low >> low_shift & 0xF | (high >> high_shift & 3) << 4;
            *out = step * f32::from(q as i8 - 32);
        }
    }
}

/// The 16 bytes that hold the two-bit numbers of part `index` (of 16), and their lowest bit.
fn two_bits(packed: &[u8], index: usize) -> (&[u8], usize) {
    let (half, in_half) = (index / 8, index % 8);
    (&packed[32 * half + 16 * (in_half % 2)..][..16], 2 * (in_half / 2))
}

/// Step and minimum of part `index` (of 8) of Q4_K and Q5_K, which start with `d` and `dmin`. Six-bit
/// scales and minima are in twelve bytes: those of the first four parts in the low bits of bytes 0 to 3
/// and 4 to 7; of the others four bits in bytes 8 to 11, and the upper two above the first ones.
fn step_and_minimum(block: &[u8], scales: &[u8], index: usize) -> (f32, f32) {
    let (scale_bits, minimum_bits) = if index < 4 {
        (scales[index] & 63, scales[index + 4] & 63)
    } else {
        let low_bits = scales[index + 4];
        (low_bits & 0xF | scales[index - 4] >> 6 << 4, low_bits >> 4 | scales[index] >> 6 << 4)
    };
    (scale(block) * f32::from(scale_bits), scale(&block[2..]) * f32::from(minimum_bits))
}

//! Unpacks blocks of one f16 scale and numbers of one or two bits: `x = d · q`.

use crate::bits_at;
use crate::super_block::SUPER_BLOCK;

/// Unpacks Q1_0, blocks of 128: `d: f16, sign: [u1; 128]`, the first element in the lowest bit; a set bit is 1, another
/// −1.
pub(crate) fn q1_0(block: &[u8], integers: &mut [i16; SUPER_BLOCK]) -> u16 {
    let words = block[2..18].as_chunks::<2>().0;
    for (integers, word) in integers.as_chunks_mut::<16>().0.iter_mut().zip(words) {
        let word = u16::from_le_bytes(*word);
        for (bit, integer) in integers.iter_mut().enumerate() {
            *integer = if word & 1 << bit == 0 { -1 } else { 1 };
        }
    }
    bits_at(block, 0)
}

/// Unpacks Q2_0, blocks of 64: `d: f16, q: [u2; 64]`, four neighbours per byte, the first in the lowest bits; stored with
/// 1 added.
pub(crate) fn q2_0(block: &[u8], integers: &mut [i16; SUPER_BLOCK]) -> u16 {
    let quads = integers.as_chunks_mut::<4>().0.iter_mut();
    for (integers, byte) in quads.zip(&block[2..18]) {
        for (pair, integer) in integers.iter_mut().enumerate() {
            *integer = i16::from(byte >> (2 * pair) & 3) - 1;
        }
    }
    bits_at(block, 0)
}

/// Unpacks TQ2_0, blocks of 256: `q: [u2; 256], d: f16`; two-bit numbers as in the K-quants, stored with 1 added.
pub(crate) fn tq2_0(block: &[u8], integers: &mut [i16; SUPER_BLOCK]) -> u16 {
    let halves = integers.as_chunks_mut::<128>().0.iter_mut();
    for (integers, bytes) in halves.zip(block[..64].as_chunks::<32>().0) {
        for (pair, integers) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (integer, byte) in integers.iter_mut().zip(bytes) {
                *integer = i16::from(byte >> (2 * pair) & 3) - 1;
            }
        }
    }
    bits_at(block, 64)
}

/// Unpacks TQ1_0, blocks of 256: `q: [u8; 52], d: f16`, five numbers of three values per byte, or four. A byte is
/// 256 / 243 times the number whose digits in base 3 are the elements, rounded up, so that the digits leave it from the
/// top: multiplied by a power of 3 in eight bits, and then by 3, the ninth and tenth bit are a digit. Digits are stored
/// with 1 added.
pub(crate) fn tq1_0(block: &[u8], integers: &mut [i16; SUPER_BLOCK]) -> u16 {
    // Bytes of a run have neighbouring elements: those with the same power of 3.
    let (first, rest) = integers.split_at_mut(5 * 32);
    let (second, third) = rest.split_at_mut(5 * 16);
    digits::<32>(&block[..32], first);
    digits::<16>(&block[32..48], second);
    digits::<4>(&block[48..52], third);
    bits_at(block, 52)
}

#[inline(always)]
fn digits<const RUN: usize>(bytes: &[u8], integers: &mut [i16]) {
    let powers = [1, 3, 9, 27, 81u8];
    for (integers, power) in integers.as_chunks_mut::<RUN>().0.iter_mut().zip(powers) {
        for (integer, byte) in integers.iter_mut().zip(bytes) {
            let rest = u16::from(byte.wrapping_mul(power));
            *integer = ((rest * 3) >> 8) as i16 - 1;
        }
    }
}

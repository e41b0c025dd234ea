//! Blocks of 32 elements with one scale `d`: `x = d · q`, or `x = d · q + m` with a minimum.
//!
//! Four-bit numbers are packed two per byte: element `i` in the low half of byte `i`, element `i + 16` in the high
//! half. The fifth bit of element `i` is bit `i` of a little-endian `u32`.

#![expect(non_camel_case_types, reason = "GGUF writes them so")]

use crate::{bits_at, widen};

/// Elements per block.
pub const ELEMENTS: usize = 32;

/// The layout of a block of one scale.
pub trait Block {
    /// Bytes per block.
    const BYTES: usize;
    /// Whether blocks have a minimum.
    const HAS_MINIMUM: bool = false;
    /// Whether [`Block::unpack`] returns `d` in bf16 instead of f16, whose range is too small for it.
    const SCALE_IS_BF16: bool = false;
    /// For numbers of five bits, the first byte of their fifth bits, which precede the other four.
    const FIFTH_BITS: Option<usize> = None;
    /// For numbers of a table, the table and the first byte of their indices of four bits.
    const TABLE: Option<(&'static [i8; 16], usize)> = None;

    /// Writes the numbers `q` of a block of [`Block::BYTES`], and returns the bits of `d` and `m`, in f16; `m` is 0 if
    /// there is none.
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2];

    /// Returns the bits of `d` of a block.
    #[inline(always)]
    fn scale_bits(block: &[u8]) -> u16 {
        bits_at(block, 0)
    }

    /// Returns the value of a scale with these bits.
    #[inline(always)]
    fn scale(bits: u16) -> f32 {
        if Self::SCALE_IS_BF16 {
            f32::from_bits(u32::from(bits) << 16)
        } else {
            widen(bits)
        }
    }
}

/// `d: f16, q: [u4; 32]`; stored with 8 added.
pub struct Q4_0;

impl Block for Q4_0 {
    const BYTES: usize = 18;

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        four_bits(&block[2..18], integers, 8);
        [bits_at(block, 0), 0]
    }
}

/// `d: f16, m: f16, q: [u4; 32]`.
pub struct Q4_1;

impl Block for Q4_1 {
    const BYTES: usize = 20;
    const HAS_MINIMUM: bool = true;

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        four_bits(&block[4..20], integers, 0);
        [bits_at(block, 0), bits_at(block, 2)]
    }
}

/// `d: f16, high: u32, q: [u4; 32]`; stored with 16 added.
pub struct Q5_0;

impl Block for Q5_0 {
    const BYTES: usize = 22;
    const FIFTH_BITS: Option<usize> = Some(2);

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        five_bits(&block[2..6], &block[6..22], integers, 16);
        [bits_at(block, 0), 0]
    }
}

/// `d: f16, m: f16, high: u32, q: [u4; 32]`.
pub struct Q5_1;

impl Block for Q5_1 {
    const BYTES: usize = 24;
    const HAS_MINIMUM: bool = true;
    const FIFTH_BITS: Option<usize> = Some(4);

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        five_bits(&block[4..8], &block[8..24], integers, 0);
        [bits_at(block, 0), bits_at(block, 2)]
    }
}

/// `d: f16, q: [i8; 32]`.
pub struct Q8_0;

impl Block for Q8_0 {
    const BYTES: usize = 34;

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        for (integer, byte) in integers.iter_mut().zip(&block[2..34]) {
            *integer = i16::from(*byte as i8);
        }
        [bits_at(block, 0), 0]
    }
}

/// `d: f16, index: [u4; 32]`; a number is at its index in a table.
pub struct IQ4_NL;

/// The numbers of IQ4_NL and IQ4_XS.
pub(crate) static IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

impl Block for IQ4_NL {
    const BYTES: usize = 18;
    const TABLE: Option<(&'static [i8; 16], usize)> = Some((&IQ4, 2));

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        from_table(&IQ4, &block[2..18], integers);
        [Self::scale_bits(block), 0]
    }
}

/// `e: u8, index: [u4; 32]`; the indices are those of floats of four bits, and the numbers twice these floats. `d` is
/// 2^(e − 128), half the scale of the floats.
pub struct MXFP4;

/// Twice the values of the floats of four bits (E2M1).
pub(crate) static E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Block for MXFP4 {
    const BYTES: usize = 17;
    const SCALE_IS_BF16: bool = true;
    const TABLE: Option<(&'static [i8; 16], usize)> = Some((&E2M1, 1));

    #[inline(always)]
    fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        from_table(&E2M1, &block[1..17], integers);
        [Self::scale_bits(block), 0]
    }

    #[inline(always)]
    fn scale_bits(block: &[u8]) -> u16 {
        match u16::from(block[0]) {
            // The two smallest powers of two are subnormal.
            exponent @ 0..2 => 0x20 << exponent,
            exponent => (exponent - 1) << 7,
        }
    }
}

#[inline(always)]
fn from_table(table: &[i8; 16], packed: &[u8], integers: &mut [i16; ELEMENTS]) {
    let (low, high) = integers.split_at_mut(ELEMENTS / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        *low = i16::from(table[usize::from(byte & 0xF)]);
        *high = i16::from(table[usize::from(byte >> 4)]);
    }
}

#[inline(always)]
fn four_bits(packed: &[u8], integers: &mut [i16; ELEMENTS], offset: i16) {
    let (low, high) = integers.split_at_mut(ELEMENTS / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        *low = i16::from(byte & 0xF) - offset;
        *high = i16::from(byte >> 4) - offset;
    }
}

#[inline(always)]
fn five_bits(fifth: &[u8], packed: &[u8], integers: &mut [i16; ELEMENTS], offset: i16) {
    let (low, high) = integers.split_at_mut(ELEMENTS / 2);
    // Sixteen bits at a time, so that lanes are as wide as the numbers.
    let [low_bits, high_bits] =
        [0, 2].map(|byte| u16::from_le_bytes([fifth[byte], fifth[byte + 1]]));
    for (bit, ((low, high), byte)) in (0u16..).zip(low.iter_mut().zip(high).zip(packed)) {
        let fifth = |bits: u16| (bits >> bit & 1) << 4;
        *low = (u16::from(byte & 0xF) | fifth(low_bits)) as i16 - offset;
        *high = (u16::from(byte >> 4) | fifth(high_bits)) as i16 - offset;
    }
}

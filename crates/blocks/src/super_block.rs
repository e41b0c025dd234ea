//! K-quants: super-blocks of 256 elements in 16 parts of 16 (Q2_K, Q3_K, Q6_K) or 8 parts of 32 (Q4_K, Q5_K). A part's
//! scale is an integer of few bits, times the super-block's scale `d`; a minimum, if there is one, is likewise an
//! integer times `dmin`: `x = d · scale · q − dmin · minimum`.
//!
//! Two-bit numbers are packed four per byte, 32 bytes for 128 elements: the lowest bits of all 32 bytes first.

#![expect(non_camel_case_types, reason = "GGUF writes them so")]

use crate::simple::IQ4;
use crate::{BlockFormat, bits_at};

/// Elements per super-block.
pub const SUPER_BLOCK: usize = 256;
/// Parts of 16 elements per super-block.
pub const PARTS: usize = 16;
/// The largest magnitude of `scale · q` of any format: −128 · −32 of [`Q6_K`].
pub const LARGEST: i16 = 4096;

/// The layout of a super-block.
pub trait SuperBlock {
    /// Bytes per super-block.
    const BYTES: usize;
    /// The format.
    const FORMAT: BlockFormat;
    /// Whether parts have minimums.
    const HAS_MINIMUMS: bool = false;

    /// Writes the scale and, if there are minimums, the minimum of each 16 elements of a super-block of
    /// [`SuperBlock::BYTES`]; returns the bits of `d` and `dmin`, in f16. Without minimums, `dmin` is 0.
    fn scales(block: &[u8], scales: &mut [i16; PARTS], minimums: &mut [i32; PARTS]) -> [u16; 2];

    /// Writes `scale · q` of each element, at most [`LARGEST`], and the minimums; returns the same as
    /// [`scales`](Self::scales).
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2];
}

/// `scales: [u4 scale, u4 minimum; 16], q: [u2; 256], d: f16, dmin: f16`.
pub struct Q2_K;

impl SuperBlock for Q2_K {
    const BYTES: usize = 84;
    const FORMAT: BlockFormat = BlockFormat::Q2_K;
    const HAS_MINIMUMS: bool = true;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], minimums: &mut [i32; PARTS]) -> [u16; 2] {
        for ((minimum, scale), packed) in minimums
            .iter_mut()
            .zip(scales)
            .zip(array::<PARTS>(block, 0))
        {
            *minimum = i32::from(packed >> 4);
            *scale = i16::from(packed & 0xF);
        }
        [bits_at(block, 80), bits_at(block, 82)]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let packed = array::<64>(block, 16);
        for (half, (integers, bytes)) in halves(integers, &packed).enumerate() {
            for (pair, integers) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for index in 0..32 {
                    integers[index] = i16::from(bytes[index] >> (2 * pair) & 3);
                }
                let first = 8 * half + 2 * pair;
                scale(integers, [scales[first], scales[first + 1]]);
            }
        }
        bits
    }
}

/// `high: [u1; 256], q: [u2; 256], scales: [u6; 16], d: f16`; a number is stored with 4 added (its third bit in
/// `high`), a scale with 32.
pub struct Q3_K;

impl SuperBlock for Q3_K {
    const BYTES: usize = 110;
    const FORMAT: BlockFormat = BlockFormat::Q3_K;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], _: &mut [i32; PARTS]) -> [u16; 2] {
        let word = |index: usize| u32::from_le_bytes(array(block, 96 + 4 * index));
        // The low four bits of eight parts' scales are in a byte each; the upper two bits of four parts' scales share a
        // byte.
        let [first, second, top] = [word(0), word(1), word(2)];
        let low = [first, second, first >> 4, second >> 4].map(|word| word & 0x0f0f_0f0f);
        let top = [top, top >> 2, top >> 4, top >> 6].map(|word| (word & 0x0303_0303) << 4);
        let six = [0, 1, 2, 3].map(|index| (low[index] | top[index]).to_le_bytes());
        for (scale, six) in scales.iter_mut().zip(six.as_flattened()) {
            *scale = i16::from(*six) - 32;
        }
        [bits_at(block, 108), 0]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let (high, bytes) = (array::<32>(block, 0), array::<64>(block, 32));
        for (half, (integers, bytes)) in halves(integers, &bytes).enumerate() {
            for (pair, integers) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let bit = 4 * half + pair;
                for index in 0..32 {
                    let q = bytes[index] >> (2 * pair) & 3 | (high[index] >> bit & 1) << 2;
                    integers[index] = i16::from(q) - 4;
                }
                scale(integers, [scales[2 * bit], scales[2 * bit + 1]]);
            }
        }
        bits
    }
}

/// `d: f16, dmin: f16, scales: [u6 scale, u6 minimum; 8], q: [u4; 256]`.
pub struct Q4_K;

impl SuperBlock for Q4_K {
    const BYTES: usize = 144;
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const HAS_MINIMUMS: bool = true;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], minimums: &mut [i32; PARTS]) -> [u16; 2] {
        six_bits(&block[4..16], scales, minimums);
        [bits_at(block, 0), bits_at(block, 2)]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let packed = block[16..144].as_chunks::<32>().0;
        for (pair, (parts, bytes)) in integers
            .as_chunks_mut::<64>()
            .0
            .iter_mut()
            .zip(packed)
            .enumerate()
        {
            let [low, high] = [scales[4 * pair], scales[4 * pair + 2]];
            for index in 0..32 {
                parts[index] = low * i16::from(bytes[index] & 0xF);
                parts[index + 32] = high * i16::from(bytes[index] >> 4);
            }
        }
        bits
    }
}

/// `d: f16, dmin: f16, scales: [u6 scale, u6 minimum; 8], high: [u1; 256], q: [u4; 256]`.
pub struct Q5_K;

impl SuperBlock for Q5_K {
    const BYTES: usize = 176;
    const FORMAT: BlockFormat = BlockFormat::Q5_K;
    const HAS_MINIMUMS: bool = true;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], minimums: &mut [i32; PARTS]) -> [u16; 2] {
        six_bits(&block[4..16], scales, minimums);
        [bits_at(block, 0), bits_at(block, 2)]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let (high, packed) = (&block[16..48], block[48..176].as_chunks::<32>().0);
        for (pair, (parts, bytes)) in integers
            .as_chunks_mut::<64>()
            .0
            .iter_mut()
            .zip(packed)
            .enumerate()
        {
            let scales = [scales[4 * pair], scales[4 * pair + 2]];
            for index in 0..32 {
                let fifth = high[index] >> (2 * pair);
                parts[index] = scales[0] * i16::from(bytes[index] & 0xF | (fifth & 1) << 4);
                parts[index + 32] = scales[1] * i16::from(bytes[index] >> 4 | (fifth & 2) << 3);
            }
        }
        bits
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`; a number is stored with 32 added.
pub struct Q6_K;

impl SuperBlock for Q6_K {
    const BYTES: usize = 210;
    const FORMAT: BlockFormat = BlockFormat::Q6_K;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], _: &mut [i32; PARTS]) -> [u16; 2] {
        for (scale, byte) in scales.iter_mut().zip(array::<PARTS>(block, 192)) {
            *scale = i16::from(byte as i8);
        }
        [bits_at(block, 208), 0]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let (low, high) = (array::<128>(block, 0), array::<64>(block, 128));
        // 128 elements share 64 bytes: the low halves of all bytes first, then the high halves.
        let low = low.as_chunks::<64>().0;
        for (half, (integers, high)) in halves(integers, &high).enumerate() {
            for (pair, integers) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (low, shift) = (&low[half].as_chunks::<32>().0[pair % 2], pair / 2 * 4);
                for index in 0..32 {
                    let q = low[index] >> shift & 0xF | (high[index] >> (2 * pair) & 3) << 4;
                    integers[index] = i16::from(q) - 32;
                }
                let first = 8 * half + 2 * pair;
                scale(integers, [scales[first], scales[first + 1]]);
            }
        }
        bits
    }
}

/// `d: f16, high: [u2; 8], low: [u4; 8], index: [u4; 256]`: a part of 32 has a scale of six bits, stored with 32 added,
/// and numbers of [`IQ4_NL`](crate::simple::IQ4_NL).
pub struct IQ4_XS;

impl IQ4_XS {
    /// The numbers at the indices.
    pub const TABLE: &'static [i8; 16] = &IQ4;
    /// The first byte of the indices.
    pub const INDICES: usize = 8;
}

impl SuperBlock for IQ4_XS {
    const BYTES: usize = 136;
    const FORMAT: BlockFormat = BlockFormat::IQ4_XS;

    #[inline(always)]
    fn scales(block: &[u8], scales: &mut [i16; PARTS], _: &mut [i32; PARTS]) -> [u16; 2] {
        let high = bits_at(block, 2);
        for (part, scales) in scales.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let low = block[4 + part / 2] >> (part % 2 * 4) & 0xF;
            let upper = (high >> (2 * part) & 3) << 4;
            *scales = [(u16::from(low) | upper) as i16 - 32; 2];
        }
        [bits_at(block, 0), 0]
    }

    #[inline(always)]
    fn unpack(
        block: &[u8],
        integers: &mut [i16; SUPER_BLOCK],
        minimums: &mut [i32; PARTS],
    ) -> [u16; 2] {
        let mut scales = [0; PARTS];
        let bits = Self::scales(block, &mut scales, minimums);
        let packed = block[Self::INDICES..].as_chunks::<16>().0;
        let parts = integers.as_chunks_mut::<32>().0.iter_mut().zip(packed);
        for ((integers, packed), scales) in parts.zip(scales.as_chunks::<2>().0) {
            let (low, high) = integers.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
                *low = scales[0] * i16::from(IQ4[usize::from(byte & 0xF)]);
                *high = scales[0] * i16::from(IQ4[usize::from(byte >> 4)]);
            }
        }
        bits
    }
}

/// Returns the halves of a super-block, each with the 32 bytes of its two-bit numbers.
#[inline(always)]
fn halves<'a>(
    integers: &'a mut [i16; SUPER_BLOCK],
    two_bits: &'a [u8; 64],
) -> impl Iterator<Item = (&'a mut [i16; SUPER_BLOCK / 2], &'a [u8; 32])> {
    integers
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(two_bits.as_chunks().0)
}

/// Multiplies two parts of 16 by their scales.
#[inline(always)]
fn scale(integers: &mut [i16; 32], scales: [i16; 2]) {
    for (integers, scale) in integers.as_chunks_mut::<16>().0.iter_mut().zip(scales) {
        for integer in integers {
            *integer *= scale;
        }
    }
}

/// Returns `BYTES` bytes of a block.
#[inline(always)]
pub(crate) fn array<const BYTES: usize>(block: &[u8], first: usize) -> [u8; BYTES] {
    *block[first..].first_chunk().expect("a whole block")
}

/// Writes the scales and minimums of the eight parts of Q4_K and Q5_K, twice each. The six-bit numbers are in twelve
/// bytes, three words. The low bits of the first and second word have the scales and minimums of the first four parts.
/// The third word has four bits of the others, whose upper two bits are above those of the first parts.
#[inline(always)]
fn six_bits(packed: &[u8], scales: &mut [i16; PARTS], minimums: &mut [i32; PARTS]) {
    let word = |index: usize| u32::from_le_bytes(array(packed, 4 * index));
    let [first, second, third] = [word(0), word(1), word(2)];
    let upper = |word: u32| (word >> 6 & 0x0303_0303) << 4;
    let of_scales = [first & 0x3f3f_3f3f, third & 0x0f0f_0f0f | upper(first)];
    let of_minimums = [
        second & 0x3f3f_3f3f,
        third >> 4 & 0x0f0f_0f0f | upper(second),
    ];
    let (of_scales, of_minimums) = (
        of_scales.map(u32::to_le_bytes),
        of_minimums.map(u32::to_le_bytes),
    );
    for (part, (scale, minimum)) in of_scales
        .as_flattened()
        .iter()
        .zip(of_minimums.as_flattened())
        .enumerate()
    {
        scales[2 * part..2 * part + 2].fill(i16::from(*scale));
        minimums[2 * part..2 * part + 2].fill(i32::from(*minimum));
    }
}

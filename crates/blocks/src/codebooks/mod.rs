//! Unpacks super-blocks of 256 elements whose numbers are entries of a codebook: eight neighbours (IQ1, IQ2) or four (IQ3) have
//! one index. IQ2 and IQ3 store magnitudes, and a sign for each. A part of 16 or 32 has an integer scale `s` of three or
//! four bits, and the values are odd multiples of a fraction of the scale: `x = d · (2 s + 1) · q · factor`.
//!
//! Seven bits may stand for eight signs: the eighth makes the number of negative ones even.

mod tables;

use crate::bits_at;
use crate::super_block::{SUPER_BLOCK, array};

/// Magnitudes of IQ2.
const TWO_BITS: [i8; 3] = [8, 25, 43];
/// Eight times the numbers of IQ1, so that an eighth can be added to each.
const TERNARY: [i8; 3] = [-8, 0, 8];
/// Magnitudes of IQ3_XXS and of IQ3_S.
const XXS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const ODD: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

static IQ1_NUMBERS: [[i8; 8]; 2048] = entries(&tables::IQ1_S, &TERNARY, 2);
static IQ2_XXS_NUMBERS: [[i8; 8]; 256] = entries(&tables::IQ2_XXS, &TWO_BITS, 2);
static IQ2_XS_NUMBERS: [[i8; 8]; 512] = entries(&tables::IQ2_XS, &TWO_BITS, 2);
static IQ2_S_NUMBERS: [[i8; 8]; 1024] = entries(&tables::IQ2_S, &TWO_BITS, 2);
static IQ3_XXS_NUMBERS: [[i8; 4]; 256] = entries(&tables::IQ3_XXS, &XXS, 3);
static IQ3_S_NUMBERS: [[i8; 4]; 512] = entries(&tables::IQ3_S, &ODD, 3);

/// Replaces places of `bits` bits by their values.
const fn entries<const COUNT: usize, const NUMBERS: usize>(
    packed: &[u16; COUNT],
    values: &[i8],
    bits: u32,
) -> [[i8; NUMBERS]; COUNT] {
    let mut entries = [[0; NUMBERS]; COUNT];
    let mut index = 0;
    while index < COUNT {
        let mut place = 0;
        while place < NUMBERS {
            let value = packed[index] >> (bits * place as u32) & ((1 << bits) - 1);
            entries[index][place] = values[value as usize];
            place += 1;
        }
        index += 1;
    }
    entries
}

/// Returns eight signs, a set bit for each negative number, from seven.
#[inline(always)]
fn eight_signs(seven: u32) -> u8 {
    let seven = seven & 0x7f;
    (seven | (seven.count_ones() & 1) << 7) as u8
}

/// Writes numbers times a scale, negative ones where a bit is set.
#[inline(always)]
fn signed(numbers: [i8; 8], signs: u8, scale: i16, integers: &mut [i16; 8]) {
    for (bit, (integer, number)) in integers.iter_mut().zip(numbers).enumerate() {
        let negative = -i16::from(signs >> bit & 1);
        *integer = ((i16::from(number) * scale) ^ negative) - negative;
    }
}

/// Joins two entries of four numbers.
#[inline(always)]
fn joined(first: [i8; 4], second: [i8; 4]) -> [i8; 8] {
    let [a, b, c, d] = first;
    let [e, f, g, h] = second;
    [a, b, c, d, e, f, g, h]
}

/// Writes numbers times a scale, after adding `eighth` to each.
#[inline(always)]
fn shifted(numbers: [i8; 8], eighth: i16, scale: i16, integers: &mut [i16; 8]) {
    for (integer, number) in integers.iter_mut().zip(numbers) {
        *integer = (i16::from(number) + eighth) * scale;
    }
}

/// Returns `2 s + 1` for one of the four-bit numbers in some bytes.
#[inline(always)]
fn odd_scale(packed: &[u8], index: usize) -> i16 {
    2 * i16::from(packed[index / 2] >> (index % 2 * 4) & 0xF) + 1
}

/// Defines the function that unpacks a format: its bytes, where `d` is, and how the eight numbers at `8 · index` are
/// written.
macro_rules! unpack {
    ($(#[$documentation:meta])* $name:ident, $bytes:literal, |$block:ident, $index:ident, $integers:ident| $unpack:expr,
     $d:expr) => {
        $(#[$documentation])*
        pub(crate) fn $name(block: &[u8], integers: &mut [i16; SUPER_BLOCK]) -> u16 {
            let $block: &[u8; $bytes] = block.first_chunk().expect("a whole block");
            for ($index, $integers) in integers.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                $unpack;
            }
            $d
        }
    };
}

unpack!(
    /// Unpacks IQ2_XXS: `d: f16, (index: [u8; 4], signs: [u7; 4], s: u4; 8)`.
    iq2_xxs, 66, |block, index, integers| {
        let part = 2 + index / 4 * 8;
        let packed = u32::from_le_bytes(array(block, part + 4));
        let entry = IQ2_XXS_NUMBERS[usize::from(block[part + index % 4])];
        let scale = 2 * (packed >> 28) as i16 + 1;
        signed(entry, eight_signs(packed >> (index % 4 * 7)), scale, integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ2_XS: `d: f16, (index: u9, signs: u7; 32), s: [u4; 16]`.
    iq2_xs, 74, |block, index, integers| {
        let packed = bits_at(block, 2 + 2 * index);
        let entry = IQ2_XS_NUMBERS[usize::from(packed & 0x1ff)];
        let signs = eight_signs(u32::from(packed >> 9));
        signed(entry, signs, odd_scale(&block[66..], index / 2), integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ2_S: `d: f16, low: [u8; 32], signs: [u8; 32], high: [u2; 32], s: [u4; 16]`; an index has ten bits.
    iq2_s, 82, |block, index, integers| {
        let high = block[66 + index / 4] >> (index % 4 * 2) & 3;
        let entry = IQ2_S_NUMBERS[usize::from(block[2 + index]) | usize::from(high) << 8];
        signed(entry, block[34 + index], odd_scale(&block[74..], index / 2), integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ3_XXS: `d: f16, index: [u8; 64], (signs: [u7; 4], s: u4; 8)`.
    iq3_xxs, 98, |block, index, integers| {
        let four = |place: usize| IQ3_XXS_NUMBERS[usize::from(block[2 + 2 * index + place])];
        let packed = u32::from_le_bytes(array(block, 66 + index / 4 * 4));
        let scale = 2 * (packed >> 28) as i16 + 1;
        let signs = eight_signs(packed >> (index % 4 * 7));
        signed(joined(four(0), four(1)), signs, scale, integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ3_S: `d: f16, low: [u8; 64], high: [u1; 64], signs: [u8; 32], s: [u4; 8]`; an index has nine bits.
    iq3_s, 110, |block, index, integers| {
        let high = block[66 + index / 4] >> (index % 4 * 2);
        let four = |place: usize| {
            let ninth = usize::from(high >> place & 1) << 8;
            IQ3_S_NUMBERS[usize::from(block[2 + 2 * index + place]) | ninth]
        };
        let scale = odd_scale(&block[106..], index / 4);
        signed(joined(four(0), four(1)), block[74 + index], scale, integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ1_S: `d: f16, low: [u8; 32], (high: [u3; 4], s: u3, minus: u1; 8)`; an index has eleven bits. An eighth
    /// is added to every number of a part, or subtracted.
    iq1_s, 50, |block, index, integers| {
        let high = bits_at(block, 34 + index / 4 * 2);
        let upper = usize::from(high >> (index % 4 * 3) & 7) << 8;
        let eighth = if high & 0x8000 == 0 { 1 } else { -1 };
        let scale = 2 * (high >> 12 & 7) as i16 + 1;
        shifted(IQ1_NUMBERS[usize::from(block[2 + index]) | upper], eighth, scale, integers);
    },
    bits_at(block, 0)
);

unpack!(
    /// Unpacks IQ1_M: `low: [u8; 32], (high: u3, minus: u1; 32), (s: [u3; 4], d: u4; 4)`; as IQ1_S, with a scale for
    /// every 16 numbers and the eighth for every eight. The four bits of the four `d` are an f16.
    iq1_m, 56, |block, index, integers| {
        let high = block[32 + index / 2] >> (index % 2 * 4);
        let eighth = if high & 8 == 0 { 1 } else { -1 };
        let scales = bits_at(block, 48 + index / 8 * 2);
        let scale = 2 * (scales >> (index / 2 % 4 * 3) & 7) as i16 + 1;
        let entry = IQ1_NUMBERS[usize::from(block[index]) | usize::from(high & 7) << 8];
        shifted(entry, eighth, scale, integers);
    },
    [0, 1, 2, 3]
        .map(|place| bits_at(block, 48 + 2 * place) >> 12 << (4 * place))
        .iter()
        .sum()
);

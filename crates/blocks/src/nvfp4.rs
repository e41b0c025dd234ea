//! NVFP4: blocks of 64 elements in four parts of 16, whose scales are floats of eight bits: `x = scale · q`, where `q` is
//! twice a float of four bits and `scale` half the stored one.
//!
//! `scale: [ue4m3; 4], index: [u4; 64]`: of each part's eight bytes, the low halves precede the high halves.

use crate::simple::E2M1;

/// Elements per block.
pub const ELEMENTS: usize = 64;
/// Elements per part.
pub const PART: usize = 16;
/// Bytes per block.
pub const BYTES: usize = 36;
/// Parts per block.
pub const PARTS: usize = ELEMENTS / PART;

/// Writes the numbers `q` of a block, and returns the scales of its parts.
#[inline(always)]
pub fn unpack(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [f32; PARTS] {
    let parts = integers.as_chunks_mut::<PART>().0.iter_mut();
    for (integers, bytes) in parts.zip(block[PARTS..BYTES].as_chunks::<{ PART / 2 }>().0) {
        let (low, high) = integers.split_at_mut(PART / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = i16::from(E2M1[usize::from(byte & 0xF)]);
            *high = i16::from(E2M1[usize::from(byte >> 4)]);
        }
    }
    [0, 1, 2, 3].map(|part| SCALES[usize::from(block[part])])
}

/// Half the value of each stored scale.
static SCALES: [f32; 256] = scales();

/// Computes half the value of every float of four bits of exponent and three of mantissa. The eighth bit is ignored;
/// 127 is 0.
const fn scales() -> [f32; 256] {
    let mut scales = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        let (exponent, mantissa) = ((bits >> 3 & 15) as u32, (bits & 7) as u32);
        if bits != 0x7f {
            // In units of the smallest one, 2⁻⁹.
            let units = if exponent == 0 {
                mantissa
            } else {
                (8 + mantissa) << (exponent - 1)
            };
            scales[bits] = units as f32 / 1024.0;
        }
        bits += 1;
    }
    scales
}

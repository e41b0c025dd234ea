//! Blocks of 32 elements with one scale `d`: `x = d · q`, or `x = d · q + m` with a minimum.
//!
//! Four-bit parts are packed two to a byte: element `i` in the low half of byte `i`, element `i + 16` in the high
//! half. The fifth bit of element `i` is bit `i` of a little-endian `u32`.

use super::scale;

const ELEMENTS: usize = 32;

/// `d: f16, q: [u4; 32]`; stored with 8 added.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; ELEMENTS]) {
    let d = scale(block);
    four_bits(&block[2..], out, |q| d * f32::from(q as i8 - 8));
}

/// `d: f16, m: f16, q: [u4; 32]`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; ELEMENTS]) {
    let (d, m) = (scale(block), scale(&block[2..]));
    four_bits(&block[4..], out, |q| d * f32::from(q) + m);
}

/// `d: f16, high: u32, q: [u4; 32]`; stored with 16 added.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; ELEMENTS]) {
    let d = scale(block);
    five_bits(&block[2..], out, |q| d * f32::from(q as i8 - 16));
}

/// `d: f16, m: f16, high: u32, q: [u4; 32]`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; ELEMENTS]) {
    let (d, m) = (scale(block), scale(&block[2..]));
    five_bits(&block[4..], out, |q| d * f32::from(q) + m);
}

/// `d: f16, q: [i8; 32]`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; ELEMENTS]) {
    let d = scale(block);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q as i8);
    }
}

fn four_bits(packed: &[u8], out: &mut [f32; ELEMENTS], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(ELEMENTS / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(packed) {
        *low = value(byte & 0xF);
        *high = value(byte >> 4);
    }
}

fn five_bits(packed: &[u8], out: &mut [f32; ELEMENTS], value: impl Fn(u8) -> f32) {
    let bits = u32::from_le_bytes([packed[0], packed[1], packed[2], packed[3]]);
    let fifth = |element: usize| ((bits >> element & 1) << 4) as u8;
    let (low, high) = out.split_at_mut(ELEMENTS / 2);
    for (index, ((low, high), &byte)) in low.iter_mut().zip(high).zip(&packed[4..]).enumerate() {
        *low = value(byte & 0xF | fifth(index));
        *high = value(byte >> 4 | fifth(index + ELEMENTS / 2));
    }
}

//! Stored formats to f32.
//!
//! A quantized tensor is a row of blocks: some integers of few bits and one or two scales for all of
//! them. [`simple`] holds the formats with 32 elements a block and one scale, [`k_quants`] those with
//! 256, whose parts of 16 or 32 have scales of their own. The arithmetic is that of GGUF's reference
//! in its order, so that the results are the same bits.

mod k_quants;
mod simple;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::tensor::Format;

/// Writes the elements stored in `bytes` to `out`. Any whole number of blocks will do, so that rows of
/// a tensor can be dequantized apart, on several threads.
///
/// # Panics
/// If `bytes` is not exactly what `out.len()` elements take: a [`crate::tensor::TensorInfo`] is checked
/// when its file is opened.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), format.bytes_for(out.len()), "bytes of {} elements in {format}", out.len());
    match format {
        Format::F32 => each_block(bytes, out, |block: &[u8; 4], out: &mut [f32; 1]| {
            out[0] = f32::from_le_bytes(*block);
        }),
        Format::F16 => f16_values(bytes, out),
        Format::Bf16 => each_block(bytes, out, |block: &[u8; 2], out: &mut [f32; 1]| {
            out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
        }),
        Format::Q4_0 => each_block(bytes, out, simple::q4_0),
        Format::Q4_1 => each_block(bytes, out, simple::q4_1),
        Format::Q5_0 => each_block(bytes, out, simple::q5_0),
        Format::Q5_1 => each_block(bytes, out, simple::q5_1),
        Format::Q8_0 => each_block(bytes, out, simple::q8_0),
        Format::Q2_K => each_block(bytes, out, k_quants::q2_k),
        Format::Q3_K => each_block(bytes, out, k_quants::q3_k),
        Format::Q4_K => each_block(bytes, out, k_quants::q4_k),
        Format::Q5_K => each_block(bytes, out, k_quants::q5_k),
        Format::Q6_K => each_block(bytes, out, k_quants::q6_k),
    }
}

fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(bytes, out);
    }
}

/// Converted many at a time: whether the CPU has an instruction for it is checked once a call.
fn f16_values(bytes: &[u8], out: &mut [f32]) {
    let mut values = [f16::ZERO; 256];
    for (bytes, out) in bytes.chunks(2 * values.len()).zip(out.chunks_mut(values.len())) {
        let values = &mut values[..out.len()];
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f16::from_le_bytes(*bytes);
        }
        values.convert_to_f32_slice(out);
    }
}

/// The f16 at the first two bytes of `bytes`.
fn scale(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

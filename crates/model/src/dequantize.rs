//! Conversion of stored formats to f32.

use half::f16;
use half::slice::HalfFloatSliceExt;
use triad_blocks::dequantize as dequantize_blocks;

use crate::tensor::Format;

/// Writes the elements stored in `bytes` to `out`. Any whole number of blocks is possible, so that several threads can
/// dequantize rows of a tensor.
///
/// # Panics
/// If `bytes` does not have exactly the length for `out.len()` elements: a [`crate::tensor::TensorInfo`] is checked
/// when its file is opened. when its file is opened.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        format.bytes_for(out.len()),
        "bytes of {} elements in {format}",
        out.len()
    );
    match format {
        Format::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Format::F16 => f16_values(bytes, out),
        Format::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Format::Blocks(blocks) => dequantize_blocks(blocks, bytes, out),
    }
}

/// Converts many at a time, so that the check for a CPU instruction runs once per call.
fn f16_values(bytes: &[u8], out: &mut [f32]) {
    let mut values = [f16::ZERO; 256];
    for (bytes, out) in bytes
        .chunks(2 * values.len())
        .zip(out.chunks_mut(values.len()))
    {
        let values = &mut values[..out.len()];
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f16::from_le_bytes(*bytes);
        }
        values.convert_to_f32_slice(out);
    }
}

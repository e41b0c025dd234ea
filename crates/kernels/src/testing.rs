//! Helpers that tests of several kernels share.

use triad_blocks::BlockFormat;

/// Returns pseudo-random numbers from -1 to 1.
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    (0..count)
        .map(|i| {
            ((i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32
                - 1.0
        })
        .collect()
}

/// Returns the bits of numbers, which distinguish −0 from 0 and compare equal for NaN.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns `count` quantized blocks of pseudo-random numbers, with scales and minimums from −1/16 to 1/16.
pub(crate) fn blocks(format: BlockFormat, count: usize, seed: u64) -> Vec<u8> {
    let bytes = values(count * format.bytes(), seed)
        .iter()
        .map(|x| (x * 128.0) as i8 as u8)
        .collect();
    with_scales(format, bytes, seed ^ 9)
}

/// Replaces the scales and minimums of quantized blocks by such numbers.
pub(crate) fn with_scales(format: BlockFormat, mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    let places: &[usize] = match format {
        BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4_K | BlockFormat::Q5_K => &[0, 2],
        BlockFormat::Q2_K => &[80, 82],
        BlockFormat::Q3_K => &[108],
        BlockFormat::Q6_K => &[208],
    };
    let count = bytes.len() / format.bytes();
    let mut scales = values(count * places.len(), seed).into_iter();
    for block in bytes.chunks_exact_mut(format.bytes()) {
        for place in places {
            let scale = half::f16::from_f32(scales.next().expect("one for each place") / 16.0);
            block[*place..][..2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

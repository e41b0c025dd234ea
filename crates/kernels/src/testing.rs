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
    use BlockFormat as F;
    let places: &[usize] = match format {
        F::Q4_0 | F::Q5_0 | F::Q8_0 | F::IQ4_NL | F::IQ4_XS | F::Q1_0 | F::Q2_0 => &[0],
        F::IQ3_S | F::IQ3_XXS | F::IQ2_XXS | F::IQ2_XS | F::IQ2_S | F::IQ1_S => &[0],
        F::Q4_1 | F::Q5_1 | F::Q4_K | F::Q5_K => &[0, 2],
        F::Q2_K => &[80, 82],
        F::Q3_K => &[108],
        F::Q6_K => &[208],
        F::TQ1_0 => &[52],
        F::TQ2_0 => &[64],
        F::MXFP4 => return with_exponents(bytes),
        F::NVFP4 => return with_floats(bytes),
        F::IQ1_M => return with_scattered_scales(bytes, seed),
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

/// Limits the exponents of MXFP4 to those of numbers from 1/256 to 1/2.
fn with_exponents(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(BlockFormat::MXFP4.bytes()) {
        block[0] = 120 + block[0] % 8;
    }
    bytes
}

/// Limits the scales of NVFP4 to numbers less than 1.
fn with_floats(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(BlockFormat::NVFP4.bytes()) {
        block[..4].iter_mut().for_each(|scale| *scale %= 0x38);
    }
    bytes
}

/// Replaces the scales of IQ1_M, which are in the upper four bits of four words.
fn with_scattered_scales(mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    let block_bytes = BlockFormat::IQ1_M.bytes();
    let scales = values(bytes.len() / block_bytes, seed);
    for (block, scale) in bytes.chunks_exact_mut(block_bytes).zip(scales) {
        let bits = half::f16::from_f32(scale / 16.0).to_bits();
        for index in 0..4 {
            let upper = &mut block[49 + 2 * index];
            *upper = *upper & 0xF | ((bits >> (4 * index) & 0xF) << 4) as u8;
        }
    }
    bytes
}

//! What tests of several kernels share.

/// Numbers from -1 to 1 that look random, the same for the same seed.
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    (0..count)
        .map(|i| ((i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// The bits of numbers, which tell −0 from 0 and are equal for NaN.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

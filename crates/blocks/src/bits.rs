//! Numbers in f16, by plain integers.

/// Returns the bits of the f16 at a place of a block.
#[inline(always)]
pub fn bits_at(block: &[u8], place: usize) -> u16 {
    u16::from_le_bytes([block[place], block[place + 1]])
}

/// Returns the value of an f16 with these bits. Uses plain integers, so that it is inlined: the library's conversion is
/// a function call that checks the processor's features.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    // Exponents of f32 are larger by 112; those of infinities and NaN are 255.
    let wide = match bits & 0x7c00 {
        0 => (f32::from_bits(magnitude | SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL))
            .to_bits(),
        0x7c00 => magnitude | 255 << 23,
        _ => magnitude + (112 << 23),
    };
    f32::from_bits(wide | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_widened_to_its_value() {
        for bits in 0..=u16::MAX {
            let (wide, expected) = (widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                wide.to_bits() == expected.to_bits() || wide.is_nan() && expected.is_nan(),
                "{bits:#x}: {wide}"
            );
        }
    }
}

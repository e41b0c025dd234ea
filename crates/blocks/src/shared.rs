//! Formats whose blocks are unpacked by one function for all processors: reading tables or very few bits gains little from
//! wider registers, and code for each format and processor would take long to compile.

use crate::super_block::SUPER_BLOCK;
use crate::{BlockFormat, codebooks, few_bits};

/// The layout of a block: `x = d · factor · q`.
#[derive(Clone, Copy, Debug)]
pub struct SharedLayout {
    /// Elements per block: a multiple of 32, at most 256.
    pub elements: usize,
    /// Bytes per block.
    pub bytes: usize,
    /// A power of two.
    pub factor: f32,
    /// Writes the numbers `q` of a block, at most [`LARGEST`](crate::super_block::LARGEST), and returns the bits of `d`,
    /// in f16.
    pub unpack: fn(&[u8], &mut [i16; SUPER_BLOCK]) -> u16,
}

impl SharedLayout {
    /// Returns the layout of a format.
    ///
    /// # Panics
    /// If the format has a layout of another kind.
    #[inline]
    pub fn for_format(format: BlockFormat) -> Self {
        let layout = |elements, bytes, factor, unpack| Self {
            elements,
            bytes,
            factor,
            unpack,
        };
        match format {
            BlockFormat::Q1_0 => layout(128, 18, 1.0, few_bits::q1_0 as _),
            BlockFormat::Q2_0 => layout(64, 18, 1.0, few_bits::q2_0 as _),
            BlockFormat::TQ1_0 => layout(256, 54, 1.0, few_bits::tq1_0 as _),
            BlockFormat::TQ2_0 => layout(256, 66, 1.0, few_bits::tq2_0 as _),
            BlockFormat::IQ3_S => layout(256, 110, 1.0, codebooks::iq3_s as _),
            BlockFormat::IQ3_XXS => layout(256, 98, 0.25, codebooks::iq3_xxs as _),
            BlockFormat::IQ2_XXS => layout(256, 66, 0.125, codebooks::iq2_xxs as _),
            BlockFormat::IQ2_XS => layout(256, 74, 0.125, codebooks::iq2_xs as _),
            BlockFormat::IQ2_S => layout(256, 82, 0.125, codebooks::iq2_s as _),
            BlockFormat::IQ1_S => layout(256, 50, 0.125, codebooks::iq1_s as _),
            BlockFormat::IQ1_M => layout(256, 56, 0.125, codebooks::iq1_m as _),
            _ => unreachable!("{format} has a layout of another kind"),
        }
    }
}

//! The quantized blocks of GGUF: their bytes and elements, the integers in them, and their values.
//!
//! A quantized row is a sequence of blocks: integers of few bits, with one or two scales in f16. Blocks of [`simple`]
//! formats have 32 elements, those of the K-quants ([`super_block`]) 256, whose parts of 16 or 32 have their own
//! integer scales. Formats of one or two bits and those with a codebook have a [`shared`] layout, of 64 to 256 elements.
//! All are unpacked to 16-bit integers, from which [`dequantize`] computes the values, and kernels their sums of
//! products. [`nvfp4`] alone has a float scale for every 16 elements.

mod codebooks;
mod few_bits;
pub mod nvfp4;
pub mod shared;
pub mod simple;
pub mod super_block;

use std::fmt;

use shared::SharedLayout;
use simple::{Block, ELEMENTS};
use super_block::{PARTS, SUPER_BLOCK, SuperBlock};

/// Defines the formats, and the macro that chooses a format's layout.
macro_rules! formats {
    ($all:literal; $($name:ident),*) => {
        /// Format of a quantized row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are the field's own")]
        #[expect(non_camel_case_types, reason = "GGUF writes them so")]
        pub enum BlockFormat {
            $($name,)*
        }

        impl BlockFormat {
            /// Every format, for tables and tests.
            pub const ALL: [Self; $all] = [$(Self::$name,)*];

            /// Returns the name in GGUF.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

formats!(25; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, Q1_0, Q2_0, IQ3_S,
    IQ3_XXS, IQ2_XXS, IQ2_XS, IQ2_S, NVFP4, TQ1_0, TQ2_0, IQ1_S, IQ1_M);

/// Evaluates an expression for the layout of a format: one with a type that implements [`Block`], another with a type
/// that implements [`SuperBlock`], a third with a [`SharedLayout`], and one for [`nvfp4`].
#[macro_export]
macro_rules! with_layout {
    ($format:expr, Block $block:ident => $simple:expr, SuperBlock $super_block:ident => $super:expr,
     Shared $layout:ident => $shared:expr, Nvfp4 => $nvfp4:expr) => {
        $crate::with_layout!(
            @ $format, $block, $simple, $super_block, $super, $layout, $shared, $nvfp4;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4;
            Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS
        )
    };
    (@ $format:expr, $block:ident, $simple:expr, $super_block:ident, $super:expr, $layout:ident, $shared:expr,
     $nvfp4:expr; $($one:ident)*; $($part:ident)*) => {
        match $format {
            $($crate::BlockFormat::$one => {
                type $block = $crate::simple::$one;
                $simple
            })*
            $($crate::BlockFormat::$part => {
                type $super_block = $crate::super_block::$part;
                $super
            })*
            $crate::BlockFormat::NVFP4 => $nvfp4,
            format => {
                let $layout = $crate::shared::SharedLayout::of(format);
                $shared
            }
        }
    };
}

impl BlockFormat {
    /// Returns the elements per block: a row is a whole number of blocks.
    pub fn elements(self) -> usize {
        with_layout!(
            self,
            Block _B => ELEMENTS,
            SuperBlock _B => SUPER_BLOCK,
            Shared layout => layout.elements,
            Nvfp4 => nvfp4::ELEMENTS
        )
    }

    /// Returns the bytes per block.
    pub fn bytes(self) -> usize {
        with_layout!(
            self,
            Block B => B::BYTES,
            SuperBlock B => B::BYTES,
            Shared layout => layout.bytes,
            Nvfp4 => nvfp4::BYTES
        )
    }

    /// Returns the bytes of `elements` elements.
    ///
    /// # Panics
    /// If `elements` is no whole number of blocks.
    #[inline]
    pub fn bytes_for(self, elements: usize) -> usize {
        assert!(
            elements.is_multiple_of(self.elements()),
            "{elements} elements in blocks of {}",
            self.elements()
        );
        elements / self.elements() * self.bytes()
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Writes the values of some blocks to `out`, with the bits of GGUF's reference except for the sign of zeros.
///
/// # Panics
/// If `bytes` does not have exactly the length for `out.len()` elements.
#[inline(always)]
pub fn dequantize(format: BlockFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        bytes.len(),
        format.bytes_for(out.len()),
        "bytes of {} elements in {format}",
        out.len()
    );
    with_layout!(
        format,
        Block B => dequantize_simple::<B>(bytes, out),
        SuperBlock B => dequantize_super_blocks::<B>(bytes, out),
        Shared layout => dequantize_shared(layout, bytes, out),
        Nvfp4 => dequantize_nvfp4(bytes, out)
    );
}

#[inline(always)]
fn dequantize_simple<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let mut integers = [0; ELEMENTS];
    for (block, out) in bytes
        .chunks_exact(B::BYTES)
        .zip(out.as_chunks_mut::<ELEMENTS>().0)
    {
        // Without this, LLVM would gather one number of each of sixteen blocks into a register, byte by byte.
        let bits = B::unpack(std::hint::black_box(block), &mut integers);
        let scale = B::scale(bits[0]);
        let minimum = if B::HAS_MINIMUM { widen(bits[1]) } else { 0.0 };
        for (out, integer) in out.iter_mut().zip(integers) {
            let value = scale * f32::from(integer);
            *out = if B::HAS_MINIMUM {
                value + minimum
            } else {
                value
            };
        }
    }
}

/// Dequantizes blocks of a shared layout. `d · factor · integer` has at most 24 significant bits, as in super-blocks.
#[inline(always)]
fn dequantize_shared(layout: SharedLayout, bytes: &[u8], out: &mut [f32]) {
    let mut integers = [0; SUPER_BLOCK];
    for (block, out) in bytes
        .chunks_exact(layout.bytes)
        .zip(out.chunks_exact_mut(layout.elements))
    {
        let scale = widen((layout.unpack)(block, &mut integers)) * layout.factor;
        for (out, integer) in out.iter_mut().zip(integers) {
            *out = scale * f32::from(integer);
        }
    }
}

#[inline(always)]
fn dequantize_nvfp4(bytes: &[u8], out: &mut [f32]) {
    let mut integers = [0; nvfp4::ELEMENTS];
    for (block, out) in bytes
        .chunks_exact(nvfp4::BYTES)
        .zip(out.as_chunks_mut::<{ nvfp4::ELEMENTS }>().0)
    {
        let scales = nvfp4::unpack(block, &mut integers);
        let parts = out.as_chunks_mut::<{ nvfp4::PART }>().0.iter_mut();
        for ((out, integers), scale) in parts
            .zip(integers.as_chunks::<{ nvfp4::PART }>().0)
            .zip(scales)
        {
            for (out, integer) in out.iter_mut().zip(integers) {
                *out = scale * f32::from(*integer);
            }
        }
    }
}

/// Dequantizes super-blocks. `scale · integer` has at most 24 significant bits, so the order of the factors does not
/// matter.
#[inline(always)]
fn dequantize_super_blocks<B: SuperBlock>(bytes: &[u8], out: &mut [f32]) {
    let (mut integers, mut minimums) = ([0; SUPER_BLOCK], [0; PARTS]);
    for (block, out) in bytes
        .chunks_exact(B::BYTES)
        .zip(out.as_chunks_mut::<SUPER_BLOCK>().0)
    {
        let [scale, minimum_scale] = B::unpack(block, &mut integers, &mut minimums).map(widen);
        let parts = out.as_chunks_mut::<{ SUPER_BLOCK / PARTS }>().0.iter_mut();
        let parts = parts
            .zip(integers.as_chunks::<{ SUPER_BLOCK / PARTS }>().0)
            .zip(minimums);
        for ((out, integers), minimum) in parts {
            let minimum = minimum_scale * minimum as f32;
            for (out, integer) in out.iter_mut().zip(integers) {
                let value = scale * f32::from(*integer);
                *out = if B::HAS_MINIMUMS {
                    value - minimum
                } else {
                    value
                };
            }
        }
    }
}

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

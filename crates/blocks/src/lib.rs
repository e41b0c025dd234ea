//! The quantized blocks of GGUF: their bytes and elements, the integers in them, and their values.
//!
//! A quantized row is a sequence of blocks: integers of few bits, with one or two scales in f16. Blocks of [`simple`]
//! formats have 32 elements, those of the K-quants ([`super_block`]) 256, whose parts of 16 or 32 have their own
//! integer scales. Formats of one or two bits and those with a codebook have a [`shared`] layout, of 64 to 256 elements.
//! All are unpacked to 16-bit integers, from which [`dequantize`] computes the values, and kernels their sums of
//! products. [`nvfp4`] alone has a float scale for every 16 elements.

mod bits;
mod codebooks;
mod few_bits;
mod format;
pub mod nvfp4;
pub mod shared;
pub mod simple;
pub mod super_block;

pub use bits::{bits_at, widen};
pub use format::BlockFormat;
use shared::SharedLayout;
use simple::{Block, ELEMENTS};
use super_block::{PARTS, SUPER_BLOCK, SuperBlock};

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
                let $layout = $crate::shared::SharedLayout::for_format(format);
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

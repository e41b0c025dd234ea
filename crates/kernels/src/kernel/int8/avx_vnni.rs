//! AVX-VNNI (Alder Lake and later, without AVX-512): `vpdpbusd` adds four products of unsigned by signed bytes to each
//! of eight sums.

use std::arch::x86_64::{
    __m256i, _mm256_dpbusd_avx_epi32, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_slli_epi32, _mm256_storeu_si256, _mm256_sub_epi32,
};

use super::tile::{Rows, write};
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::chunks::parts;
use crate::isa::Isa;

/// Rows of the largest tile of one block: with [`PARTS`] they use twelve of sixteen registers.
const ROWS: usize = 6;
/// Registers with the sums of a block.
const PARTS: usize = BLOCK / LANES;
/// Sums per register.
const LANES: usize = 8;
/// Up to this many rows use tiles of [`BLOCKS`] blocks, so that no sum waits for the previous one.
const FEW: usize = 2;
/// Blocks per tile with few rows.
const BLOCKS: usize = 3;

/// Defines a kernel of this kind: its name, whether the processor can run it, its instructions, and `vpdpbusd`.
macro_rules! kernel {
    ($(#[$documentation:meta])* $kernel:ident, $name:literal, $new:expr, $features:literal, $add_products:expr) => {
        $(#[$documentation])*
        pub(in crate::kernel) struct $kernel(());

        impl $kernel {
            pub(in crate::kernel) fn new() -> Option<Self> {
                $new.then_some(Self(()))
            }
        }

        impl Int8Kernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            fn multiply(&self, rectangle: &Rectangle) {
                #[target_feature(enable = $features)]
                fn compute(rectangle: &Rectangle) {
                    // SAFETY: this function is compiled for the instructions.
                    #[allow(unsafe_code)]
                    unsafe {
                        multiply::<$kernel>(rectangle);
                    }
                }
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    compute(rectangle);
                }
            }
        }

        impl Dot for $kernel {
            #[inline(always)]
            #[allow(unsafe_code)]
            unsafe fn add_products(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
                // SAFETY: as for the trait.
                unsafe { $add_products(sums, unsigned, signed) }
            }
        }
    };
}

kernel!(
    /// The kernel. A value of this type proves that the processor can run it.
    AvxVnni,
    "avxvnni-vpdpbusd",
    Isa::AvxVnni.is_supported(),
    "avx2,avxvnni",
    _mm256_dpbusd_avx_epi32
);

#[cfg(test)]
kernel!(
    /// The kernel with AVX-512's encoding of the same instruction, for machines that have only that.
    Evex,
    "avxvnni-vpdpbusd as avx512vl",
    Isa::has_vnni(),
    "avx2,avx512f,avx512bw,avx512vl,avx512vnni",
    std::arch::x86_64::_mm256_dpbusd_epi32
);

/// An encoding of the instruction.
#[allow(unsafe_code)]
trait Dot {
    /// Adds four products of bytes to each of eight sums.
    ///
    /// # Safety
    /// The processor has the instruction.
    unsafe fn add_products(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;
}

/// # Safety
/// The processor must have AVX2 and the instruction of `D`.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn multiply<D: Dot>(rectangle: &Rectangle) {
    let mut column = rectangle.columns.start;
    while column < rectangle.columns.end {
        let several =
            rectangle.rows.len() <= FEW && rectangle.columns.end - column > (BLOCKS - 1) * BLOCK;
        for part in parts(rectangle.rows.len(), ROWS) {
            let row = rectangle.rows.start + part.start;
            // SAFETY: as the caller promises.
            unsafe {
                match (part.len(), several) {
                    (1, true) => tile::<D, 1, BLOCKS>(rectangle, row, column),
                    (_, true) => tile::<D, 2, BLOCKS>(rectangle, row, column),
                    (1, false) => tile::<D, 1, 1>(rectangle, row, column),
                    (2, false) => tile::<D, 2, 1>(rectangle, row, column),
                    (3, false) => tile::<D, 3, 1>(rectangle, row, column),
                    (4, false) => tile::<D, 4, 1>(rectangle, row, column),
                    (5, false) => tile::<D, 5, 1>(rectangle, row, column),
                    _ => tile::<D, ROWS, 1>(rectangle, row, column),
                }
            }
        }
        column += BLOCK * if several { BLOCKS } else { 1 };
    }
}

/// Computes some rows of some blocks: all sums stay in registers from the first input feature to the last.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn tile<D: Dot, const ROWS: usize, const BLOCKS: usize>(
    rectangle: &Rectangle,
    row: usize,
    column: usize,
) {
    let steps = rectangle.weight.in_features.div_ceil(QUAD);
    let mut x: Rows<ROWS> = [&[]; ROWS];
    let mut weights: [&[[i8; STEP]]; BLOCKS] = [&[]; BLOCKS];
    for (index, x) in x.iter_mut().enumerate() {
        *x = rectangle.x.quads(row + index);
        assert_eq!(x.len(), steps, "expected a quad for each step");
    }
    for (block, weights) in weights.iter_mut().enumerate() {
        *weights = rectangle.weight.block(column / BLOCK + block);
        assert_eq!(weights.len(), steps, "expected the steps of a block");
    }
    // SAFETY: the processor has the instructions; a row has a quad and a block 64 bytes for each step.
    let sums = unsafe {
        let mut sums = [[[_mm256_setzero_si256(); PARTS]; BLOCKS]; ROWS];
        for block in 0..BLOCKS {
            // Activations are stored 128 too large.
            let mut of_channels = [0; BLOCK];
            let columns =
                column + block * BLOCK..(column + (block + 1) * BLOCK).min(rectangle.columns.end);
            of_channels[..columns.len()].copy_from_slice(&rectangle.weight.sums[columns]);
            for part in 0..PARTS {
                let excess = _mm256_slli_epi32::<7>(_mm256_loadu_si256(
                    of_channels[part * LANES..].as_ptr().cast(),
                ));
                for sums in &mut sums {
                    sums[block][part] = _mm256_sub_epi32(_mm256_setzero_si256(), excess);
                }
            }
        }
        for step in 0..steps {
            let mut factors = [[_mm256_setzero_si256(); PARTS]; BLOCKS];
            for (factors, weights) in factors.iter_mut().zip(weights) {
                let place = weights.as_ptr().add(step).cast::<__m256i>();
                for (part, factor) in factors.iter_mut().enumerate() {
                    *factor = _mm256_loadu_si256(place.add(part));
                }
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let quad = _mm256_set1_epi32(x.as_ptr().add(step).cast::<i32>().read_unaligned());
                for (sums, factors) in sums.iter_mut().zip(factors) {
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        *sum = D::add_products(*sum, quad, factor);
                    }
                }
            }
        }
        let mut out = [[[0i32; BLOCK]; BLOCKS]; ROWS];
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sums) in out.iter_mut().zip(sums) {
                for (part, sum) in sums.into_iter().enumerate() {
                    _mm256_storeu_si256(out[part * LANES..].as_mut_ptr().cast(), sum);
                }
            }
        }
        out
    };
    for (index, sums) in sums.iter().enumerate() {
        for (block, sums) in sums.iter().enumerate() {
            let first = column + block * BLOCK;
            write(
                rectangle,
                row + index,
                first..(first + BLOCK).min(rectangle.columns.end),
                sums,
            );
        }
    }
}

//! AVX2: `vpmaddwd` adds two products of 16-bit numbers to each other, eight times; with AVX-VNNI, `vpdpwssd` also adds
//! them to the sums.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_dpwssd_avx_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_set1_epi32, _mm256_storeu_si256,
};

use super::avx2::{WIDTH, transpose_square};
use super::vector::{self, Vector};
use super::{LANES, PairKernel, Panel, PanelKernel};
use crate::isa::Isa;

/// Defines a kernel whose words are pairs of INT16: its name, whether the processor can run it, its instructions, and
/// how it adds products.
macro_rules! kernel {
    ($(#[$documentation:meta])* $kernel:ident, $vector:ident, $name:literal, $new:expr, $features:literal,
     $add_products:expr) => {
        $(#[$documentation])*
        pub(in crate::kernel) struct $kernel(());

        impl $kernel {
            pub(in crate::kernel) fn new() -> Option<Self> {
                $new.then_some(Self(()))
            }
        }

        impl PanelKernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            fn multiply(&self, panel: &Panel) {
                #[target_feature(enable = $features)]
                fn multiply(panel: &Panel) {
                    // SAFETY: this function is compiled for the instructions.
                    #[allow(unsafe_code)]
                    unsafe {
                        vector::multiply::<$vector, { LANES / WIDTH }>(panel);
                    }
                }
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    multiply(panel);
                }
            }

            fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
                // SAFETY: `new` has detected the instructions, including those of AVX2.
                #[allow(unsafe_code)]
                unsafe {
                    transpose_square(from, from_stride, to, to_stride);
                }
            }
        }

        impl PairKernel for $kernel {}

        /// Eight pairs, or eight sums in i32.
        #[derive(Clone, Copy)]
        struct $vector(__m256i);

        // SAFETY (of all functions): as the trait says.
        #[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
        impl Vector for $vector {
            const WIDTH: usize = WIDTH;

            #[inline(always)]
            unsafe fn splat(from: *const f32) -> Self {
                Self(_mm256_set1_epi32(*from.cast()))
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                Self(_mm256_loadu_si256(from.cast()))
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                _mm256_storeu_si256(to.cast(), self.0);
            }

            #[inline(always)]
            unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
                Self($add_products(sum.0, self.0, factor.0))
            }
        }
    };
}

kernel!(
    /// The kernel of AVX2. A value of this type proves that the processor can run it.
    Avx2Pairs,
    Avx2Vector,
    "avx2-vpmaddwd",
    Isa::Avx2.is_supported(),
    "avx2",
    |sums, a, b| _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
);

kernel!(
    /// The kernel of AVX-VNNI.
    AvxVnniPairs,
    AvxVnniVector,
    "avxvnni-vpdpwssd",
    Isa::AvxVnni.is_supported(),
    "avx2,avxvnni",
    |sums, a, b| _mm256_dpwssd_avx_epi32(sums, a, b)
);

#[cfg(test)]
kernel!(
    /// The AVX-VNNI kernel with AVX-512's encoding of the same instruction, for machines that have only that.
    EvexPairs,
    EvexVector,
    "avxvnni-vpdpwssd as avx512vl",
    Isa::has_vnni(),
    "avx2,avx512f,avx512vl,avx512vnni",
    |sums, a, b| std::arch::x86_64::_mm256_dpwssd_epi32(sums, a, b)
);

//! AVX2: `vpmaddwd` adds two products of 16-bit numbers to each other, eight times; with AVX-VNNI, `vpdpwssd` also adds
//! them to the sums.

use std::arch::x86_64::{
    __m256, __m256i, _mm_add_epi32, _mm_and_si128, _mm_cvtph_ps, _mm_cvtsi32_si128,
    _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128, _mm_movehdup_ps,
    _mm_set1_epi8, _mm_set1_epi16, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_srli_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_broadcastss_ps, _mm256_castps128_ps256,
    _mm256_castsi256_si128, _mm256_cmpeq_epi16, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_dpwssd_avx_epi32, _mm256_extracti128_si256,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mullo_epi16,
    _mm256_mullo_epi32, _mm256_or_si256, _mm256_permutevar8x32_ps, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi16, _mm256_setr_epi32, _mm256_sll_epi16,
    _mm256_srl_epi16, _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_sub_epi16,
};

use super::blocks::{self, Tiles, with_tiles};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::registers::Registers;
use super::steps::{GROUPS, MASK, SHIFTS};
use super::tiled;
use super::vector::{Vector, WeightVector};
use crate::isa::Isa;

/// Defines a kernel with 256-bit registers: its name, whether the processor can run it, its instructions, and how it
/// adds products.
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

        impl Int16Kernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            fn multiply_int8(&self, columns: &Int8Columns) {
                #[target_feature(enable = $features)]
                fn multiply(task: &Int8Columns) {
                    // SAFETY: this function is compiled for the instructions.
                    #[allow(unsafe_code)]
                    unsafe {
                        tiled::multiply_int8::<$vector>(task);
                    }
                }
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    multiply(columns);
                }
            }

            fn multiply_int4(&self, columns: &Int4Columns) {
                #[target_feature(enable = $features)]
                fn multiply(task: &Int4Columns) {
                    // SAFETY: this function is compiled for the instructions.
                    #[allow(unsafe_code)]
                    unsafe {
                        tiled::multiply_int4::<$vector>(task);
                    }
                }
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    multiply(columns);
                }
            }

            fn multiply_blocks(&self, columns: &BlockColumns) {
                #[target_feature(enable = $features)]
                fn multiply(task: &BlockColumns, tiles: &impl Tiles) {
                    blocks::multiply::<Registers<$vector>>(task, tiles);
                }
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    with_tiles!(columns.format, tiles => multiply(columns, tiles));
                }
            }
        }

        /// Registers of 256 bits.
        #[derive(Clone, Copy)]
        struct $vector;

        // SAFETY (of all functions): as the trait says.
        #[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
        impl Vector for $vector {
            const LANES: usize = 8;
            type Integers = __m256i;
            type Floats = __m256;
            type Exact = __m256i;
            type Sixteen<T: Copy> = [T; 2];

            #[inline(always)]
            fn sixteen<T: Copy>(register: T) -> [T; 2] {
                [register; 2]
            }

            #[inline(always)]
            unsafe fn load<T>(from: *const T) -> __m256i {
                _mm256_loadu_si256(from.cast())
            }

            #[inline(always)]
            unsafe fn widen_unsigned(from: *const u8) -> __m256i {
                _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()))
            }

            #[inline(always)]
            unsafe fn look_up(table: &[i8; 16], from: *const u8, register: usize) -> __m256i {
                let bytes = _mm_loadu_si128(from.cast());
                let indices = if register == 0 { bytes } else { _mm_srli_epi16::<4>(bytes) };
                let indices = _mm_and_si128(indices, _mm_set1_epi8(15));
                _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), indices))
            }

            #[inline(always)]
            unsafe fn fifth_bits(bits: u32, register: usize) -> __m256i {
                let places =
                    _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, i16::MIN);
                let set = _mm256_and_si256(_mm256_set1_epi16((bits >> (16 * register)) as i16), places);
                _mm256_and_si256(_mm256_cmpeq_epi16(set, places), _mm256_set1_epi16(16))
            }

            #[inline(always)]
            unsafe fn splat_i16(number: i16) -> __m256i {
                _mm256_set1_epi16(number)
            }

            #[inline(always)]
            unsafe fn splat_halves(numbers: *const i16, register: usize) -> __m256i {
                _mm256_set1_epi16(*numbers.add(register))
            }

            #[inline(always)]
            unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
                _mm256_and_si256(a, b)
            }

            #[inline(always)]
            unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
                _mm256_or_si256(a, b)
            }

            #[inline(always)]
            unsafe fn shift_i16(numbers: __m256i, right: i32) -> __m256i {
                if right < 0 {
                    _mm256_sll_epi16(numbers, _mm_cvtsi32_si128(-right))
                } else {
                    _mm256_srl_epi16(numbers, _mm_cvtsi32_si128(right))
                }
            }

            #[inline(always)]
            unsafe fn subtract_i16(a: __m256i, b: __m256i) -> __m256i {
                _mm256_sub_epi16(a, b)
            }

            #[inline(always)]
            unsafe fn multiply_i16(a: __m256i, b: __m256i) -> __m256i {
                _mm256_mullo_epi16(a, b)
            }

            #[inline(always)]
            unsafe fn multiply_i32(a: __m256i, b: __m256i) -> __m256i {
                _mm256_mullo_epi32(a, b)
            }

            #[inline(always)]
            unsafe fn begin(offset: __m256i) -> __m256i {
                offset
            }

            #[inline(always)]
            unsafe fn add_products(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
                $add_products(sums, a, b)
            }

            #[inline(always)]
            unsafe fn end(sums: __m256i, _: __m256i) -> __m256i {
                sums
            }

            #[inline(always)]
            unsafe fn splat(number: f32) -> __m256 {
                _mm256_set1_ps(number)
            }

            #[inline(always)]
            unsafe fn splat_float_halves(numbers: [f32; 2], register: usize) -> __m256 {
                _mm256_set1_ps(numbers[register])
            }

            #[inline(always)]
            unsafe fn to_floats(numbers: __m256i) -> __m256 {
                _mm256_cvtepi32_ps(numbers)
            }

            #[inline(always)]
            unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
                _mm256_fmadd_ps(a, b, c)
            }

            #[inline(always)]
            unsafe fn multiply_subtract(a: __m256, b: __m256, c: __m256) -> __m256 {
                _mm256_fnmadd_ps(a, b, c)
            }

            #[inline(always)]
            unsafe fn store_integers(numbers: __m256i, to: *mut i16) {
                _mm256_storeu_si256(to.cast(), numbers);
            }

            #[inline(always)]
            unsafe fn store(numbers: __m256, to: *mut f32) {
                _mm256_storeu_ps(to, numbers);
            }

            #[inline(always)]
            unsafe fn splat_f16(bits: u16) -> __m256 {
                _mm256_cvtph_ps(_mm_set1_epi16(bits as i16))
            }

            #[inline(always)]
            unsafe fn splat_and_widen(bits: [u16; 2]) -> (__m256, f32) {
                let both = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits[0]) | i32::from(bits[1]) << 16));
                (_mm256_broadcastss_ps(both), _mm_cvtss_f32(_mm_movehdup_ps(both)))
            }
        }

        // SAFETY (of all functions): as the trait says.
        #[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
        impl WeightVector for $vector {
            #[inline(always)]
            unsafe fn widen_signed(from: *const i8) -> __m256i {
                _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()))
            }

            #[inline(always)]
            unsafe fn factors(words: __m256i) -> [__m256i; SHIFTS] {
                let mask = _mm256_set1_epi32(MASK);
                [
                    _mm256_and_si256(words, mask),
                    _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask),
                    _mm256_and_si256(_mm256_srli_epi32::<8>(words), mask),
                    // A logical shift by 12 leaves only the upper four of sixteen bits.
                    _mm256_srli_epi16::<12>(words),
                ]
            }

            #[inline(always)]
            unsafe fn total_i32(sums: __m256i) -> i32 {
                let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
                let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b11_10_11_10>(sums));
                _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_01_01_01>(sums)))
            }

            #[inline(always)]
            unsafe fn group_scales(scales: *const [u16; GROUPS]) -> [__m256; 2] {
                let scales = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_loadl_epi64(scales.cast())));
                let (low, high) = (_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
                let (low, high) = (_mm256_permutevar8x32_ps(scales, low), _mm256_permutevar8x32_ps(scales, high));
                [low, high]
            }
        }
    };
}

kernel!(
    /// The kernel of AVX2. A value of this type proves that the processor can run it.
    Avx2,
    Avx2Vector,
    "avx2-vpmaddwd",
    (Isa::Avx2.is_supported() && is_x86_feature_detected!("f16c")),
    "avx2,fma,f16c",
    |sums, a, b| _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
);

kernel!(
    /// The kernel of AVX-VNNI.
    AvxVnni,
    AvxVnniVector,
    "avxvnni-vpdpwssd",
    (Isa::AvxVnni.is_supported() && is_x86_feature_detected!("f16c")),
    "avx2,fma,f16c,avxvnni",
    |sums, a, b| _mm256_dpwssd_avx_epi32(sums, a, b)
);

#[cfg(test)]
kernel!(
    /// The AVX-VNNI kernel with AVX-512's encoding of the same instruction, for machines that have only that.
    Evex,
    EvexVector,
    "avxvnni-vpdpwssd as avx512vl",
    Isa::has_vnni(),
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni",
    |sums, a, b| std::arch::x86_64::_mm256_dpwssd_epi32(sums, a, b)
);

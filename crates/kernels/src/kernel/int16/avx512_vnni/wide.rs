//! 512-bit registers, for GGUF blocks.

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_movehdup_ps, _mm_srli_epi16, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_loadu_si256, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_shuffle_epi8,
    _mm512_and_si512, _mm512_broadcastss_ps, _mm512_cvtepi8_epi16, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi16, _mm512_cvtph_ps, _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps,
    _mm512_loadu_si512, _mm512_mask_mov_ps, _mm512_mask_set1_epi16, _mm512_maskz_set1_epi16,
    _mm512_mullo_epi16, _mm512_mullo_epi32, _mm512_or_si512, _mm512_set1_epi16, _mm512_set1_ps,
    _mm512_sll_epi16, _mm512_srl_epi16, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi16,
};

use super::super::vector::Vector;

/// Registers of 512 bits.
#[derive(Clone, Copy)]
pub(super) struct Wide;

// SAFETY (of all functions): as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Vector for Wide {
    const LANES: usize = 16;
    type Integers = __m512i;
    type Floats = __m512;
    type Exact = __m512i;
    type Sixteen<T: Copy> = [T; 1];

    #[inline(always)]
    fn sixteen<T: Copy>(register: T) -> [T; 1] {
        [register; 1]
    }

    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }

    #[inline(always)]
    unsafe fn widen_unsigned(from: *const u8) -> __m512i {
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    unsafe fn four_bits(from: *const u8, _: usize) -> __m512i {
        let bytes = _mm_loadu_si128(from.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm512_cvtepu8_epi16(_mm256_and_si256(both, _mm256_set1_epi8(15)))
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], from: *const u8, _: usize) -> __m512i {
        let bytes = _mm_loadu_si128(from.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        let indices = _mm256_and_si256(both, _mm256_set1_epi8(15));
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(table, indices))
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: u32, _: usize) -> __m512i {
        _mm512_maskz_set1_epi16(bits, 16)
    }

    #[inline(always)]
    unsafe fn splat_i16(number: i16) -> __m512i {
        _mm512_set1_epi16(number)
    }

    #[inline(always)]
    unsafe fn splat_halves(numbers: *const i16, _: usize) -> __m512i {
        _mm512_mask_set1_epi16(_mm512_set1_epi16(*numbers), 0xffff_0000, *numbers.add(1))
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }

    #[inline(always)]
    unsafe fn shift_i16(numbers: __m512i, right: i32) -> __m512i {
        if right < 0 {
            _mm512_sll_epi16(numbers, _mm_cvtsi32_si128(-right))
        } else {
            _mm512_srl_epi16(numbers, _mm_cvtsi32_si128(right))
        }
    }

    #[inline(always)]
    unsafe fn subtract_i16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_sub_epi16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }

    #[inline(always)]
    unsafe fn begin(offset: __m512i) -> __m512i {
        offset
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpwssd_epi32(sums, a, b)
    }

    #[inline(always)]
    unsafe fn end(sums: __m512i, _: __m512i) -> __m512i {
        sums
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m512 {
        _mm512_set1_ps(number)
    }

    #[inline(always)]
    unsafe fn splat_float_halves(numbers: [f32; 2], _: usize) -> __m512 {
        let (first, second) = (_mm512_set1_ps(numbers[0]), _mm512_set1_ps(numbers[1]));
        _mm512_mask_mov_ps(first, 0xff00, second)
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(numbers)
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn multiply_subtract(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store_integers(numbers: __m512i, to: *mut i16) {
        _mm512_storeu_si512(to.cast(), numbers);
    }

    #[inline(always)]
    unsafe fn store(numbers: __m512, to: *mut f32) {
        _mm512_storeu_ps(to, numbers);
    }

    #[inline(always)]
    unsafe fn splat_f16(bits: u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_set1_epi16(bits as i16))
    }

    #[inline(always)]
    unsafe fn splat_and_widen(bits: [u16; 2]) -> (__m512, f32) {
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(
            i32::from(bits[0]) | i32::from(bits[1]) << 16,
        ));
        (
            _mm512_broadcastss_ps(both),
            _mm_cvtss_f32(_mm_movehdup_ps(both)),
        )
    }
}
